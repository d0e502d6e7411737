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
    """Waits for a file in the server's folder, which a test makes (`Server.let_go`) once all else is as it needs it."""
    deadline = time.monotonic() + HELD_SECONDS
    while not os.path.exists(name) and time.monotonic() < deadline:
        time.sleep(0.01)


class Worker:
    """A worker that obeys the protocol."""

    version = "8"  # of the protocol, as QA.HELLO says it
    decode = True  # whether jobs are texts or bytes
    jobs_at_once = 16  # more than one: each in a thread of its own

    def __init__(self, _options: Sequence[str]) -> None:
        self.control = Link(socket.socket(fileno=CONTROL_FD))
        self.opening: dict[str, Any] = json.loads(self.control.file.readline())
        self.settings: dict[str, Any] = {}

    def link(self) -> Link:
        """A new connection that is a link."""
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
        """Whether another beat follows this number of beats."""
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
        self.run_link.call("QA.SESSIONS")  # else the module replaces it when sessions were loaded before it came
        self.register()
        self.run_link.call("QA.READY")
        print("fake worker is ready", flush=True)

    def serve(self) -> None:
        """Takes jobs until the server goes."""
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
        """How long a request for jobs waits and, if it says so, its room for users' functions."""
        return [NEXT_MS]

    def take(self, job: list[Any]) -> None:
        """Works on a job, here or in a thread of its own."""
        if self.jobs_at_once == 1:
            self.work(job)
        else:
            threading.Thread(target=self.work, args=(job,), daemon=True).start()

    def work(self, job: list[Any]) -> None:
        """Does one job, or takes a notice."""
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
        """Takes a notice, which wants no answer."""

    def refused(self, number: int, kind: str, error: ReplyError) -> None:
        """Learns that the server did not take the outcome of a job."""
