"""The whole system as a user starts it: `qa-cluster up` in a folder of its own, and `qa-cluster serve`."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from qa_cluster.cluster.provision.inspection import inspect_cluster
from qa_cluster.config import Settings
from tests.harness.commands import run_here
from tests.harness.polling import eventually, unwatch, watch
from tests.harness.ports import free_port
from tests.harness.processes import lives
from tests.harness.programs import MODULE, server_environment
from tests.harness.workers import COMPILED, FEW_TOKENS

TOOL = str(Path(sys.executable).with_name("qa-cluster"))
START_SECONDS = 180.0
# settings of a system for tests that put no load on it
SMALL_BATCHES = {
    "QA_MAX_BATCH_TOKENS": str(FEW_TOKENS),
    "QA_MODEL_CACHE_DIR": str(COMPILED),
    "QA_START_TIMEOUT_MS": "300000",
}
UNHURRIED = SMALL_BATCHES | {"QA_REQUEST_TIMEOUT_MS": "60000"}  # the same, and no question times out on a busy machine
WORDS_ONLY = UNHURRIED | {"QA_ENCODER": "none"}  # the same without an encoder: shards start in half of the time
PATIENT = Settings(connect_timeout_ms=20_000, request_timeout_ms=60_000)  # settings of a client with long timeouts
SHARDS = 3  # the default of `qa-cluster up`


class System:
    """A local cluster and, on request, its REST service; a context manager.

    `usual` has the settings of all systems; a system's own settings override them. `all_apart` sets `apart` for all.
    """

    usual: Mapping[str, str] = {}
    all_apart = False

    def __init__(
        self,
        binary: Path,
        *,
        shards: int = SHARDS,
        up: Sequence[str] = ("--no-password",),
        apart: bool = False,
        **settings: str,
    ) -> None:
        """`up` are options of `qa-cluster up`, `settings` variables of the environment.

        With the usual options, stock clients need no password.

        `apart` runs each command in a separate process, for tests that check these processes.
        """
        self._apart = apart or self.all_apart
        self._up = up
        self.folder = Path(tempfile.mkdtemp(prefix="qa-system-"))
        self.binary = binary
        self.shards = shards
        clean = {name: value for name, value in server_environment().items() if not name.startswith("QA_")}
        self.environment = clean | {
            "QA_DATA_DIR": str(self.folder / "data"),
            "QA_SHARDS": str(shards),
            "QA_REPLICAS": "0",
            "QA_SERVER": str(binary),
            "QA_MODULE_PATH": str(MODULE),
            "QA_MODEL_CACHE_DIR": str(COMPILED),
            **self.usual,
            **settings,
        }
        self.service: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.nodes: list[Any] = []
        self.addresses: list[tuple[str, int]] = []
        self._clients: list[redis.Redis] = []

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs `qa-cluster` on the system, in this process if possible."""
        if self._apart or threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop():
            done = subprocess.run(
                [TOOL, *arguments], env=self.environment, capture_output=True, text=True, cwd=self.folder, check=False
            )
        else:
            done = run_here(arguments, self.folder, self.environment)
        if check and done.returncode:
            raise AssertionError(f"qa-cluster {arguments}: {done.stdout}{done.stderr}\n{self.logs()}")
        return done

    def status(self) -> dict[str, Any]:
        """The output of `qa-cluster status --json`."""
        return dict(json.loads(self.cli("status", "--json").stdout))

    def whole(self) -> bool:
        """Whether the cluster is ready in the view of each server, as `qa-cluster status` reports it."""
        return all(inspect_cluster(Settings(), f"redis://{host}:{port}").ready for host, port in self.addresses)

    def __enter__(self) -> Self:
        try:
            self.cli("up", *self._up)
            for shard in self.status()["shards"]:
                host, _, port = shard["address"].rpartition(":")
                self.addresses.append((host, int(port)))
            self.nodes = self.clients()
            self.watch()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def server_pid(self, number: int) -> int:
        """The process id of a server."""
        return int((self.folder / "data" / f"node-{number}" / "server.pid").read_text())

    def watch(self) -> None:
        """Make waits fail when a server ends."""
        pids = {number: self.server_pid(number) for number in range(len(self.addresses))}

        def ended() -> str:
            gone = [number for number, pid in pids.items() if not lives(pid)]
            return f"servers {gone} have ended:\n{self.logs()}" if gone else ""

        watch(self, ended)

    def may_end(self) -> None:
        """Allow servers to end: waits do not fail when a server ends."""
        unwatch(self)

    def client(self, index: int, **options: Any) -> Any:
        """A redis.Redis of one shard, which closes at the end (its execute_command has no types)."""
        host, port = self.addresses[index]
        values: dict[str, Any] = {"decode_responses": True, "encoding_errors": "backslashreplace", "socket_timeout": 30}
        values["driver_info"] = None  # without this, redis-py looks up its version
        self._clients.append(redis.Redis(host=host, port=port, **(values | options)))
        return self._clients[-1]

    def clients(self, **options: Any) -> list[Any]:
        """A client of every shard."""
        return [self.client(index, **options) for index in range(len(self.addresses))]

    @property
    def url(self) -> str:
        """The address of the first shard."""
        return "redis://{}:{}".format(*self.addresses[0])

    def info(self, node: redis.Redis) -> dict[str, Any]:
        """INFO of a shard, with the module's section."""
        return dict(node.info("everything"))

    def total(self, name: str) -> int:
        """The sum of a counter of INFO over the shards."""
        return sum(int(self.info(node)[name]) for node in self.nodes)

    def worker_pid(self, node: redis.Redis) -> int:
        """The process id of a shard's worker; during a restart it waits for the new one."""
        return int(eventually(lambda: self.info(node)["qa_worker_pid"]))

    def start_service(self, **settings: str) -> None:
        """Starts the REST service and waits until it is ready."""
        self.port = free_port()
        with (self.folder / "service.log").open("ab") as log:
            self.service = subprocess.Popen(
                [TOOL, "serve", "--port", str(self.port)], env=self.environment | settings, stdout=log, stderr=log
            )
        eventually(self._ready, START_SECONDS, ignore=OSError)

    def _ready(self) -> bool:
        if self.service is not None and self.service.poll() is not None:
            raise AssertionError(f"the service ended with {self.service.returncode}\n{self.logs()}")
        return self.http("/readyz")[0] == 200

    def stop_service(self, how: int = signal.SIGTERM) -> None:
        """Ends the REST service."""
        if self.service is None:
            return
        self.service.send_signal(how)
        try:
            self.service.wait(60)
        except subprocess.TimeoutExpired:
            self.service.kill()
            self.service.wait()
            raise
        finally:
            self.service = None

    def http(
        self, path: str, body: bytes | None = None, method: str | None = None, seconds: float = 30
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one request; each step of the connection may take `seconds`."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=body, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=seconds) as reply:
                return reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.rglob("*.log"))
        )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        unwatch(self)
        for client in self._clients:
            client.close()
        with suppress(subprocess.TimeoutExpired):
            self.stop_service()
        self.cli("down", check=False)
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            sys.stderr.write(f"logs are kept in {self.folder}\n")
