"""docs/client-errors.md describes every error that clients raise, with the code, status and retry of its class."""

from __future__ import annotations

import re

import pytest

import qa_cluster.client
from qa_cluster import errors
from qa_cluster.errors import QAError
from tests.docs.blocks import ROOT

ROW = re.compile(r"^\| `(\w+)` \| `([A-Z]+)` \| (\d+) \| (yes|no) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
PUBLIC, OTHERS = "Exceptions in `qa_cluster.client`", "Other exceptions"


def rows(heading: str) -> dict[str, tuple[str, str, str]]:
    """The table under a heading: code, status and retry by the name of the exception."""
    document = (ROOT / "docs" / "client-errors.md").read_text()
    section = document.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {name: (code, status, retry) for name, code, status, retry in ROW.findall(section)}


def facts(kind: type[QAError]) -> tuple[str, str, str]:
    return kind.resp_code, str(kind.http_status), "yes" if kind.retryable else "no"


def public() -> dict[str, type[QAError]]:
    found = {name: getattr(qa_cluster.client, name) for name in qa_cluster.client.__all__}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, QAError)}


def test_every_public_exception_has_a_correct_row() -> None:
    assert len(public()) > 10
    assert rows(PUBLIC) == {name: facts(kind) for name, kind in public().items()}


def test_every_other_exception_that_clients_raise_has_a_correct_row() -> None:
    others = {kind.__name__: kind for kind in (*errors.LEAVES, errors.CannotWrite, errors.MissingRights)}
    assert rows(OTHERS) == {name: facts(kind) for name, kind in others.items() if name not in public()}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("| `QueueFull` | `OVERLOADED` | 503 | yes | when | what |", [("QueueFull", "OVERLOADED", "503", "yes")]),
        ("| `QueueFull` | `OVERLOADED` | 503 | yes | when |", []),
    ],
)
def test_planted_rows(row: str, found: list[tuple[str, ...]]) -> None:
    assert ROW.findall(row) == found
