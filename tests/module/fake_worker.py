"""A scriptable worker for tests: speaks docs/worker-protocol.md with the standard library only, and misbehaves.

Options: --silent (no beats after the first), --version N (in QA.HELLO), --bare (registers nothing), --crash (ends).

Triggers (`RG.TRIGGER name arg..`): `echo` replies its arguments, `who` its caller; any other takes a word: `die`
(SIGKILL itself), `die-once` (only at the first attempt), `hang MS`, `sleep MS`, `garbage`, `raw RESP`, `error TEXT`,
`status WORD ARG..` (of QA.DONE). A script (`RG.PYEXECUTE json`) tells its settings for `{"settings": 1}`; else it
remote-controls it: `{"run": [[command..]..]}` runs commands on a link, `{"atomic": [[command..]..], "lease": ms,
"pause": ms, "die": 1}` in an atomic block; the reply is the JSON of their replies. Events on keys `ev:*` are appended
to the list `seen`; a hooked miss of `hook:<word>:..` replies `answer of <key>`, or does what the word says.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

Word = str | bytes | int

ARGS_KEYS = (
    b"*8\r\n$5\r\nregex\r\n$5\r\nhook*\r\n$10\r\neventTypes\r\n*0\r\n"
    b"$8\r\nkeyTypes\r\n*0\r\n$12\r\nhookCommands\r\n*0\r\n"
)
ARGS_TRIGGER = b"*4\r\n$7\r\ntrigger\r\n$4\r\necho\r\n$7\r\ninorder\r\n:0\r\n"


class ReplyError(Exception):
    """An error reply."""


def encode(words: Sequence[Word]) -> bytes:
    """A command."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


def bulk(text: str) -> bytes:
    """A bulk string."""
    data = text.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def array(texts: Sequence[str]) -> bytes:
    """An array of bulk strings."""
    return b"*%d\r\n" % len(texts) + b"".join(bulk(text) for text in texts)


