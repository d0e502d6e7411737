"""A server that takes over a cluster by `CLUSTER MEET`, and records the bytes that the cluster's servers send."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.polling import eventually
from tests.harness.ports import BUS_OFFSET, free_port
from tests.harness.servers import Server, execute

SLOTS = 16384
LOGIN = re.compile(
    rb"\*[23]\r\n\$4\r\nAUTH\r\n(?:\$\d+\r\n(?P<user>[^\r]*)\r\n)??\$\d+\r\n(?P<password>[^\r]*)\r\n(?=\*|$)"
)


class Wiretap:
    """A proxy of one port. It records the clients' bytes, and can add bytes to those of the server."""

    def __init__(self, to_port: int) -> None:
        self.port = free_port()
        self.received = b""
        self._to_port = to_port
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def inject(self, data: bytes) -> None:
        """Send bytes to each client, as if they came from the server."""
        for client in self._clients:
            with suppress(OSError):
                client.sendall(data)

    def close(self) -> None:
        """End all connections."""
        for ending in (self._listener, *self._clients, *self._servers):
            with suppress(OSError):
                ending.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for closing in (self._listener, *self._clients, *self._servers):
            closing.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                self._clients.append(client)
                server = socket.create_connection(("127.0.0.1", self._to_port))
                self._servers.append(server)
            except OSError:
                return
            self._start(self._copy, client, server, True)
            self._start(self._copy, server, client, False)

    def _copy(self, source: socket.socket, target: socket.socket, record: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if record:
                    self.received += data
                target.sendall(data)
        for ending in (source, target):
            with suppress(OSError):
                ending.shutdown(socket.SHUT_RDWR)


class FakePrimary:
    """A server of the attacker that claims all slots of a cluster; a context manager.

    It has the module and a worker, and accepts every login.
    """

    def __init__(self, binary: Path, folder: Path, *, worker: str) -> None:
        key = folder / "attacker.key"
        key.write_text("0" * 64)
        self.tap: Wiretap | None = None
        self._binary, self._worker, self._key = binary, worker, key

    def __enter__(self) -> Self:
        settings: dict[str, object] = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": 5000,
            "protected-mode": "no",
            "qa.bus-key-file": self._key,
        }
        inner = Server(self._binary, settings, worker=self._worker)
        self.tap = Wiretap(inner.port)
        with (inner.directory / "server.conf").open("a") as file:
            file.write(f"cluster-announce-port {self.tap.port}\n")
            file.write(f"cluster-announce-bus-port {inner.port + BUS_OFFSET}\n")
        self.server = inner
        inner.start()
        execute(inner, "CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        execute(inner, "CLUSTER", "SET-CONFIG-EPOCH", 1000)
        # A server whose cluster is down unblocks its clients with an error, although their jobs may succeed.
        eventually(lambda: "cluster_state:ok" in execute(inner, "CLUSTER", "INFO"))
        return self

    def take_over(self, victims: Iterable[int]) -> None:
        """Meet the servers at these ports, and wait until they replicate this server."""
        ports = list(victims)

        def followed() -> bool:
            self._let_in()
            for port in ports:
                execute(self.server, "CLUSTER", "MEET", "127.0.0.1", port)
            return int(execute(self.server, "INFO", "replication")["connected_slaves"]) >= len(ports)

        eventually(followed, 60, pause=1.0)

    def _let_in(self) -> None:
        """Accept the logins that have arrived."""
        for login in LOGIN.finditer(self.received):
            user, password = login["user"] or b"default", login["password"]
            execute(self.server, "ACL", "SETUSER", user, "on", b">" + password, "~*", "&*", "+@all")

    @property
    def received(self) -> bytes:
        """All bytes that servers and clients have sent."""
        return self.tap.received if self.tap else b""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.tap:
            self.tap.close()
        self.server.__exit__(kind, value, traceback)
