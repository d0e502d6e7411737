"""docs/compatibility.md, which the conformance tests write, has every AI.* and RG.* command of the module."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.servers import Server

ROOT = Path(__file__).resolve().parents[2]
# Internal commands, which clients do not send.
PRIVATE = {"RG.INNERHOOK", "RG.FROMPRIMARY"}


def test_every_command_has_a_verdict(server_binary: Path) -> None:
    document = (ROOT / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| `((?:AI|RG)\.[A-Z_]+)` \| .* \| (.+) \|$", document, re.MULTILINE)
    with Server(server_binary) as server, server.client() as client:
        known = client.execute_command("COMMAND LIST")
    names = {(name.decode() if isinstance(name, bytes) else name).upper() for name in known}
    present = {name for name in names if name.startswith(("AI.", "RG."))} - PRIVATE
    assert {command for command, _ in rows} == present
    assert all(re.match(r"same$|better: .|differs: .|left out: .+; instead: .", verdict) for _, verdict in rows)
