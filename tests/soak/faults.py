"""Random faults, one every second or two. Each fault is undone again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import redis

from tests.fuzz.generate import Generator
from tests.fuzz.words import Command
from tests.harness.polling import eventually
from tests.harness.processes import inference_workers
from tests.harness.system import SHARDS, System
from tests.soak.gate import Gate

SLOW = "import time\ndef slow(r):\n    while True: time.sleep(0.1)\nGB('ShardsIDReader').foreach(slow).run()"
ABORT_SECONDS = 60.0
HOG = "hog = [bytearray(64 << 20) for _ in range(64)]"
BUSY = "local n = 0 for i = 1, 20000000 do n = n + i end return n"  # takes some tenths of a second
# Commands that would remove registrations or settings of the load if their arguments are random.
HARMFUL = {"RG.UNREGISTER", "RG.PAUSEREGISTRATIONS", "RG.CONFIGSET", "AI.CONFIG", "RG.CLEARREGISTRATIONSSTATS"}
MEMORY_MB = 2048  # the memory limit of a worker, half of the memory that HOG requests


class Faults:
    """A thread that injects faults."""

    def __init__(self, system: System, seed: int, pause_seconds: float, gate: Gate) -> None:
        self.system = system
        self.gate = gate
        self.chance = random.Random(f"{seed} faults")
        self.pause_seconds = pause_seconds
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.clients = [system.client(index) for index in range(SHARDS)]
        names = self.clients[0].execute_command("COMMAND LIST", "FILTERBY", "MODULE", "qa")
        self.generator = Generator([name for name in names if name.upper() not in HARMFUL])
        self.kinds: list[Callable[[int], None]] = [
            self.kill_worker,
            self.stop_worker,
            self.kill_connections,
            self.small_queue,
            self.pause,
            self.busy,
            self.wrong_input,
            self.wrong_input,
            self.save,
            self.rewrite,
            self.hog,
            self.kill_inference_worker,
            self.stop_inference_worker,
            self.slow_functions,
        ]

    def start(self) -> None:
        """Starts injecting faults."""
        self.thread.start()

    def stop(self) -> None:
        """Stops, and undoes all faults. Before the start and after the end, the call has no effect."""
        self.ending.set()
        if self.thread.is_alive():
            self.thread.join(60)

    def _run(self) -> None:
        while not self.ending.wait(self.chance.uniform(0.5, 1.5) * self.pause_seconds):
            kind, index = self.chance.choice(self.kinds), self.chance.randrange(SHARDS)
            try:
                with self.gate:
                    kind(index)
                self.counts[kind.__name__] += 1
            except (OSError, redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
                # A fault may kill the connection of the next fault, which then has no effect.
                self.failed.append(f"{kind.__name__}: {error}")

    def worker(self, index: int) -> int:
        """The process id of the worker; 0 between two workers."""
        return int(self.clients[index].info("everything")["qa_worker_pid"])

    def kill_worker(self, index: int) -> None:
        if pid := self.worker(index):
            os.kill(pid, signal.SIGKILL)

    def stop_worker(self, index: int) -> None:
        """Stops the worker for a while; in half of the cases until the server kills it."""
        pid = self.worker(index)
        if not pid:
            return
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.chance.choice([0.5, 2]))
        if self.chance.random() < 0.5 and self.worker(index) == pid:
            os.kill(pid, signal.SIGCONT)

    def inference_worker(self, index: int) -> int:
        """The process id of one of the inference workers; 0 while no inference worker runs."""
        found = inference_workers(int(self.clients[index].info("server")["process_id"]))
        return self.chance.choice(found) if found else 0

    def kill_inference_worker(self, index: int) -> None:
        if pid := self.inference_worker(index):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop_inference_worker(self, index: int) -> None:
        """Stops an inference worker for a while; in half of the cases until the worker replaces it."""
        pid = self.inference_worker(index)
        if not pid:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.chance.choice([0.5, 2]))
            if self.chance.random() < 0.5:
                os.kill(pid, signal.SIGCONT)

    def slow_functions(self, index: int) -> None:
        """Runs functions that never end, on all shards, and aborts them."""
        begun: list[str] = []
        try:
            for _ in range(2):
                begun.append(self.clients[index].execute_command("RG.PYEXECUTE", SLOW, "UNBLOCKING"))
            time.sleep(self.chance.choice([0.2, 1]))
        finally:
            for execution in begun:
                eventually(partial(self._aborted, index, execution), ABORT_SECONDS, ignore=(OSError, redis.RedisError))

    def _aborted(self, index: int, execution: str) -> bool:
        try:
            self.clients[index].execute_command("RG.ABORTEXECUTION", execution)
        except redis.ResponseError as error:
            if "does not exist" not in str(error):
                raise  # no worker runs now
        return True

    def kill_connections(self, index: int) -> None:
        self.clients[index].execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def small_queue(self, index: int) -> None:
        """Limits the queue to two jobs."""
        before = self.clients[index].config_get("qa.max-queue")["qa.max-queue"]
        self.clients[index].config_set("qa.max-queue", 2)
        try:
            time.sleep(1)
        finally:
            self.restore_queue(index, before)

    def restore_queue(self, index: int, value: str) -> None:
        """Restores the limit, with retries, because another fault may have killed the connection."""
        for _ in range(5):
            try:
                self.clients[index].config_set("qa.max-queue", value)
            except redis.ConnectionError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError("the size of the queue cannot be restored")

    def pause(self, index: int) -> None:
        self.clients[index].execute_command("CLIENT", "PAUSE", 400, self.chance.choice(["WRITE", "ALL"]))

    def busy(self, index: int) -> None:
        """Keeps the server busy for a while."""
        self.clients[index].eval(BUSY, 0)

    def wrong_input(self, index: int) -> None:
        """Sends commands of the fuzzer, except commands that would disturb the load."""
        made: list[Command] = [
            self.generator.of(self.chance, self.chance.choice(self.generator.public)) for _ in range(20)
        ]
        with self.system.client(index, socket_timeout=60) as client:
            for command in made:
                try:
                    client.execute_command(*[part if isinstance(part, bytes) else str(part) for part in command])
                except redis.ResponseError:
                    continue  # errors are expected

    def save(self, index: int) -> None:
        self.clients[index].execute_command("BGSAVE", "SCHEDULE")

    def rewrite(self, index: int) -> None:
        self.clients[index].execute_command("BGREWRITEAOF")

    def hog(self, index: int) -> None:
        """Runs a function that asks for more memory than the limit."""
        try:
            self.clients[index].execute_command("RG.PYEXECUTE", HOG)
        except redis.ResponseError:
            return
        raise RuntimeError("a function got more memory than its worker may have")
