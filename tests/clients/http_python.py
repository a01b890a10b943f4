#!/usr/bin/env python3
"""One request by LIBRARY (urllib, requests, httpx, httpx-h2): METHOD URL [BODY]; prints version, status and body."""

import sys


def by_urllib(method, url, body):
    import urllib.error
    import urllib.request

    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, data=body, method=method))
    except urllib.error.HTTPError as error:
        answer = error
    return "HTTP/1.1", answer.status, answer.read().decode()


def by_requests(method, url, body):
    import requests

    with requests.Session() as session:
        answer = session.request(method, url, data=body)
        return {10: "HTTP/1.0", 11: "HTTP/1.1"}[answer.raw.version], answer.status_code, answer.text


def by_httpx(method, url, body, http2=False):
    import httpx

    with httpx.Client(http2=http2, timeout=60) as client:
        answer = client.request(method, url, content=body)
        return answer.http_version, answer.status_code, answer.text


def main(library, method, url, body=None):
    clients = {
        "urllib": by_urllib,
        "requests": by_requests,
        "httpx": by_httpx,
        "httpx-h2": lambda *request: by_httpx(*request, http2=True),
    }
    version, status, text = clients[library](method, url, body.encode() if body else None)
    print(version, status, text)


main(*sys.argv[1:])
