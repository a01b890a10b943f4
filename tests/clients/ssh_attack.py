"""A client that means harm, or does not care: each attack on a sandbox's door by itself.

ssh_attack.py DOOR ATTACK       Prints "done" when the server has answered as it should, or has let it go.
"""
import os
import socket
import sys
import threading
import time

import paramiko
from paramiko.common import byte_ord, cMSG_CHANNEL_DATA, cMSG_CHANNEL_OPEN, cMSG_CHANNEL_REQUEST, cMSG_GLOBAL_REQUEST

from ssh_paramiko import connect

WINDOW = 1 << 20
GIANT = 0xFFFFFFFF


def knock(door):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(door)
    return stream


def message(kind, *fields):
    built = paramiko.Message()
    built.add_byte(kind)
    for field in fields:
        if isinstance(field, bool):
            built.add_boolean(field)
        elif isinstance(field, int):
            built.add_int(field)
        else:
            built.add_string(field)
    return built


def alive(transport):
    """Whether the server still answers on this connection."""
    channel = transport.open_session(timeout=60)
    channel.exec_command("echo here")
    return channel.makefile("rb").read() == b"here\n"


def half_open(door):
    """So many that say nothing, and as many that stop in the middle of the keys, up to the bound, and one more."""
    # Those of the attack before keep their places until they have been told that they leave, for 5 s at most.
    time.sleep(6)
    kept = []
    while True:
        stream = knock(door)
        stream.settimeout(30)
        said = stream.recv(200)
        if b"128 connections are open" in said:
            break
        if len(kept) % 2:
            stream.sendall(b"SSH-2.0-slow\r\n\0\0\1\0\4\x14")
        kept.append(stream)
    # Some places are others'.
    assert 120 <= len(kept) <= 128, len(kept)
    for stream in kept:
        stream.close()
    deadline = time.time() + 30
    while True:
        try:
            assert alive(connect(door))
            return
        except (paramiko.SSHException, EOFError):
            assert time.time() < deadline
            time.sleep(0.1)


def garbage(door):
    """What is no SSH, after the identification."""
    for index in range(200):
        stream = knock(door)
        try:
            stream.sendall(b"SSH-2.0-x\r\n" + os.urandom(1 + index * 37))
            stream.settimeout(0.05)
            while stream.recv(4096):
                pass
        except OSError:
            pass
        stream.close()


class Deaf:
    """A connection whose client reads no more, once it has said so."""

    def __init__(self, door):
        self.transport = connect(door)
        self.ears = threading.Event()
        self.ears.set()
        packetizer = self.transport.packetizer
        read = packetizer.read_message

        def heard():
            self.ears.wait()
            return read()

        packetizer.read_message = heard

    def send(self, *fields):
        self.transport.packetizer.send_message(message(*fields))


def slow_reader(door):
    """Programs that write without end to a window without end, and nobody reads."""
    deaf = Deaf(door)
    deaf.ears.clear()
    for number in range(100):
        deaf.send(cMSG_CHANNEL_OPEN, b"session", number, GIANT, GIANT)
        deaf.send(cMSG_CHANNEL_REQUEST, number, b"exec", True, b"exec cat /dev/zero")
    time.sleep(5)
    return deaf


def stuck(door):
    """Programs that take in nothing, sent as much as the windows allow."""
    transport = connect(door)
    channels = [transport.open_session(timeout=60) for _ in range(64)]
    for channel in channels:
        channel.exec_command("exec sleep 300")
    for channel in channels:
        channel.settimeout(2)
        try:
            while True:
                channel.send(b"x" * 30_000)
        except socket.timeout:
            break
    for channel in channels[1:]:
        channel.settimeout(0)
        try:
            while True:
                channel.send(b"x" * 30_000)
        except socket.timeout:
            pass
    assert alive(transport)
    return transport, channels


def new_keys(door):
    """Nothing but new keys."""
    transport = connect(door)
    for _ in range(100):
        transport.renegotiate_keys()
    assert alive(transport)


def openings(door):
    """Channels that are opened and closed, of all kinds, as fast as it goes."""
    transport = connect(door)
    for index in range(300):
        transport.open_session(timeout=60).close()
        for kind, destination in (("direct-tcpip", ("127.0.0.1", 9)), ("x11", None), ("forwarded-tcpip", ("", 1))):
            try:
                transport.open_channel(kind, destination, ("127.0.0.1", 1), timeout=60)
                raise AssertionError(kind)
            except paramiko.ChannelException:
                pass
    assert alive(transport)


def requests(door):
    """Requests on a channel that never takes any: a forward's."""
    transport = connect(door)
    serve = transport.open_session(timeout=60)
    serve.exec_command("python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 0), backlog=64); "
                       "print(s.getsockname()[1], flush=True); kept = []\nwhile True: kept.append(s.accept())\"")
    port = int(serve.makefile("r").readline())
    for _ in range(16):
        other = connect(door)
        channel = other.open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 1), timeout=60)
        try:
            for _ in range(200):
                other.packetizer.send_message(message(cMSG_CHANNEL_REQUEST, channel.remote_chanid, b"x", False, b"y" * 200_000))
        except (OSError, EOFError):
            pass
    assert alive(transport)


def questions(door):
    """Questions, whose answers nobody reads."""
    deaf = Deaf(door)
    deaf.ears.clear()
    stream = deaf.transport.sock
    stream.settimeout(3)
    sent = 0
    started = time.time()
    done = threading.Event()

    def ask():
        nonlocal sent
        while not done.is_set():
            deaf.send(cMSG_GLOBAL_REQUEST, b"anything", True)
            sent += 1

    threading.Thread(target=ask, daemon=True).start()
    while time.time() - started < 20:
        before = sent
        time.sleep(1)
        if sent == before:
            # No longer heard.
            done.set()
            return deaf
    raise AssertionError(f"{sent} questions were taken in")


def breaches(door):
    """Each breach of the protocol ends its connection, and says why."""
    def ended(*messages):
        transport = connect(door)
        channel = transport.open_session(timeout=60)
        channel.exec_command("cat >/dev/null")
        for fields in messages:
            fields = [channel.remote_chanid if field == "channel" else field for field in fields]
            transport.packetizer.send_message(message(*fields))
        transport.join(20)
        return not transport.is_active()

    eof, close = b"\x60", b"\x61"
    assert ended((cMSG_CHANNEL_DATA, "channel", b"x" * 30_000), (eof, "channel"), (cMSG_CHANNEL_DATA, "channel", b"late"))
    assert ended((cMSG_CHANNEL_DATA, 4711, b"word"))
    assert ended((cMSG_CHANNEL_REQUEST, "channel", b"n" * 65, False))
    assert ended((close, "channel"), (close, "channel"), (close, "channel"))
    assert ended((b"\x15",)), "new keys that were not exchanged"
    assert ended((b"\x14", b"garbage"))


def main():
    door, attack = sys.argv[1:]
    kept = globals()[attack](door)
    print("done", flush=True)
    if kept is not None:
        # Whoever looks at the server now sees it under attack.
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
