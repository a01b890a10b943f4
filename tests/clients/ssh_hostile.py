"""A server that means harm to who comes: what a program of a sandbox's could be, had it the door's place.

ssh_hostile.py DOOR KEY Serves until it is ended. Downloads are an archive of more than was asked for; everything that
                        people are told has in it what would steer a terminal; programs say the same as their output.
                        Channels to ports are refused, and sessions too once there is a file DOOR.refuses.
"""
import io
import logging
import os
import socket
import sys
import tarfile
import threading

import paramiko
from paramiko.common import cMSG_CHANNEL_OPEN_FAILURE

logging.getLogger("paramiko").setLevel(logging.CRITICAL)

TITLE = "\x1b]0;owned\x07\u202e"


def archive(name):
    """What was asked for, and what was not."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        def add(path, data=b"evil", **what):
            member = tarfile.TarInfo(path)
            member.mode = 0o6777
            member.size = len(data)
            for key, value in what.items():
                setattr(member, key, value)
            if member.type != tarfile.REGTYPE:
                member.size = 0
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)

        add(name, type=tarfile.DIRTYPE)
        add(f"{name}/wanted", b"good")
        add(".bashrc")
        add("Makefile")
        add(f"{name}2/x")
        add(f"./{name}/../Makefile")
        add(".git", type=tarfile.DIRTYPE)
        add(".git/hooks", type=tarfile.SYMTYPE, linkname="/tmp")
        add(f"{name}/taken", type=tarfile.LNKTYPE, linkname="private")
    return out.getvalue()


class Server(paramiko.ServerInterface):
    def check_auth_none(self, username):
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username):
        return "none"

    def check_channel_request(self, kind, number):
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=self.say, args=(channel, b"said " + TITLE.encode() + b"\n")).start()
        return True

    def check_channel_subsystem_request(self, channel, name):
        service, _, path = name.partition(" ")
        data = archive(os.path.basename(path)) if service == "openshell-download" else b""
        threading.Thread(target=self.say, args=(channel, data)).start()
        return True

    @staticmethod
    def say(channel, data):
        # Its request is to be answered first.
        threading.Event().wait(0.2)
        channel.sendall_stderr(f"a word\r\n{TITLE} and half a line".encode())
        channel.sendall(data)
        channel.send_exit_status(0)
        channel.shutdown_write()
        channel.close()


class Transport(paramiko.Transport):
    """Refuses channels with a reason of its own, which paramiko does not know how to."""

    refuses = False

    def _parse_channel_open(self, message):
        kind = message.get_text()
        if kind == "session" and not self.refuses:
            message.rewind()
            return super()._parse_channel_open(message)
        reply = paramiko.Message()
        reply.add_byte(cMSG_CHANNEL_OPEN_FAILURE)
        reply.add_int(message.get_int())
        reply.add_int(1)
        reply.add_string(f"no {TITLE}")
        reply.add_string("")
        self._send_message(reply)


def main(door, key):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(door)
    listener.listen()
    kept = []
    key = paramiko.Ed25519Key.from_private_key_file(key)
    while True:
        stream, _ = listener.accept()
        transport = Transport(stream)
        transport.refuses = os.path.exists(door + ".refuses")
        transport.add_server_key(key)
        kept.append(transport)
        try:
            transport.start_server(server=Server())
        except (paramiko.SSHException, EOFError):
            pass


main(*sys.argv[1:])
