"""A worker whose triggers, events and scripts do what their arguments say.

Options: --silent (no beats after the first), --version N (in QA.HELLO), --bare (registers nothing), --crash (ends).

Triggers (`RG.TRIGGER name arg..`): `echo` replies its arguments, and `who` its caller. Any other trigger takes a word:

- `die` (kills its worker), `die-once` and `hang-once` (only at the first attempt), `die-later` (hangs at the first
  attempt and dies at the next)
- `hang MS`, `sleep MS`, `freeze MS` (sleeps with the interpreter lock), `compute N` (adds N numbers with that lock),
  `held NAME` (waits until the server's folder has a file of that name)
- `note TEXT` (appends it to the list `noted`), `raw RESP`, `error TEXT`, `status WORD ARG..` (of QA.DONE)

A script (`RG.PYEXECUTE json`) controls the worker and replies JSON. `{"settings": 1}` returns the worker's settings.
`{"run": [[command..]..]}` runs commands on a link and returns their replies. `{"atomic": [[command..]..], "lease": ms,
"pause": ms, "die": 1}` does that in an atomic block.

The worker appends events on keys `ev:*` to the list `seen`. A hooked miss of `hook:<word>:..` replies `answer of
<key>`, or does what the word says. While the server's folder has a file `no-room-for-functions`, the worker has no
capacity for user functions.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from tests.harness.fake_worker.link import Link, ReplyError, Word, array, bulk
from tests.harness.fake_worker.worker import Worker, wait_for_file

ARGS_KEYS = (
    b"*8\r\n$5\r\nregex\r\n$5\r\nhook*\r\n$10\r\neventTypes\r\n*0\r\n"
    b"$8\r\nkeyTypes\r\n*0\r\n$12\r\nhookCommands\r\n*0\r\n"
)
ARGS_TRIGGER = b"*4\r\n$7\r\ntrigger\r\n$4\r\necho\r\n$7\r\ninorder\r\n:0\r\n"
LEASE_MS = 60_000  # limited by `qa.atomic-lease-ms`


def die() -> None:
    """Ends the process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


