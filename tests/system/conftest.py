"""The whole system as a user starts it: `qa-cluster up`, documents, the REST service.

One per server program, shared by the tests here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.ports import free_port
from tests.harness.programs import binary_or_skip, chosen_servers

TOOL = str(Path(sys.executable).with_name("qa-cluster"))


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Poll until `condition()` is true and return its value; fails the test, naming `what`, when time is up."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.02)


@dataclass
class System:
    """A running cluster and its REST service."""

    folder: Path
    environment: dict[str, str]
    service: subprocess.Popen[bytes] | None = None
    port: int = 0
    _nodes: list[redis.Redis] = field(default_factory=list)

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `qa-cluster …` on this system."""
        done = subprocess.run(
            [TOOL, *arguments], env=self.environment, capture_output=True, text=True, cwd=self.folder, check=False
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    @property
    def nodes(self) -> list[redis.Redis]:
        """A client for each primary."""
        if not self._nodes:
            for shard in json.loads(self.cli("status", "--json").stdout)["shards"]:
                host, _, port = shard["address"].rpartition(":")
                self._nodes.append(redis.Redis(host=host, port=int(port), decode_responses=True))
        return self._nodes

    @property
    def url(self) -> str:
        """Address of the first shard."""
        host, port = self.addresses[0]
        return f"redis://{host}:{port}"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each primary."""
        return [
            (n.connection_pool.connection_kwargs["host"], n.connection_pool.connection_kwargs["port"])
            for n in self.nodes
        ]

    def info(self, node: redis.Redis) -> dict[str, Any]:
        """The module's INFO section of a shard."""
        found: dict[str, Any] = node.info("qa")
        return found

    def resume(self, pid: int) -> None:
        """Let a stopped worker go on; one that stood still for too long has been replaced meanwhile."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def total(self, name: str) -> int:
        """Sum of a counter of INFO over the shards."""
        return sum(int(self.info(node)[name]) for node in self.nodes)

    def start_service(self, **settings: str) -> None:
        """Start the REST service and wait until it is ready."""
        self.port = free_port()
        environment = {**self.environment, **settings}
        with (self.folder / "service.log").open("ab") as log:
            self.service = subprocess.Popen(
                [TOOL, "serve", "--port", str(self.port)], env=environment, stdout=log, stderr=log
            )
        wait_until(self.ready, 30, "the REST service is ready")

    def stop_service(self, how: int = signal.SIGTERM) -> None:
        """End the REST service."""
        if self.service is not None:
            self.service.send_signal(how)
            self.service.wait(20)
            self.service = None

    def ready(self) -> bool:
        """Whether /readyz says yes."""
        try:
            return self.http("/readyz")[0] == 200
        except OSError:
            return False

    def http(
        self, path: str, body: bytes | None = None, method: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one request."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=body, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()


@pytest.fixture(scope="session")
def clean_settings() -> dict[str, str]:
    """The environment without any setting."""
    return {k: v for k, v in os.environ.items() if not k.startswith("QA_")}


@pytest.fixture(scope="session", params=chosen_servers())
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, clean_settings: dict[str, str]
) -> Iterator[System]:
    """Three shards with the bundled reader and functions."""
    binary = binary_or_skip(request.param)
    folder = tmp_path_factory.mktemp("system")
    environment = clean_settings | {
        "QA_DATA_DIR": str(folder / "data"),
        "QA_SHARDS": "3",
        "QA_SERVER": str(binary),
    }
    made = System(folder, environment)
    made.cli("up")
    try:
        yield made
    finally:
        made.stop_service()
        for node in made.nodes:
            node.close()
        made.cli("down")


@pytest.fixture
def service(system: System) -> System:
    """The system with a REST service, which runs from the first test that wants one to the end of the system."""
    if system.service is None:
        system.start_service()
    return system