class Link:
    """A RESP2 connection over any socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.file = connected.makefile("rb")
        self.lock = threading.Lock()

    def send(self, *words: Word) -> None:
        """Sends without waiting for the reply."""
        self.socket.sendall(encode(words))

    def call(self, *words: Word) -> Any:
        """Sends and waits."""
        with self.lock:
            self.send(*words)
            return self.read()

    def read(self) -> Any:
        """One reply."""
        line = self.file.readline()
        if not line:
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ReplyError(rest.decode(errors="surrogateescape"))
        if kind == b"+":
            return rest.decode(errors="surrogateescape")
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if kind == b"*":
            return [self.read_element() for _ in range(length)]
        data = self.file.read(length + 2)[:-2]
        return data.decode(errors="surrogateescape")

    def read_element(self) -> Any:
        """A reply inside an array: an error there is data."""
        try:
            return self.read()
        except ReplyError as error:
            return f"-{error}"


class FakeWorker:
    """The worker."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.control = Link(socket.socket(fileno=3))
        self.hello = json.loads(self.control.file.readline())
        self.done = self.link()
        self.run_link = self.link()
        self.next = self.link()

    def link(self) -> Link:
        """A new connection that is a link."""
        if self.hello["socket"]:
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(self.hello["socket"])
        else:
            connected = socket.create_connection((self.hello["host"], self.hello["port"]))
        link = Link(connected)
        pairs = link.call("QA.HELLO", self.options.version, self.hello["token"])
        self.settings = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return link

    def beat(self) -> None:
        """Sends beats for as long as it may."""
        link = self.link()
        count = 0
        while count == 0 or not self.options.silent:
            count += 1
            link.call("QA.BEAT", 1000000 + count, 1, 2, 3, 4, 0)
            time.sleep(0.1)

    def register(self) -> None:
        """Registers the triggers and the events, unless this is a replica."""
        registrations: list[Word] = []
        for name in ("echo", "do"):
            registrations += [f"id-{name}", "CommandReader", "async_local", "", name, "", "", ARGS_TRIGGER, "pd"]
        registrations += ["id-hook", "KeysReader", "async_local", "", "hook:*", "keymiss", "get,mget", ARGS_KEYS, "pd"]
        registrations += ["id-ev", "KeysReader", "async_local", "the events", "ev:*", "", "", ARGS_KEYS, "pd"]
        registrations += ["id-miss", "KeysReader", "async_local", "", "miss:*", "keymiss", "", ARGS_KEYS, "pd"]
        try:
            self.run_link.call("QA.REGISTER", "fake", "", "source", b"\x00payload", 5, *registrations)
        except ReplyError as error:
            if not str(error).startswith("READONLY"):
                raise

    def serve(self) -> None:
        """Takes jobs until the server goes."""
        threading.Thread(target=self.beat, daemon=True).start()
        self.run_link.call("QA.SESSIONS")  # else it is replaced when sessions were loaded before it came
        if not self.options.bare:
            self.register()
        self.run_link.call("QA.READY")
        print("fake worker is ready", flush=True)
        while True:
            for job in self.next.call("QA.NEXT", 16, 1000) or []:
                threading.Thread(target=self.work, args=(job,), daemon=True).start()

    def work(self, job: list[Any]) -> None:
        """Does one job."""
        number, kind, attempt, _timeout = job[:4]
        if number == 0:
            self.run_link.call("RPUSH", "notices", " ".join([kind, *map(str, job[4:])]))
            return
        try:
            status: list[Word] = list(getattr(self, "do_" + kind.replace(".", "_"))(attempt, *job[4:]))
        except ReplyError as error:
            status = ["ERR", str(error)]
        try:
            self.done.call("QA.DONE", number, *status)
        except ReplyError as error:
            self.run_link.call("RPUSH", "late", str(error))

    def do_trigger(self, attempt: int, _id: str, user: str, name: str, *args: str) -> list[Word]:
        """RG.TRIGGER and RG.TRIGGERONKEY."""
        if name in ("echo", "who"):
            return ["OK", array([user] if name == "who" else args)]
        return self.behave(attempt, *args)

    def behave(self, attempt: int, word: str = "", value: str = "", *_rest: str) -> list[Word]:
        """What the word says."""
        if word == "die" or (word == "die-once" and attempt == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if word in ("hang", "sleep"):
            time.sleep(float(value or 3600000) / 1000)
        if word == "error":
            return ["ERR", value]
        if word == "status":
            return [value, *_rest]
        if word == "garbage":
            return ["OK", b"*2\r\n$3\r\nabc\r\n"]
        return ["OK", value.encode() if word == "raw" else array([word, value, str(attempt)])]

    def do_event(self, attempt: int, registration: str, event: str, key: str, has_client: int) -> list[Word]:
        """A key changed or was missed."""
        if not has_client:
            self.run_link.call("RPUSH", "seen", f"{registration} {event} {key}")
            return ["OK"]
        word = key.split(":")[1]
        if word == "none":
            return ["OK"]
        if word == "skip":
            return ["SKIP"]
        if word in ("die", "die-once", "hang", "error"):
            status = self.behave(attempt, word, "3000" if word == "hang" else "ERR broken")
            if status[0] == "ERR":
                return status
        return ["OVERRIDE", bulk(f"answer of {key}")]

    def do_onregistered(self, _attempt: int, registration: str) -> list[Word]:
        """Events were lost."""
        self.run_link.call("RPUSH", "repaired", registration)
        return ["OK"]

    def do_command(self, _attempt: int, *args: str) -> list[Word]:
        """A command that the worker answers."""
        return ["OK", array(args)]

    def do_model_load(self, *_args: str) -> list[Word]:
        """A model that has one input and one output."""
        return ["OK", b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n"]

    def do_script_load(self, *_args: str) -> list[Word]:
        """A script that is good."""
        return ["OK"]

    def do_script(self, _attempt: int, source: str, *options: str) -> list[Word]:
        """Remote control."""
        if not source.startswith("{"):
            return ["OK", array([source, *map(str, options)])]
        orders = json.loads(source)
        if "settings" in orders:
            return ["OK", bulk(json.dumps(self.settings))]
        if "atomic" in orders:
            replies = self.atomic(orders)
        else:
            replies = [self.try_call(self.run_link, words) for words in orders["run"]]
        return ["OK", bulk(json.dumps(replies))]

    def try_call(self, link: Link, words: list[str]) -> Any:
        """A reply, or the error as a string."""
        try:
            return link.call(*words)
        except ReplyError as error:
            return f"-{error}"

    def atomic(self, orders: dict[str, Any]) -> list[Any]:
        """Runs commands in an atomic block."""
        link = self.link()
        link.send("QA.ATOMIC", orders.get("lease", 1000))
        replies = [self.control.read()]
        for words in orders["atomic"]:
            replies.append(self.try_call(self.control, words))
        if orders.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(orders.get("pause", 0) / 1000)
        self.control.send("END")
        try:
            replies.append(link.read())
        except ReplyError as error:
            replies.append(f"-{error}")
            replies.append(self.try_call_read())
        return replies

    def try_call_read(self) -> Any:
        """What the control socket says to the END of a block that is over."""
        try:
            return self.control.read()
        except ReplyError as error:
            return f"-{error}"


def main() -> None:
    """Runs the worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("--version", default="2")
    options = parser.parse_args()
    if options.crash:
        raise SystemExit(3)
    try:
        FakeWorker(options).serve()
    except (EOFError, OSError):
        print("server is gone", flush=True)


if __name__ == "__main__":
    main()
