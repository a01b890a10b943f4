#!/usr/bin/env python3
"""A GraphQL endpoint that parses nothing: it tells what it was asked, as data."""

import json
import urllib.parse

from exchange import serve
from listening import arguments


async def handle(request):
    body = await request.body()
    if request.method == "GET":
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(request.path).query))
    else:
        try:
            asked = json.loads(body)
        except ValueError:
            return await request.answer(400, {"errors": [{"message": "the body is no JSON"}]})
    batch = asked if isinstance(asked, list) else [asked]
    answers = [{"data": {"asked": one.get("query"), "operation": one.get("operationName")}} for one in batch]
    await request.answer(200, answers if isinstance(asked, list) else answers[0])


if __name__ == "__main__":
    serve(arguments(__doc__), handle)
