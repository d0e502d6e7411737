"""What is soaked: `qa-cluster up` with three shards, the bundled reader and the REST service, in its own folder."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.programs import MODULE, server_environment

SHARDS = 3
START_SECONDS = 120.0
TOOL = Path(sys.executable).with_name("qa-cluster")


class Stack:
    """A running cluster and service; a context manager."""

    def __init__(self, binary: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="qa-soak-"))
        clean = {name: value for name, value in server_environment().items() if not name.startswith("QA_")}
        self.environment = clean | {
            "QA_DATA_DIR": str(self.folder / "data"),
            "QA_SHARDS": str(SHARDS),
            "QA_REPLICAS": "0",
            "QA_SERVER": str(binary),
            "QA_MODULE_PATH": str(MODULE),
        }
        self.service: subprocess.Popen[bytes] | None = None
        self.nodes: list[Any] = []
        self.made: list[redis.Redis] = []
        self.addresses: list[tuple[str, int]] = []
        self.port = 0

    def cli(self, *arguments: str, check: bool = True) -> str:
        """Runs `qa-cluster` on it."""
        command = [str(TOOL), *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, cwd=self.folder, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{arguments}: {done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def __enter__(self) -> Self:
        try:
            self.cli("up")
            for shard in json.loads(self.cli("status", "--json"))["shards"]:
                host, _, port = shard["address"].rpartition(":")
                self.addresses.append((host, int(port)))
                self.nodes.append(self.client(len(self.addresses) - 1))
            self._serve()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _serve(self) -> None:
        self.port = free_port()
        with (self.folder / "service.log").open("ab") as log:
            self.service = subprocess.Popen(
                [str(TOOL), "serve", "--port", str(self.port)], env=self.environment, stdout=log, stderr=log
            )
        eventually(self._accepts, START_SECONDS, ignore=OSError)

    def _accepts(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return True

    def client(self, index: int, **options: Any) -> Any:
        """A redis.Redis of one shard, closed at the end (whose execute_command has no types)."""
        host, port = self.addresses[index]
        values: dict[str, Any] = {"decode_responses": True, "encoding_errors": "backslashreplace", "socket_timeout": 30}
        made = redis.Redis(host=host, port=port, **(values | options))
        self.made.append(made)
        return made

    @property
    def url(self) -> str:
        """The cluster's address."""
        return "redis://{}:{}".format(*self.addresses[0])

    def info(self, index: int) -> dict[str, Any]:
        """INFO of one shard."""
        return dict(self.nodes[index].info("everything"))

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.rglob("*.log"))
        )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for made in self.made:
            made.close()
        if self.service is not None:
            self.service.send_signal(signal.SIGTERM)
            try:
                self.service.wait(20)
            except subprocess.TimeoutExpired:
                self.service.kill()
                self.service.wait()
        self.cli("down", check=False)
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            sys.stderr.write(f"logs are kept in {self.folder}\n")
