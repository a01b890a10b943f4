#!/usr/bin/env python3
"""An MCP session by the `mcp` package: URL MODE TOOL [JSON]; MODE `legacy` opens it by `initialize`, `auto` by
`server/discover` first. Lists the tools, calls one, and prints what it said or the error as an agent would see it."""

import asyncio
import json
import sys

from mcp import Client


async def main(url, mode, tool, given="{}"):
    progress = []

    async def heard(done, total, message):
        progress.append(done)

    async with Client(url, mode=mode, read_timeout_seconds=30) as client:
        tools = await client.list_tools()
        print("tools", sorted(one.name for one in tools.tools))
        answer = await client.call_tool(tool, json.loads(given), progress_callback=heard)
        said = " ".join(getattr(part, "text", "") for part in answer.content)
        print("error" if answer.is_error else "answer", said, "progress", len(progress))


def causes(error):
    """What is inside an exception group, to the last."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from causes(inner)
    else:
        yield error


try:
    asyncio.run(main(*sys.argv[1:]))
except Exception as error:
    for cause in causes(error):
        print("failed", type(cause).__name__, cause)
    sys.exit(1)
