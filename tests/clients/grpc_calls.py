#!/usr/bin/env python3
"""Calls of openshell.test by grpcio: TARGET ACT; prints `reached` and what came, or the status as a program would.

The channel is grpcio's own: proxy from grpc_proxy or https_proxy, roots from GRPC_DEFAULT_SSL_ROOTS_FILE_PATH."""

import json
import sys
import threading
import time

import grpc

# No test's call takes longer unless it is broken.
PATIENCE = 30


def main(target, act, *details):
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.secure_channel(target, grpc.ssl_channel_credentials(), options=options) as channel:
        try:
            ACTS[act](channel, *details)
        except grpc.RpcError as error:
            print("status", error.code().name, error.details())
            sys.exit(1)


def unary(channel):
    answer, call = channel.unary_unary("/openshell.test.Echo/Unary").with_call(b"hello", timeout=PATIENCE)
    trailing = dict(call.trailing_metadata())
    assert answer == b"hello" and trailing["x-echo"] == "5" and trailing["x-echo-bin"] == b"\x00\xff", trailing
    assert dict(call.initial_metadata())["x-started"] == "yes"
    print("reached unary")


def download(channel, count="100", size="65536"):
    stream = channel.unary_stream("/openshell.test.Echo/Download")(f"{count} {size}".encode(), timeout=PATIENCE)
    lengths = [len(message) for message in stream]
    assert lengths == [int(size)] * int(count), lengths
    print("reached download")


def upload(channel):
    messages = (bytes(65536) for _ in range(100))
    answer = channel.stream_unary("/openshell.test.Echo/Upload")(messages, timeout=PATIENCE)
    assert answer == b"100 6553600", answer
    print("reached upload")


def chat(channel):
    """Each message is sent only after the one before came back: nothing on the way may wait for more."""
    turn = threading.Semaphore(1)

    def say():
        for number in range(50):
            assert turn.acquire(timeout=PATIENCE)
            yield f"message {number}".encode()

    heard = []
    for message in channel.stream_stream("/openshell.test.Echo/Chat")(say(), timeout=PATIENCE):
        heard.append(message)
        turn.release()
    assert heard == [f"message {number}".encode() for number in range(50)], heard
    print("reached chat")


def fail(channel):
    try:
        channel.unary_unary("/openshell.test.Echo/Fail")(b"FAILED_PRECONDITION not like this", timeout=PATIENCE)
    except grpc.RpcError as error:
        assert (error.code().name, error.details()) == ("FAILED_PRECONDITION", "not like this"), error
        print("reached fail")


def deadline(channel):
    """The deadline is the client's, and the server hears that the call is over."""
    started = time.monotonic()
    try:
        channel.unary_unary("/openshell.test.Echo/Slow")(b"20", timeout=0.5)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - started < 5, error
    given_up(channel)
    print("reached deadline")


def cancel(channel):
    call = channel.unary_unary("/openshell.test.Echo/Slow").future(b"20")
    # Not before it has arrived, or there is nothing to cancel at the server.
    eventually(lambda: counters(channel).get("openshell.test.Echo/Slow"))
    call.cancel()
    assert call.cancelled()
    given_up(channel)
    print("reached cancel")


def drop(channel):
    assert channel.unary_unary("/openshell.test.Admin/Drop")(b"", timeout=PATIENCE) == b"dropped"
    print("reached drop")


def counters(channel):
    return json.loads(channel.unary_unary("/openshell.test.Echo/Counters")(b"", timeout=PATIENCE))


def given_up(channel):
    eventually(lambda: counters(channel).get("given up"))


def eventually(condition):
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "never happened"
        time.sleep(0.05)


ACTS = {act.__name__: act for act in (unary, download, upload, chat, fail, deadline, cancel, drop)}
main(*sys.argv[1:])
