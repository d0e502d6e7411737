"""Commands that a function must not run. The list of commands that wait for the worker matches the module's source.

A function must not run a command that waits for the worker, because the worker waits for the function. A command waits
if its handler in the C source can reach `RedisModule_BlockClient`. A running server lists all commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from qa_cluster.gears.scripts.interface.inside import ANSWERED_INSIDE
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.gears.shard.forbidden import WAIT_FOR_WORKER, refuse_forbidden
from tests.harness.servers import Server, execute

NATIVE = Path(__file__).resolve().parents[2] / "native"
# this command does not block links of the worker, only clients
ANSWERS_THE_WORKER_AT_ONCE = {"RG.INNERHOOK"}
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"^(?!typedef|struct|enum)[a-z][\w \t*]*?(\w+)\([^;{}]*\) \{$(.*?)^\}", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r'\{\s*"((?:AI|RG|QA\.INDEX)\.\w+)",\s*(?!NULL)(\w+),\s*"', re.IGNORECASE)


class Source:
    """The functions of C files, and which of them block a client."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.handlers: dict[str, tuple[int, str]] = {}
        self._called: dict[tuple[int, str], set[str]] = {}
        for file, commented in enumerate(texts):
            text = _COMMENT.sub("", commented)
            for name, body in _FUNCTION.findall(text):
                self._called[file, name] = set(re.findall(r"\b(\w+)\(", body))
            for command, handler in _COMMAND.findall(text):
                self.handlers[command.upper()] = (file, handler)

    def _find(self, file: int, name: str) -> list[tuple[int, str]]:
        """The functions with the name of a call: those of the calling file, otherwise those of other files."""
        own = (file, name)
        return [own] if own in self._called else [known for known in self._called if known[1] == name]

    def blocks(self, command: str) -> bool:
        """Whether the handler of a command can reach the call that blocks its client."""
        reached: set[tuple[int, str]] = set()
        waiting = self._find(*self.handlers[command])
        while waiting:
            function = waiting.pop()
            if "RedisModule_BlockClient" in self._called[function]:
                return True
            reached.add(function)
            called = (found for name in self._called[function] for found in self._find(function[0], name))
            waiting += [found for found in called if found not in reached]
        return False


def module_source() -> Source:
    return Source(
        path.read_text() for path in sorted(NATIVE.rglob("*.c")) if "tests" not in path.relative_to(NATIVE).parts
    )


def test_commands_that_wait_for_the_worker_match_the_modules_source() -> None:
    source = module_source()
    blocking = {command for command in source.handlers if source.blocks(command)}
    assert blocking == WAIT_FOR_WORKER | ANSWERS_THE_WORKER_AT_ONCE


def test_commands_answered_inside_functions_would_otherwise_wait_for_the_worker() -> None:
    assert ANSWERED_INSIDE < WAIT_FOR_WORKER


def test_every_command_of_the_module_is_checked(server_binary: Path) -> None:
    with Server(server_binary) as server:
        named = {name.upper() for name in execute(server, "COMMAND LIST", "FILTERBY", "MODULE", "qa")}
    assert module_source().handlers.keys() == {name for name in named if name.startswith(("AI.", "RG.", "QA.INDEX."))}


def test_a_planted_command_that_blocks_is_found() -> None:
    jobs = "int submit(Ctx *ctx) {\n    return RedisModule_BlockClient(ctx);\n}\n"
    handlers = (
        "static int ask(Ctx *ctx) {\n    if (ctx) {\n        submit(ctx);\n    }\n    return 0;\n}\n"
        "int new_command(Ctx *ctx) {\n    return ask(ctx);\n}\n"
        "int plain_command(Ctx *ctx) {\n    /* no submit(ctx) here */\n    return reply(ctx);\n}\n"
        'const CommandSpec COMMANDS[] = {{"rg.new", new_command, "write"}, {"AI.PLAIN", plain_command, "readonly"}};\n'
    )
    source = Source([jobs, handlers])
    assert {command: source.blocks(command) for command in source.handlers} == {"RG.NEW": True, "AI.PLAIN": False}


@pytest.mark.parametrize("command", ["qa.next", "rg.pyexecute", "ai.modelexecute", "multi", "HELLO"])
def test_forbidden_commands_are_refused_in_every_spelling(command: str) -> None:
    with pytest.raises(GearsError, match=command):
        refuse_forbidden(command)


def test_other_commands_are_not_refused() -> None:
    for command in ("GET", "AI.TENSORGET", "RG.DUMPREGISTRATIONS", "qa.index.put"):
        refuse_forbidden(command)
