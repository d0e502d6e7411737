"""What every fake worker does: it connects, beats and takes jobs as docs/worker-protocol.md says.

A behaviour is a subclass of `Worker` whose method `do_KIND` (with underscores for dots) says how a job of a kind ends:
it returns the words after `QA.DONE id`. A job of a kind without a method gets no answer.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.harness.fake_worker.link import Link, ReplyError, Word

CONTROL_FD = 3
BEAT_SECONDS = 0.1
AGAIN_SECONDS = 0.05
NEXT_MS = 10_000
HELD_SECONDS = 120.0


def wait_for_file(name: str) -> None:
    """Waits for a file in the server's folder, which a test creates (`Server.let_go`) to let the worker continue."""
    deadline = time.monotonic() + HELD_SECONDS
    while not os.path.exists(name) and time.monotonic() < deadline:
        time.sleep(0.01)


class Worker:
    """A worker that obeys the protocol."""

    version = "9"  # the version of the protocol in QA.HELLO
    decode = True  # whether jobs are texts or bytes
    jobs_at_once = 16  # the number of jobs at the same time; above 1, each job has its own thread

    def __init__(self, _options: Sequence[str]) -> None:
        self.control = Link(socket.socket(fileno=CONTROL_FD))
        self.opening: dict[str, Any] = json.loads(self.control.file.readline())
        self.settings: dict[str, Any] = {}

    def link(self) -> Link:
        """Opens a connection that is a link."""
        if self.opening["socket"]:
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(self.opening["socket"])
        else:
            connected = socket.create_connection((self.opening["host"], self.opening["port"]))
        link = Link(connected, decode=self.decode)
        pairs = link.call("QA.HELLO", self.version, self.opening["token"])
        self.settings = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return link

    def connect(self) -> None:
        """Opens the links that all workers have."""
        self.done = self.link()
        self.run_link = self.link()
        self.next = self.link()

    def beating(self, _count: int) -> bool:
        """Whether to send another beat after this number of beats."""
        return True

    def beat(self) -> None:
        """Sends beats while `beating` allows it."""
        link = self.link()
        count = 0
        while self.beating(count):
            count += 1
            link.call("QA.BEAT", "rss_bytes", 1000000 + count, "batches", 1)
            time.sleep(BEAT_SECONDS)

    def register(self) -> None:
        """Registers the triggers and events that cause jobs."""

    def begin(self) -> None:
        """Connects, registers and becomes ready."""
        self.connect()
        threading.Thread(target=self.beat, daemon=True).start()
        # a worker that skips this is replaced if the server has loaded sessions
        self.run_link.call("QA.SESSIONS")
        self.register()
        self.run_link.call("QA.READY")
        print("fake worker is ready", flush=True)

    def serve(self) -> None:
        """Takes jobs until the server ends."""
        self.begin()
        while True:
            try:
                jobs = self.next.call("QA.NEXT", self.jobs_at_once, *self.wait_and_room()) or []
            except ReplyError:  # CLUSTERDOWN: the server unblocks all clients while the cluster is down
                time.sleep(AGAIN_SECONDS)
                continue
            for job in jobs:
                self.take(job)

    def wait_and_room(self) -> list[Word]:
        """How long a request for jobs waits, and optionally the worker's capacity for user functions."""
        return [NEXT_MS]

    def take(self, job: list[Any]) -> None:
        """Works on a job, in this thread or in a separate one."""
        if self.jobs_at_once == 1:
            self.work(job)
        else:
            threading.Thread(target=self.work, args=(job,), daemon=True).start()

    def work(self, job: list[Any]) -> None:
        """Does one job, or handles a notice."""
        number, kind, attempt, _timeout, _came, *arguments = job
        if not self.decode:
            kind = kind.decode()
        if number == 0:
            self.notice(kind, arguments)
            return
        does = getattr(self, "do_" + kind.replace(".", "_"), None)
        if does is None:
            return
        try:
            outcome: list[Word] = does(attempt, *arguments)
        except ReplyError as error:
            outcome = ["ERR", str(error)]
        try:
            self.done.call("QA.DONE", number, *outcome)
        except ReplyError as error:
            self.refused(number, kind, error)

    def notice(self, kind: str, arguments: list[Any]) -> None:
        """Handles a notice, which gets no answer."""

    def refused(self, number: int, kind: str, error: ReplyError) -> None:
        """Called if the server did not accept the outcome of a job."""
