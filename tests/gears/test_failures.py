"""Reports of failing functions: a traceback of the author's own lines, and one line with a code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import qa_cluster.gears
from qa_cluster.gears.scripts.host.script_errors import traceback_text
from qa_cluster.gears.shard.failures import GearsError, error_line

PACKAGE = Path(next(iter(qa_cluster.gears.__path__)))


def failure(*files: str, text: str = "two\nlines") -> Exception:
    """The error of a function in the last of these files. Each function is called from the previous file."""
    call, error = None, None
    for file in reversed(files):
        body = "call()" if call else f"raise ValueError({text!r})"
        namespace = {"call": call}
        exec(compile(f"def call_or_fail():\n    {body}\n", file, "exec"), namespace)
        call = namespace["call_or_fail"]
    try:
        assert call is not None
        call()
    except ValueError as raised:
        error = raised
    assert error is not None
    return error


def files_of(error: Exception) -> list[str]:
    """The files that a traceback shows."""
    lines = ast.literal_eval(traceback_text(error))
    assert lines[0] == "Traceback (most recent call last):\n"
    return [line.split('"')[1] for line in lines if line.startswith("  File")]


def test_a_failure_has_a_traceback_and_an_error_line() -> None:
    error = failure("<script s>")
    assert ast.literal_eval(traceback_text(error))[-1] == "ValueError: two\nlines\n"
    assert error_line(error) == "ERR ValueError: two lines (<script s>:2 in call_or_fail)"
    assert error_line(GearsError("WRONGTYPE not a string")) == "WRONGTYPE not a string"
    assert error_line(GearsError("Can not do it")) == "ERR Can not do it"


@pytest.mark.parametrize(
    "room", ["shard", "inference", "scripts/runs", "scripts/registrations", "scripts/interface", "process"]
)
def test_a_traceback_has_no_line_of_the_runtime(room: str) -> None:
    inside = str(PACKAGE / room / "any.py")
    error = failure(inside, "<script s>", inside)
    assert [name for name in files_of(error) if name.startswith(str(PACKAGE))] == []
    assert "<script s>" in files_of(error)
    assert error_line(error).endswith("(<script s>:2 in call_or_fail)")


def test_the_error_of_a_function_in_c_shows_no_line_of_the_runtime_either() -> None:
    inside = str(PACKAGE / "scripts" / "runs" / "any.py")
    error = failure(inside)
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None  # this test's own frame
    assert files_of(error) == []


def test_own_functions_count_as_user_code() -> None:
    own = str(PACKAGE / "functions" / "answering" / "any.py")
    assert own in files_of(failure(str(PACKAGE / "scripts" / "runs" / "any.py"), own))
