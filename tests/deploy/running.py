"""A cluster that starts like the files in deploy/: `node` for each server, `up --form`, and `serve`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.workers import FEW_TOKENS

PASSWORD = "0123456789abcdef"
SECONDS = 180.0
ATTEMPTS = 4


class Deployed:
    """Servers and service, each in a separate process with the environment that a supervisor would set."""

    def __init__(self, folder: Path, command: list[str] | None = None, shards: int = 2) -> None:
        self.folder = folder
        self.command = command or [sys.executable, "-m", "qa_cluster.cluster.cli"]
        self.ports = [free_port() for _ in range(shards)]
        self.http_port, self.admin_port = free_port(), free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    def environment(self, name: str) -> dict[str, str]:
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return os.environ | {
            "QA_DATA_DIR": str(self.folder / name),
            "QA_CLUSTER_PASSWORD": PASSWORD,
            "QA_CLUSTER_URL": f"redis://{servers}",
            "QA_SHARDS": str(len(self.ports)),
            "QA_HTTP_PORT": str(self.http_port),
            "QA_ADMIN_PORT": str(self.admin_port),
            "QA_WORKER_THREADS": "1",
            "QA_MAX_BATCH_TOKENS": str(FEW_TOKENS),
            "QA_START_TIMEOUT_MS": str(int(SECONDS * 1000)),
        }

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.command, *arguments], env=self.environment(name), stdout=log, stderr=log, cwd=self.folder
            )
        self.processes.append(process)
        return process

    def set_up(self) -> None:
        """Run `up --form`; retry after a failure, as systemd, Compose and Kubernetes do."""
        statuses = [self.start("setup", "up", "--form").wait(SECONDS)]
        while statuses[-1] and len(statuses) < ATTEMPTS:
            statuses.append(self.start("setup", "up", "--form").wait(SECONDS))
        assert statuses[-1] == 0, (self.folder / "setup.log").read_text()

    def __enter__(self) -> Self:
        try:
            for port in self.ports:
                self.start(f"server-{port}", "node", "--port", str(port), "--announce", "127.0.0.1")
            self.set_up()
            self.start("service", "serve")
            with self.client() as client:
                eventually(lambda: client.get("/readyz").is_success, SECONDS, ignore=httpx.TransportError)
        except BaseException:
            self.end()
            raise
        return self

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.http_port}", timeout=60)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
