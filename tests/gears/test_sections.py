"""Interruptions of a section at every instruction at which the interpreter can raise the exception."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from qa_cluster.gears.scripts.calling import sections
from qa_cluster.gears.scripts.calling.sections import Aborted, CodeSection, shielded

raise_later = ctypes.pythonapi.PyThreadState_SetAsyncExc


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "LOOK_SECONDS", 0)


class Interrupter:
    """Does what `CodeSection.interrupt` does in another thread, at chosen steps of the section's own bytecode.

    It starts an interruption before one instruction, and raises the exception before a later one. It checks the shield
    at the start, or late, when it raises.

    It is a trace function, and must not get the exception itself. So its last call raises the exception in an
    instruction after which the interpreter does not check for exceptions, and tracing has ended by then.
    """

    def __init__(self, section: CodeSection, enters: int, raises: int, looks_late: bool) -> None:
        self.section, self.enters, self.raises, self.looks_late = section, enters, raises, looks_late
        self.step = 0
        self.inside = self.shielded = False

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        threads: list[ctypes.c_ulong] = []
        if event == "opcode":
            self.step += 1
            if self.step == self.enters:
                self._enter()
            if self.step == self.raises:
                threads = self._raise()
        [*map(raise_later, threads, [ctypes.py_object(Aborted)])]
        return self

    def _enter(self) -> None:
        if self.section.running and self.section._interrupting.acquire(blocking=False):
            self.inside = True
            self.section.interrupted = not self.looks_late
            self.shielded = self.section._shielded

    def _raise(self) -> list[ctypes.c_ulong]:
        if not self.inside:
            return []
        self.inside = False
        if self.looks_late:
            self.section.interrupted = True
            self.shielded = self.section._shielded
        sys.settrace(None)
        self.section._interrupting.release()
        return [] if self.shielded else [ctypes.c_ulong(threading.get_ident())]


class HeldLock:
    """The lock of a running interruption. The section's first check raises the exception and releases the lock."""

    def __init__(self) -> None:
        self.seen = 0

    def locked(self) -> bool:
        self.seen += 1
        threads = [ctypes.c_ulong(threading.get_ident())] if self.seen == 1 else []
        [*map(raise_later, threads, [ctypes.py_object(Aborted)])]
        return self.seen == 1

    def acquire(self, blocking: bool) -> bool:
        return not blocking

    def release(self) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Work:
    """The code of a section. Its middle part is shielded: this part must run completely or not at all."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def __call__(self) -> str:
        abs(-1)
        with shielded():
            self.begun += abs(-1)
            self.ended += abs(-1)
        return "done".strip()

    def failing(self) -> str:
        self()
        raise ValueError("failed")


def outcome(section: CodeSection, code: Callable[[], str], trace: Interrupter) -> str:
    """Run the section; return how it ended. The assertions hold for interruptions at any place."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ended = section.run(code)
    except Aborted:
        ended = "aborted"
    except ValueError as error:
        ended = str(error)
    try:
        sys.settrace(before)
        section.interrupt()  # too late
        for _ in range(3):
            time.sleep(0)
    except Aborted:
        ended = "an interruption came after the section"
    finally:
        sys.settrace(before)
    assert not section.running
    assert not trace.inside, "the section ended during an interruption"
    assert not section._shielded
    assert sections._local.section is None
    return ended


def steps(code: Callable[[], str]) -> int:
    trace = Interrupter(CodeSection(), 0, 0, looks_late=False)
    outcome(trace.section, code, trace)
    return trace.step


def places(code: Callable[[], str]) -> Iterator[tuple[int, int]]:
    last = steps(code)
    for enters in range(1, last + 1):
        for raises in range(enters, last + 1):
            yield enters, raises


@pytest.mark.parametrize(("ending", "looks_late"), [("done", False), ("failed", True)])
def test_an_interruption_at_any_instruction_ends_the_code_or_has_no_effect(ending: str, looks_late: bool) -> None:
    seen: set[str] = set()
    for enters, raises in places(Work() if ending == "done" else Work().failing):
        section, work = CodeSection(), Work()
        trace = Interrupter(section, enters, raises, looks_late)
        how = outcome(section, work if ending == "done" else work.failing, trace)
        assert how in (ending, "aborted"), (enters, raises)
        assert work.begun == work.ended, (enters, raises)
        assert section._interrupting.acquire(blocking=False)
        seen.add(how)
    assert seen == {ending, "aborted"}


@pytest.mark.parametrize("ending", ["done", "failed"])
def test_two_interruptions_can_overlap(ending: str) -> None:
    twice = 0
    for place in range(1, steps(Work() if ending == "done" else Work().failing) + 1):
        section, work, held = CodeSection(), Work(), HeldLock()
        section._interrupting = held  # type: ignore[assignment]
        how = outcome(section, work if ending == "done" else work.failing, Interrupter(section, place, place, False))
        assert how in (ending, "aborted"), place
        assert work.begun == work.ended, place
        assert held.seen, place
        twice += section.interrupted
    assert twice
