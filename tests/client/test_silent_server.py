"""The kernel's information about a server that does not reply."""

from __future__ import annotations

import os
import signal
import socket
import time
from asyncio.trsock import TransportSocket
from pathlib import Path

import redis

from qa_cluster.routing.silent_server import is_stopped, is_unacknowledged, process_of
from tests.harness.hosts import Hosts
from tests.harness.polling import eventually
from tests.harness.servers import Server

LISTEN = """import socket, time
listening = socket.create_server(("0.0.0.0", 7000))
accepted = [listening.accept() for _ in range(2)]
time.sleep(600)
"""


def connected(host: str, port: int) -> TransportSocket:
    return TransportSocket(socket.create_connection((host, port), timeout=10))


def info(pid: int) -> bytes:
    return f"# Server\r\nredis_mode:cluster\r\nprocess_id:{pid}\r\n".encode()


def test_a_stopped_server_on_this_machine(server: Server) -> None:
    sock = connected("127.0.0.1", server.port)
    with redis.Redis(port=server.port) as client:
        pid = client.info("server")["process_id"]
    assert pid == server.pid
    assert process_of(sock, info(pid)) == pid
    assert not is_stopped(pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: is_stopped(pid))
        sock._sock.send(b"PING\r\n")
        time.sleep(0.1)
        assert not is_unacknowledged(sock)  # the kernel acknowledges for the stopped process
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not is_stopped(pid))
    sock._sock.close()


def test_a_foreign_process_with_the_same_id_is_ignored(server: Server) -> None:
    """The process id of a server in a container may belong to another process on this machine."""
    sock = connected("127.0.0.1", server.port)
    assert process_of(sock, info(os.getpid())) == 0
    assert process_of(sock, b"# Server\r\n") == 0
    sock._sock.close()
    assert process_of(sock, info(server.pid)) == 0
    assert not is_stopped(0)


def test_a_machine_that_is_cut_off_acknowledges_nothing() -> None:
    with Hosts(2) as hosts:
        near, far = hosts.all
        for host in hosts.all:
            host.start(["python3", "-c", LISTEN], {}, Path(os.devnull))
        socks = {}
        for host in hosts.all:
            socks[host] = eventually(lambda host=host: connected(host.address, 7000), ignore=OSError)
        assert process_of(socks[far], info(far.processes[0].pid)) == 0  # the process is on another host
        far.cut_off()
        for sock in socks.values():
            sock._sock.send(b"PING\r\n")
        eventually(lambda: not is_unacknowledged(socks[near]))
        until = time.monotonic() + 1
        while time.monotonic() < until:
            assert is_unacknowledged(socks[far])
            time.sleep(0.05)
        for sock in socks.values():
            sock._sock.close()
