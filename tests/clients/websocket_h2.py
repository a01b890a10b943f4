#!/usr/bin/env python3
"""A WebSocket over HTTP/2 to the letter of RFC 8441, by the `h2` and `wsproto` packages: URL. Two sockets and a plain
request share the connection; proxy from https_proxy, roots from SSL_CERT_FILE."""

import os
import socket
import ssl
import sys
import urllib.parse

import h2.config
import h2.connection
import h2.events
import h2.settings
import wsproto.events
from wsproto.connection import Connection, ConnectionType


def connect(url):
    """TLS with ALPN h2 to the URL's host, through the proxy of the environment."""
    host, port = url.hostname, url.port or 443
    proxy = urllib.parse.urlsplit(os.environ["https_proxy"])
    plain = socket.create_connection((proxy.hostname, proxy.port), timeout=30)
    plain.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += plain.recv(1) or sys.exit(f"the proxy hung up after {head!r}")
    if b" 200 " not in head.split(b"\r\n")[0]:
        sys.exit(f"refused {head.decode()}{plain.recv(65536).decode()}")
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    secure = context.wrap_socket(plain, server_hostname=host)
    assert secure.selected_alpn_protocol() == "h2", secure.selected_alpn_protocol()
    return secure


class Client:
    def __init__(self, url):
        self.url = urllib.parse.urlsplit(url)
        self.socket = connect(self.url)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.socket.sendall(self.h2.data_to_send())
        self.heads, self.data, self.ended = {}, {}, {}

    def until(self, condition):
        """Reads events until `condition` holds."""
        while not condition():
            data = self.socket.recv(65536) or sys.exit("the connection ended")
            for event in self.h2.receive_data(data):
                match event:
                    case h2.events.ResponseReceived():
                        self.heads[event.stream_id] = dict(event.headers)
                    case h2.events.DataReceived():
                        self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    case h2.events.StreamEnded():
                        self.ended[event.stream_id] = "end"
                    case h2.events.StreamReset():
                        self.ended[event.stream_id] = f"reset {event.error_code}"
                    case h2.events.ConnectionTerminated():
                        sys.exit(f"GOAWAY {event.error_code}")
            self.socket.sendall(self.h2.data_to_send())

    def ask(self, *headers, end_stream):
        stream = self.h2.get_next_available_stream_id()
        where = [(":scheme", "https"), (":authority", self.url.netloc)]
        self.h2.send_headers(stream, [*headers[:1], *where, *headers[1:]], end_stream=end_stream)
        self.socket.sendall(self.h2.data_to_send())
        return stream

    def answered(self, stream):
        self.until(lambda: stream in self.heads or stream in self.ended)
        return self.heads.get(stream, {}).get(":status", self.ended.get(stream))

    def send(self, stream, data):
        self.h2.send_data(stream, data)
        self.socket.sendall(self.h2.data_to_send())


def main(url):
    client = Client(url)
    settings = client.h2.remote_settings
    client.until(lambda: settings.get(h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL) == 1)
    opened = [
        client.ask(
            (":method", "CONNECT"),
            (":path", client.url.path),
            (":protocol", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "echo"),
            end_stream=False,
        )
        for _ in range(2)
    ]
    for stream in opened:
        status = client.answered(stream)
        if status != "200":
            client.until(lambda: stream in client.ended)
            sys.exit(f"refused {status} {client.data.get(stream, b'').decode()}")
        assert client.heads[stream]["sec-websocket-protocol"] == "echo", client.heads[stream]
    sockets = {stream: Connection(ConnectionType.CLIENT) for stream in opened}
    for stream, frames in sockets.items():
        client.send(stream, frames.send(wsproto.events.TextMessage(f"on {stream}")))
    for stream, frames in sockets.items():
        client.until(lambda: stream in client.data)
        frames.receive_data(client.data.pop(stream))
        assert [event.data for event in frames.events()] == [f"on {stream}"]
    beside = client.ask((":method", "GET"), (":path", "/beside"), end_stream=True)
    assert client.answered(beside) == "200"
    for stream, frames in sockets.items():
        client.send(stream, frames.send(wsproto.events.CloseConnection(1000, "done")))
        client.h2.end_stream(stream)
        client.socket.sendall(client.h2.data_to_send())
        client.until(lambda: stream in client.ended)
        frames.receive_data(client.data.pop(stream))
        (closed,) = frames.events()
        assert (closed.code, client.ended[stream]) == (1000, "end"), (closed, client.ended[stream])
    print("reached 1000")


if __name__ == "__main__":
    main(sys.argv[1])
