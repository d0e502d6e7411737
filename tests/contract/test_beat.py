"""The module, the worker and the worker protocol name the same values of `QA.BEAT`."""

from __future__ import annotations

import ast
import re

from tests.harness.programs import ROOT

MODULE = re.findall(r'^    \{"(\w+)", "(\w+)", BEAT_OF_', (ROOT / "native/worker/beat.c").read_text(), re.MULTILINE)


def test_all_name_the_same_values() -> None:
    section = (ROOT / "docs" / "worker-protocol.md").read_text().split("### Values of `QA.BEAT`\n")[1].split("\n#")[0]
    assert re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section, re.MULTILINE) == MODULE
    (sent,) = [
        [key.value for key in node.keys if isinstance(key, ast.Constant)]
        for path in (ROOT / "gears").rglob("heartbeat.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Dict)
    ]
    assert sent == [name for name, _ in MODULE]
    assert len(MODULE) > 10
