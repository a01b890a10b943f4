#!/usr/bin/env python3
"""A gRPC server by grpcio, of bytes and without protoc: service openshell.test.Echo, and openshell.test.Admin.

    Echo/Unary      the message back, with x-echo in the trailing metadata
    Echo/Download   server streaming: "COUNT SIZE" asks for COUNT messages of SIZE bytes
    Echo/Upload     client streaming: how many messages and bytes came
    Echo/Chat       both ways: each message back as it comes
    Echo/Fail       "CODE DETAILS": that status
    Echo/Slow       answers after "SECONDS", if it is let
    Echo/Counters   what was called, and how often the caller gave up, as JSON
    Admin/Drop      what no policy of a test allows
"""

import collections
import concurrent.futures
import json
import signal
import threading

import grpc

from listening import arguments, ready, text

# As long as a call may stay unanswered when nobody gives it up.
PATIENCE = 60
counters = collections.Counter()


def unary(request, context):
    context.send_initial_metadata([("x-started", "yes")])
    context.set_trailing_metadata([("x-echo", str(len(request))), ("x-echo-bin", b"\x00\xff")])
    return request


def download(request, context):
    count, size = map(int, request.split())
    message = bytes(size)
    for _ in range(count):
        yield message


def upload(requests, context):
    count = total = 0
    for message in requests:
        count, total = count + 1, total + len(message)
    return f"{count} {total}".encode()


def chat(requests, context):
    yield from requests


def fail(request, context):
    code, _, details = request.decode().partition(" ")
    context.abort(grpc.StatusCode[code], details)


def slow(request, context):
    over = threading.Event()

    def given_up():
        if not over.is_set():
            counters["given up"] += 1
        over.set()

    context.add_callback(given_up)
    if not over.wait(min(float(request), PATIENCE)):
        over.set()
    return b"late"


def tell(request, context):
    return json.dumps(counters).encode()


def drop(request, context):
    return b"dropped"


def counted(name, act):
    def call(request, context):
        counters[name] += 1
        return act(request, context)

    def stream(request, context):
        counters[name] += 1
        yield from act(request, context)

    return stream if act in (download, chat) else call


def methods(service, **handlers):
    return grpc.method_handlers_generic_handler(
        service, {name: kind(counted(f"{service}/{name}", act)) for name, (kind, act) in handlers.items()}
    )


def main():
    given = arguments(__doc__.splitlines()[0])
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(32),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)],
    )
    one, many = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    server.add_generic_rpc_handlers(
        [
            methods(
                "openshell.test.Echo",
                Unary=(one, unary),
                Download=(many, download),
                Upload=(grpc.stream_unary_rpc_method_handler, upload),
                Chat=(grpc.stream_stream_rpc_method_handler, chat),
                Fail=(one, fail),
                Slow=(one, slow),
                Counters=(one, tell),
            ),
            methods("openshell.test.Admin", Drop=(one, drop)),
        ]
    )
    if given.cert:
        port = server.add_secure_port(given.bind, grpc.ssl_server_credentials([(text(given.key), text(given.cert))]))
    else:
        port = server.add_insecure_port(given.bind)
    server.start()
    ready(port)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(0))
    server.wait_for_termination()


if __name__ == "__main__":
    main()
