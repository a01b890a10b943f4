"""What one command takes on a connection that is open: by a client that stays, so that no start of an `ssh` is in it.

ssh_latency.py DOOR HOST PORT KEY RUNS
    DOOR: a sandbox's; HOST, PORT: a server that lets root in by the Ed25519 KEY. Both in turn, RUNS times.
    Prints median and best in milliseconds: the server's, then the door's.
"""
import socket
import sys
import time

import paramiko

from ssh_paramiko import connect


def connect_to_server(host, port, key):
    stream = socket.create_connection((host, port))
    # Or each small packet would wait for what answers the one before it.
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = paramiko.Transport(stream)
    transport.start_client(timeout=60)
    transport.auth_publickey("root", paramiko.Ed25519Key.from_private_key_file(key))
    return transport


def time_one(transport):
    begun = time.perf_counter()
    channel = transport.open_session()
    channel.exec_command("/bin/true")
    assert channel.recv_exit_status() == 0
    channel.close()
    return (time.perf_counter() - begun) * 1e3


def main():
    door, host, port, key, runs = sys.argv[1:]
    transports = [connect_to_server(host, int(port), key), connect(door)]
    taken = [[], []]
    for _ in range(int(runs)):
        for transport, times in zip(transports, taken):
            times.append(time_one(transport))
    for times in taken:
        times.sort()
        print(f"{times[len(times) // 2]:.3f} {times[0]:.3f}")
    for transport in transports:
        transport.close()


if __name__ == "__main__":
    main()
