#!/usr/bin/env python3
"""A WebSocket by `websockets`: URL; text, binary and a large message there and back, ping, and the close."""

import asyncio
import sys

import websockets
from websockets.asyncio.client import connect


async def main(url):
    try:
        async with connect(url, max_size=None) as socket:
            for message in ("hello", b"\x00\xff", "x" * 1_000_000):
                await socket.send(message)
                assert await asyncio.wait_for(socket.recv(), 30) == message
            await asyncio.wait_for(await socket.ping(), 30)
    except websockets.ConnectionClosed as closed:
        print("closed", closed.rcvd and closed.rcvd.code, closed.rcvd and closed.rcvd.reason)
        sys.exit(1)
    except websockets.InvalidStatus as refused:
        print("refused", refused.response.status_code, refused.response.body.decode("utf-8", "replace"))
        sys.exit(1)
    print("reached", socket.close_code)


asyncio.run(main(sys.argv[1]))
