#!/usr/bin/env python3
"""An HTTPS origin of HTTP/1.1 and HTTP/2 that tells what it received, and answers in all the ways that proxies break.

    /bytes/N        N bytes; ?chunked without saying how many, ?pause=S with a rest between pieces of ?piece=N (at most 64 KiB)
    /sink           reads the body to its end: its length and SHA-256
    /trailers       the request's trailers, and some of its own
    /hints          103 Early Hints, twice, then the answer
    /refuse         403 before the body was read
    /events         server-sent events: ?count=N, ?silence=S before the last
    /status/N       that status
    /ws             a WebSocket that echoes; ?greet=N sends N messages by itself first
    /counters       what this process has seen
    anything else   the request, as JSON
"""

import asyncio
import base64
import hashlib
import urllib.parse

import wsproto.events
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.extensions import PerMessageDeflate

import exchange
from listening import arguments

# RFC 6455 §1.3.
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PIECE = bytes(range(256)) * 256


async def handle(request):
    url = urllib.parse.urlsplit(request.path)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    steps = url.path.strip("/").split("/")
    match steps:
        case ["bytes", count]:
            await some_bytes(request, int(count), query)
        case ["sink"]:
            digest, length = hashlib.sha256(), 0
            async for chunk in request.chunks():
                digest.update(chunk)
                length += len(chunk)
            await request.answer(200, {"length": length, "sha256": digest.hexdigest()})
        case ["trailers"]:
            body = await request.body()
            await request.start(200, [("content-type", "text/plain"), ("trailer", "x-length, x-received")])
            await request.send(body or b"no body\n")
            received = ",".join(f"{key}={value}" for key, value in request.trailers)
            await request.end([("x-length", str(len(body))), ("x-received", received)])
        case ["hints"]:
            for number in (1, 2):
                await request.interim(103, [("link", f"</style{number}.css>; rel=preload; as=style")])
            await request.answer(200, {"hinted": 2})
        case ["refuse"]:
            await request.answer(403, {"refused": request.method})
        case ["events"]:
            await events(request, int(query.get("count", 3)), float(query.get("silence", 0)))
        case ["status", status]:
            await request.answer(int(status), {"status": int(status)})
        case ["ws"]:
            await websocket(request, int(query.get("greet", 0)))
        case ["counters"]:
            await request.answer(200, exchange.counters)
        case _:
            await echo(request)


async def echo(request):
    body = await request.body()
    await request.answer(
        200,
        {
            "method": request.method,
            "path": request.path,
            "protocol": request.protocol,
            "authority": getattr(request, "pseudo", {}).get(":authority") or request.header("host"),
            "headers": request.headers,
            "body": body.decode("utf-8", "replace") if len(body) <= 4096 else None,
            "length": len(body),
            "trailers": request.trailers,
            "connection": request.connection,
            "place": request.place,
        },
    )


async def some_bytes(request, count, query):
    piece, pause = min(int(query.get("piece", len(PIECE))), len(PIECE)), float(query.get("pause", 0))
    sized = [] if "chunked" in query else [("content-length", str(count))]
    await request.start(200, [("content-type", "application/octet-stream"), *sized])
    for start in range(0, 0 if request.method == "HEAD" else count, piece):
        await request.send(PIECE[: min(piece, count - start)])
        if pause:
            await asyncio.sleep(pause)
    await request.end()


async def events(request, count, silence):
    await request.start(200, [("content-type", "text/event-stream"), ("cache-control", "no-store")])
    for number in range(1, count + 1):
        if number == count:
            await asyncio.sleep(silence)
        await request.send(f"id: {number}\nevent: tick\ndata: {{\"number\": {number}}}\n\n".encode())
    await request.end()


def accept_of(key):
    return base64.b64encode(hashlib.sha1(key.encode() + WEBSOCKET_GUID).digest()).decode()


async def websocket(request, greet):
    """RFC 6455 by upgrade, RFC 8441 by extended CONNECT; deflate (RFC 7692) where it is offered."""
    offer = request.header("sec-websocket-extensions") or ""
    deflate = PerMessageDeflate()
    accepted = next((deflate.accept(one.strip()) for one in offer.split(",") if "permessage-deflate" in one), None)
    headers = []
    if accepted is not None:
        headers.append(("sec-websocket-extensions", "permessage-deflate" + (f"; {accepted}" if accepted else "")))
    protocols = [one.strip() for one in (request.header("sec-websocket-protocol") or "").split(",") if one.strip()]
    if protocols:
        headers.append(("sec-websocket-protocol", protocols[0]))
    key = request.header("sec-websocket-key")
    if request.protocol == "HTTP/2":
        if getattr(request, "pseudo", {}).get(":protocol") != "websocket":
            return await request.answer(400, {"error": "no extended CONNECT"})
        if key:
            # RFC 8441 §5 does without, but undici's client sends its key and wants the answer to it.
            headers.append(("sec-websocket-accept", accept_of(key)))
        read, write = await request.tunnel(200, headers)
    else:
        if not key or (request.header("upgrade") or "").lower() != "websocket":
            return await request.answer(426, {"error": "no upgrade"}, [("upgrade", "websocket")])
        switch = [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-accept", accept_of(key))]
        read, write = await request.tunnel(101, switch + headers)
    frames = Connection(ConnectionType.SERVER, [deflate] if accepted is not None else [])
    for number in range(greet):
        await write(frames.send(wsproto.events.TextMessage(f"greeting {number + 1}")))
    while frames.state is not ConnectionState.CLOSED and (data := await read()):
        frames.receive_data(data)
        for event in frames.events():
            match event:
                case wsproto.events.Message():
                    kind = wsproto.events.TextMessage if isinstance(event.data, str) else wsproto.events.BytesMessage
                    await write(frames.send(kind(event.data, message_finished=event.message_finished)))
                case wsproto.events.Ping():
                    await write(frames.send(event.response()))
                case wsproto.events.CloseConnection():
                    if frames.state is not ConnectionState.CLOSED:
                        await write(frames.send(event.response()))
    if request.protocol == "HTTP/2":
        await request.end()


if __name__ == "__main__":
    exchange.serve(arguments(__doc__.splitlines()[0]), handle)
