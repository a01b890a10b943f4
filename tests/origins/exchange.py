"""HTTP/1.1 and HTTP/2 for the origins here, with what a proxy is likely to lose: trailers, interim responses, resets,
extended CONNECT, back-pressure. An origin gives `serve` a function that is called with each `Exchange`."""

import asyncio
import contextlib
import contextlib
import itertools
import json

import h11
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from listening import serve as listen

# Wide enough that a gigabyte is no matter of round trips, narrow enough that a handler that does not read stops its sender.
STREAM_WINDOW = 1024 * 1024
CONNECTION_WINDOW = 16 * 1024 * 1024
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# What this process has seen, for tests that ask what arrived rather than what was answered.
counters = {"connections": 0, "requests": 0, "resets": 0, "cancelled": 0}
numbers = itertools.count(1)


class Gone(Exception):
    """The other side has left, or has reset this stream."""


class Exchange:
    """One request and its answer. Subclasses know how the protocol puts them on the wire."""

    protocol = ""

    def __init__(self, method, path, headers, connection, place):
        self.method, self.path, self.headers = method, path, headers
        #: Which connection of this process it came on, and the how-manieth exchange there it is.
        self.connection, self.place = connection, place
        self.trailers = []
        self.started = self.ended = False

    def header(self, name):
        """A header's value, or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    async def body(self):
        """All of the request's body."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def answer(self, status, body=b"", headers=(), content_type="application/json"):
        """A whole response; what is no bytes is sent as JSON."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode() + b"\n"
        sized = [] if status in (204, 304) else [("content-type", content_type), ("content-length", str(len(body)))]
        await self.start(status, [*sized, *headers])
        if self.method != "HEAD" and status not in (204, 304):
            await self.send(body)
        await self.end()

    # What the protocols do: `chunks` yields the request's body and then fills `trailers`; `interim` sends a 1xx;
    # `start`, `send` and `end` the response; `tunnel` turns the exchange into a pair of byte streams.


class Exchange1(Exchange):
    """HTTP/1.1, by h11."""

    def __init__(self, conversation, event, place):
        self.wire = conversation
        self.protocol = "HTTP/" + event.http_version.decode()
        headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in event.headers.raw_items()]
        super().__init__(event.method.decode(), event.target.decode("latin-1"), headers, conversation.number, place)

    async def chunks(self):
        while True:
            if self.wire.h11.they_are_waiting_for_100_continue:
                await self.interim(100, [])
            event = await self.wire.event()
            if isinstance(event, h11.EndOfMessage):
                self.trailers = [(key.decode(), value.decode("latin-1")) for key, value in event.headers]
                return
            if not isinstance(event, h11.Data):
                raise Gone
            yield bytes(event.data)

    async def interim(self, status, headers):
        await self.wire.write(h11.InformationalResponse(status_code=status, headers=list(headers)))

    async def start(self, status, headers):
        self.started = True
        await self.wire.write(h11.Response(status_code=status, headers=list(headers)))

    async def send(self, data):
        await self.wire.write(h11.Data(data=data))

    async def end(self, trailers=()):
        self.ended = True
        await self.wire.write(h11.EndOfMessage(headers=list(trailers)))

    async def tunnel(self, status, headers):
        """Switches protocols; returns what reads and what writes from now on."""
        async for _ in self.chunks():
            pass
        self.started = self.ended = True
        await self.wire.write(h11.InformationalResponse(status_code=status, headers=list(headers)))
        left = self.wire.h11.trailing_data[0]

        async def read():
            nonlocal left
            data, left = left, b""
            return data or await self.wire.reader.read(65536)

        async def write(data):
            self.wire.writer.write(data)
            await self.wire.writer.drain()

        return read, write


class Conversation1:
    """One HTTP/1.1 connection: exchanges one after the other."""

    def __init__(self, reader, writer, handle, first):
        self.reader, self.writer, self.handle = reader, writer, handle
        self.number = next(numbers)
        self.h11 = h11.Connection(h11.SERVER)
        if first:
            self.h11.receive_data(first)

    async def event(self):
        while (event := self.h11.next_event()) is h11.NEED_DATA:
            self.h11.receive_data(await self.reader.read(65536))
        return event

    async def write(self, event):
        data = self.h11.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def run(self):
        for place in itertools.count(1):
            event = await self.event()
            if not isinstance(event, h11.Request):
                return
            counters["requests"] += 1
            exchange = Exchange1(self, event, place)
            await self.handle(exchange)
            if self.h11.our_state is h11.SWITCHED_PROTOCOL or not exchange.ended:
                return
            # What the handler left of the body goes before the next request, unless the client still waits to send it.
            if self.h11.they_are_waiting_for_100_continue:
                return
            while self.h11.their_state is h11.SEND_BODY:
                await self.event()
            if self.h11.our_state is not h11.DONE or self.h11.their_state is not h11.DONE:
                return
            self.h11.start_next_cycle()


class Exchange2(Exchange):
    """HTTP/2, by h2."""

    protocol = "HTTP/2"

    def __init__(self, conversation, stream, headers, place):
        self.wire, self.stream = conversation, stream
        pseudo = {key: value for key, value in headers if key.startswith(":")}
        self.pseudo = pseudo
        plain = [(key, value) for key, value in headers if not key.startswith(":")]
        super().__init__(pseudo.get(":method", ""), pseudo.get(":path", ""), plain, conversation.number, place)
        self.arrived = asyncio.Queue()
        #: Whether the request's end has come.
        self.received = False
        self.window = asyncio.Event()

    async def chunks(self):
        if self.header("expect") == "100-continue":
            await self.interim(100, [])
        taken = 0
        while (item := await self.arrived.get()) is not None:
            data, flow = item
            taken += flow
            # In few large steps: a WINDOW_UPDATE for every frame would be most of the work.
            if taken >= STREAM_WINDOW // 4 or self.arrived.empty():
                self.wire.h2.acknowledge_received_data(taken, self.stream)
                self.wire.flush()
                taken = 0
            yield data
        # Asked again, the end is still there.
        self.arrived.put_nowait(None)

    async def answer(self, status, body=b"", headers=(), content_type="application/json"):
        # In one piece, as servers send what they have whole: curl 7.88 ends its upload short when it sees an error's head,
        # and to be told so before the body has come would cost it the body.
        with self.wire.corked():
            await super().answer(status, body, headers, content_type)

    async def interim(self, status, headers):
        await self.wire.headers(self.stream, [(":status", str(status)), *headers])

    async def start(self, status, headers):
        self.started = True
        await self.wire.headers(self.stream, [(":status", str(status)), *headers])

    async def send(self, data):
        view = memoryview(data)
        while view:
            self.window.clear()
            room = min(self.wire.h2.local_flow_control_window(self.stream), self.wire.h2.max_outbound_frame_size)
            if room <= 0:
                self.wire.flush(whatever=True)
                await self.window.wait()
                continue
            self.wire.h2.send_data(self.stream, bytes(view[:room]))
            view = view[room:]
            await self.wire.push()

    async def end(self, trailers=()):
        self.ended = True
        if trailers:
            await self.wire.headers(self.stream, list(trailers), end_stream=True)
        else:
            self.wire.h2.end_stream(self.stream)
            await self.wire.push()

    async def reset(self, code):
        """Gives the stream up with an error code of RFC 9113 §7."""
        self.ended = True
        self.wire.h2.reset_stream(self.stream, code)
        await self.wire.push()

    async def tunnel(self, status, headers):
        """Accepts an extended CONNECT; returns what reads and what writes from now on."""
        await self.start(status, headers)
        stream = self.chunks()

        async def read():
            return await anext(stream, b"")

        return read, self.send


class Conversation2:
    """One HTTP/2 connection: exchanges side by side, a task each."""

    def __init__(self, reader, writer, handle, first):
        self.reader, self.writer, self.handle, self.first = reader, writer, handle, first
        self.number = next(numbers)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.ENABLE_CONNECT_PROTOCOL: 1,
                codes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                codes.MAX_CONCURRENT_STREAMS: 256,
                codes.MAX_HEADER_LIST_SIZE: 65536,
            },
        )
        self.exchanges, self.tasks, self.held = {}, {}, 0

    @contextlib.contextmanager
    def corked(self):
        """Holds back what is sent, to the end of the block or the next thing that must wait."""
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1
            self.flush()

    def flush(self, whatever=False):
        if self.held and not whatever:
            return
        data = self.h2.data_to_send()
        if data and not self.writer.is_closing():
            self.writer.write(data)

    async def push(self):
        self.flush()
        await self.writer.drain()

    async def headers(self, stream, headers, end_stream=False):
        self.h2.send_headers(stream, headers, end_stream=end_stream)
        await self.push()

    async def run(self):
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW)
        self.flush()
        data = self.first or await self.reader.read(65536)
        try:
            while data:
                for event in self.h2.receive_data(data):
                    self.take(event)
                self.flush()
                data = await self.reader.read(65536)
        except h2.exceptions.ProtocolError:
            self.flush()
        finally:
            for task in self.tasks.values():
                task.cancel()

    def take(self, event):
        exchange = self.exchanges.get(getattr(event, "stream_id", None))
        match event:
            case h2.events.RequestReceived():
                counters["requests"] += 1
                exchange = Exchange2(self, event.stream_id, event.headers, len(self.tasks) + 1)
                self.exchanges[event.stream_id] = exchange
                self.tasks[event.stream_id] = asyncio.create_task(self.attend(exchange))
            case h2.events.DataReceived() if exchange:
                exchange.arrived.put_nowait((event.data, event.flow_controlled_length))
            case h2.events.TrailersReceived() if exchange:
                exchange.trailers = list(event.headers)
            case h2.events.StreamEnded() if exchange:
                exchange.received = True
                exchange.arrived.put_nowait(None)
            case h2.events.StreamReset() if exchange:
                counters["resets"] += 1
                self.tasks[event.stream_id].cancel()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for each in [exchange] if exchange else self.exchanges.values():
                    each.window.set()

    async def attend(self, exchange):
        try:
            await self.handle(exchange)
            if exchange.ended and not exchange.received:
                # The rest of the body is not wanted (RFC 9113 §8.1).
                await exchange.reset(h2.errors.ErrorCodes.NO_ERROR)
        except asyncio.CancelledError:
            counters["cancelled"] += 1
        except (h2.exceptions.ProtocolError, ConnectionError, Gone):
            pass
        finally:
            self.exchanges.pop(exchange.stream, None)


def serve(given, handle):
    """Serves `await handle(exchange)` on what the command line says."""

    async def converse(reader, writer):
        counters["connections"] += 1
        tls = writer.get_extra_info("ssl_object")
        first = b""
        try:
            if tls:
                second = tls.selected_alpn_protocol() == "h2"
            else:
                # Without ALPN the preface tells (RFC 9113 §3.3); no HTTP/1 request begins like it.
                first = await reader.read(len(PREFACE))
                second = bool(first) and PREFACE.startswith(first[:3])
            await (Conversation2 if second else Conversation1)(reader, writer, handle, first).run()
        except (ConnectionError, Gone, h11.RemoteProtocolError, h11.LocalProtocolError):
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    listen(given, converse)
