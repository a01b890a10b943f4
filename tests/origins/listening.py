"""What every origin here does alike: read its arguments, listen, present its certificate, and say when it is ready."""

import argparse
import asyncio
import pathlib
import signal
import socket
import ssl


def arguments(description, *, more=None):
    """The command line: `--bind`, `--cert` and `--key`, `--alpn`, and what `more` adds to the parser."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bind", required=True, metavar="HOST:PORT", help="port 0 takes a free one; :: is both families")
    parser.add_argument("--cert", metavar="PEM", help="certificate chain; plain text without")
    parser.add_argument("--key", metavar="PEM")
    parser.add_argument("--alpn", default="h2,http/1.1", help="what is offered, the favourite first; empty for none")
    if more:
        more(parser)
    given = parser.parse_args()
    host, _, port = given.bind.rpartition(":")
    given.host, given.port = host.strip("[]"), int(port)
    return given


def listener(given):
    """A listening socket, of both families where the host is `::`."""
    if given.host == "::":
        return socket.create_server((given.host, given.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
    return socket.create_server((given.host, given.port), family=family, backlog=512)


def tls(given):
    """The server's side of TLS, or None for plain text."""
    if not given.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(given.cert, given.key)
    if given.alpn:
        context.set_alpn_protocols(given.alpn.split(","))
    return context


def ready(port):
    """Tells whoever started this that connections are taken from now on."""
    print(f"ready {port}", flush=True)


def text(path):
    """A file's bytes, for servers that want certificates in memory."""
    return pathlib.Path(path).read_bytes()


def serve(given, converse):
    """Runs `converse(reader, writer)` for each connection until the process is told to end."""

    async def run():
        sock = listener(given)
        server = await asyncio.start_server(converse, sock=sock, ssl=tls(given), limit=256 * 1024)
        ready(sock.getsockname()[1])
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        async with server:
            await ended.wait()

    asyncio.run(run())
