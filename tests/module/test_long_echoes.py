"""No error of the module contains a whole argument. Otherwise a caller could make replies and logs of any size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.fuzz.shapes import SHAPES
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

pytestmark = pytest.mark.hostile

BYTES = 200_000
MOST_CHARS = 600
LONG = ("x" * BYTES, "9" * BYTES, '"' * BYTES, "{" * BYTES)


def errors(reply: Any) -> Iterator[str]:
    """The errors in a reply, including error texts."""
    if isinstance(reply, redis.ResponseError):
        yield str(reply)
    elif isinstance(reply, list):
        for item in reply:
            yield from errors(item)
    elif isinstance(reply, str) and reply.startswith("(error)"):
        yield reply


# The worker of this test finishes no job, so jobs must soon time out.
SETTINGS = dict.fromkeys(("qa.job-timeout-ms", "qa.script-timeout-ms", "qa.hook-timeout-ms"), 50)


def test_no_error_repeats_a_long_argument(shared_binary: Path) -> None:
    chance = random.Random(37)
    with (
        Server(shared_binary, SETTINGS, worker=fake_worker("functions")) as server,
        server.client(encoding_errors="backslashreplace") as client,
    ):
        for name, maker in SHAPES.items():
            command = maker(chance)
            for place in range(1, len(command)):
                damaged = [*command[:place], chance.choice(LONG), *command[place + 1 :]]
                try:
                    reply = client.execute_command(*damaged)
                except redis.ResponseError as error:
                    reply = error
                for text in errors(reply):
                    assert len(text) <= MOST_CHARS, (name, place, text[:200])
