#!/usr/bin/env python3
"""Reads server-sent events by LIBRARY (requests, httpx, httpx-h2) from URL, and tells when each came, in seconds."""

import sys
import time


def by_requests(url):
    import requests

    with requests.get(url, stream=True, headers={"Accept": "text/event-stream"}) as answer:
        answer.raise_for_status()
        yield from (line.decode() for line in answer.iter_lines(chunk_size=1))


def by_httpx(url, http2=False):
    import httpx

    with httpx.Client(http2=http2, timeout=httpx.Timeout(30, read=None)) as client:
        with client.stream("GET", url, headers={"Accept": "text/event-stream"}) as answer:
            answer.raise_for_status()
            yield from answer.iter_lines()


def main(library, url):
    readers = {"requests": by_requests, "httpx": by_httpx, "httpx-h2": lambda url: by_httpx(url, True)}
    started = time.monotonic()
    for line in readers[library](url):
        if line.startswith("data:"):
            print(f"{time.monotonic() - started:.2f} {line[5:].strip()}", flush=True)
    print("reached the end")


main(*sys.argv[1:])