class Behaviour(Worker):
    """The worker."""

    def __init__(self, options: Sequence[str]) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--silent", action="store_true")
        parser.add_argument("--bare", action="store_true")
        parser.add_argument("--crash", action="store_true")
        parser.add_argument("--version", default=self.version)
        self.options = parser.parse_args(options)
        if self.options.crash:
            raise SystemExit(3)
        self.version = self.options.version
        super().__init__(options)

    def beating(self, count: int) -> bool:
        """Whether to send another beat; a silent worker sends only one."""
        return count == 0 or not self.options.silent

    def register(self) -> None:
        """Registers the triggers and the events, unless this is a replica."""
        if self.options.bare:
            return
        rows = [
            *(("CommandReader", name, "", name, "", "", ARGS_TRIGGER) for name in ("echo", "do")),
            ("KeysReader", "hook", "", "hook:*", "keymiss", "get,mget", ARGS_KEYS),
            ("KeysReader", "ev", "the events", "ev:*", "", "", ARGS_KEYS),
            ("KeysReader", "miss", "", "miss:*", "keymiss", "", ARGS_KEYS),
        ]
        registrations: list[Word] = []
        for reader, name, description, pattern, events, commands, arguments in rows:
            registrations += [f"id-{name}", reader, "async_local", description, pattern, events, commands, arguments]
            registrations += ["pd", "user", 0]
        try:
            self.run_link.call("QA.REGISTER", "fake", "", "source", b"\x00payload", 5, *registrations)
        except ReplyError as error:
            if not str(error).startswith("READONLY"):
                raise

    def wait_and_room(self) -> list[Word]:
        """The arguments of QA.NEXT. Without capacity the wait is short, so that the worker soon checks again."""
        return [100, 0, 0] if os.path.exists("no-room-for-functions") else super().wait_and_room()

    def notice(self, kind: str, arguments: list[Any]) -> None:
        """Records the notice."""
        self.run_link.call("RPUSH", "notices", " ".join([kind, *map(str, arguments)]))

    def refused(self, _number: int, _kind: str, error: ReplyError) -> None:
        """Records the refusal of a late outcome."""
        self.run_link.call("RPUSH", "late", str(error))

    def do_trigger(self, attempt: int, _id: str, user: str, name: str, *args: str) -> list[Word]:
        """RG.TRIGGER and RG.TRIGGERONKEY."""
        if name in ("echo", "who"):
            return ["OK", array([user] if name == "who" else args)]
        return self.behave(attempt, *args)

    def behave(self, attempt: int, word: str = "", value: str = "", *rest: str) -> list[Word]:
        """Does what the first argument says."""
        if word == "die" or (word == "die-once" and attempt == 1) or (word == "die-later" and attempt > 1):
            die()
        if word in ("hang", "sleep") or (word in ("hang-once", "die-later") and attempt == 1):
            time.sleep(float(value or 3600000) / 1000)
        if word == "freeze":
            ctypes.PyDLL(None).usleep(int(value) * 1000)
        if word == "compute":
            sum(range(int(value)))
        if word == "held":
            wait_for_file(value)
        if word == "note":
            self.run_link.call("RPUSH", "noted", value)
        if word == "error":
            return ["ERR", value]
        if word == "status":
            return [value, *rest]
        return ["OK", value.encode() if word == "raw" else array([word, value, str(attempt)])]

    def do_event(self, attempt: int, registration: str, event: str, key: str, has_client: int) -> list[Word]:
        """Handles a changed or missed key."""
        if not has_client:
            self.run_link.call("RPUSH", "seen", f"{registration} {event} {key}")
            return ["OK"]
        word = key.split(":")[1]
        if word == "none":
            return ["OK"]
        if word == "skip":
            return ["SKIP"]
        if word == "held":
            wait_for_file("go")
        if word in ("die", "hang", "error"):
            status = self.behave(attempt, word, "3000" if word == "hang" else "ERR broken")
            if status[0] == "ERR":
                return status
        return ["OVERRIDE", bulk(f"answer of {key}")]

    def do_onregistered(self, _attempt: int, registration: str) -> list[Word]:
        """Handles a notice about lost events."""
        self.run_link.call("RPUSH", "repaired", registration)
        return ["OK"]

    def do_command(self, _attempt: int, *args: str) -> list[Word]:
        """Answers a command."""
        return ["OK", array(args)]

    def do_model_load(self, *_args: str) -> list[Word]:
        """Accepts a model, with one input and one output."""
        return ["OK", b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n"]

    def do_script_load(self, *_args: str) -> list[Word]:
        """Accepts a script."""
        return ["OK"]

    def do_script(self, _attempt: int, source: str, *options: str) -> list[Word]:
        """Runs the commands in a script, as the module docstring says."""
        if not source.startswith("{"):
            return ["OK", array([source, *map(str, options)])]
        orders = json.loads(source)
        if "settings" in orders:
            return ["OK", bulk(json.dumps(self.settings))]
        replies = self.atomic(orders) if "atomic" in orders else [self.run_link.attempt(*w) for w in orders["run"]]
        return ["OK", bulk(json.dumps(replies))]

    def atomic(self, orders: dict[str, Any]) -> list[Any]:
        """Runs commands in an atomic block."""
        link: Link = self.link()
        link.send("QA.ATOMIC", orders.get("lease", LEASE_MS))
        replies = [self.control.read()]
        replies += [self.control.attempt(*words) for words in orders["atomic"]]
        if orders.get("die"):
            die()
        time.sleep(orders.get("pause", 0) / 1000)
        self.control.send("END")
        replies.append(link.read_element())
        if str(replies[-1]).startswith("-"):
            replies.append(self.control.read_element())  # END arrived after the end of the block
        return replies
