"""An SSH client that shares no code with OpenSSH's: paramiko, on a sandbox's door.

ssh_paramiko.py DOOR DIRECTORY      DIRECTORY: where the sandbox may write. Prints "done" when all of it holds.
"""
import hashlib
import logging
import os
import socket
import sys
import threading

import paramiko

# What is refused on purpose is no news.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def connect(door):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(door)
    transport = paramiko.Transport(stream)
    transport.start_client(timeout=60)
    transport.auth_none("sandbox")
    return transport


def run(transport, command, given=b""):
    channel = transport.open_session(timeout=60)
    channel.exec_command(command)
    channel.sendall(given)
    channel.shutdown_write()
    out = channel.makefile("rb").read()
    error = channel.makefile_stderr("rb").read()
    return channel.recv_exit_status(), out, error


def commands(transport):
    assert run(transport, "cat; echo word >&2; exit 3", b"given") == (3, b"given", b"word\n")
    channel = transport.open_session()
    channel.get_pty("vt220", 97, 31)
    channel.exec_command("stty size; read word; stty size; echo $TERM $word")
    assert channel.recv(100).strip() == b"31 97"
    channel.resize_pty(50, 20)
    channel.sendall(b"said\n")
    shown = channel.makefile("rb").read()
    assert b"20 50" in shown and b"vt220 said" in shown, shown


def files(transport, directory):
    sftp = paramiko.SFTPClient.from_transport(transport)
    sftp.chdir(directory)
    here, back = (os.path.join("/tmp", f"paramiko-{os.getpid()}-{name}") for name in ("here", "back"))
    data = os.urandom(3 << 20)
    with open(here, "wb") as file:
        file.write(data)
    try:
        assert sftp.put(here, "file").st_size == len(data)
        sftp.get("file", back)
        with open(back, "rb") as file:
            assert file.read() == data
    finally:
        for path in (here, back):
            if os.path.exists(path):
                os.remove(path)
    with sftp.open("file", "r+b") as file:
        # As sshfs does: anywhere, and in the middle.
        file.seek(1 << 20)
        assert file.read(100) == data[1 << 20 : (1 << 20) + 100]
        file.seek(5)
        file.write(b"XYZ")
        assert file.stat().st_size == len(data)
    with sftp.open("file", "rb") as file:
        file.prefetch()
        whole = file.read()
    assert hashlib.sha256(whole).digest() == hashlib.sha256(data[:5] + b"XYZ" + data[8:]).digest()
    sftp.mkdir("inner", 0o750)
    sftp.symlink("../file", "inner/link")
    assert sftp.readlink("inner/link") == "../file" and sftp.stat("inner/link").st_size == len(data)
    sftp.chmod("file", 0o640)
    sftp.utime("file", (1_000_000, 2_000_000))
    status = sftp.stat("file")
    assert (status.st_mode & 0o777, status.st_mtime) == (0o640, 2_000_000)
    sftp.rename("file", "inner/file")
    assert sorted(sftp.listdir("inner")) == ["file", "link"]
    for path in ("inner/file", "inner/link"):
        sftp.remove(path)
    sftp.rmdir("inner")
    assert sftp.listdir() == []
    for path, error in (("/no/such/file", FileNotFoundError), ("/etc/shadow", PermissionError)):
        try:
            sftp.open(path).read()
            raise AssertionError(path)
        except error:
            pass
    sftp.close()


def forwards(transport):
    def open_to(host, port):
        return transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 1), timeout=60)

    serve = transport.open_session()
    serve.exec_command(
        "python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "while True:\n c, _ = s.accept(); d = b''\n while (p := c.recv(999)): d += p\n c.sendall(d[::-1]); c.close()\""
    )
    port = int(serve.makefile("r").readline())
    for _ in range(3):
        channel = open_to("127.0.0.1", port)
        channel.sendall(b"word")
        channel.shutdown_write()
        assert channel.makefile("rb").read() == b"drow"
    for host, port, code in (("127.0.0.1", 9, 2), ("10.99.0.2", 80, 1), ("example.com", 80, 1)):
        try:
            open_to(host, port)
            raise AssertionError(host)
        except paramiko.ChannelException as refused:
            assert refused.code == code, (host, refused)
    serve.close()


def many(transport):
    results = {}

    def one(index):
        results[index] = run(transport, f"cat; exit {index}", b"x" * 100_000)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {index: (index, b"x" * 100_000, b"") for index in range(40)}


def new_keys(transport):
    """While a channel is open; not while one is closed, which paramiko itself does not survive."""
    channel = transport.open_session()
    channel.exec_command("cat")
    for word in (b"one", b"two", b"three"):
        transport.renegotiate_keys()
        channel.sendall(word)
        assert channel.recv(100) == word
    channel.shutdown_write()
    assert channel.recv_exit_status() == 0
    channel.close()


def main():
    door, directory = sys.argv[1:]
    transport = connect(door)
    commands(transport)
    files(transport, directory)
    forwards(transport)
    many(transport)
    new_keys(transport)
    transport.close()
    print("done")


if __name__ == "__main__":
    main()
