#!/usr/bin/env python3
"""Repositories below --root over git's smart HTTP, by `git http-backend`, on HTTP/1.1 and HTTP/2."""

import asyncio
import os
import urllib.parse

from exchange import serve
from listening import arguments


def handler(root):
    async def handle(request):
        url = urllib.parse.urlsplit(request.path)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": urllib.parse.unquote(url.path),
            "QUERY_STRING": url.query,
            "CONTENT_TYPE": request.header("content-type") or "",
            "HTTP_CONTENT_ENCODING": request.header("content-encoding") or "",
            "GIT_PROTOCOL": request.header("git-protocol") or "",
            "REMOTE_USER": "test",
            # The repositories are another user's where the test runs as root.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        if length := request.header("content-length"):
            environment["CONTENT_LENGTH"] = length
        backend = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )

        async def feed():
            try:
                async for chunk in request.chunks():
                    backend.stdin.write(chunk)
                    await backend.stdin.drain()
            except (BrokenPipeError, ConnectionResetError):
                # It has read what it wanted; the rest is of no use to it.
                async for _ in request.chunks():
                    pass
            backend.stdin.close()

        feeding = asyncio.create_task(feed())
        try:
            status, headers = 200, []
            while (line := (await backend.stdout.readline()).decode("latin-1").rstrip("\r\n")):
                name, _, value = line.partition(":")
                if name.lower() == "status":
                    status = int(value.split()[0])
                else:
                    headers.append((name.lower(), value.strip()))
            await feeding
            await request.start(status, headers)
            while data := await backend.stdout.read(65536):
                await request.send(data)
            await request.end()
            await backend.wait()
        finally:
            feeding.cancel()
            if backend.returncode is None:
                backend.kill()

    return handle


if __name__ == "__main__":
    given = arguments(__doc__, more=lambda parser: parser.add_argument("--root", required=True))
    serve(given, handler(given.root))
