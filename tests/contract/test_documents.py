"""The documents say what is there: every command of the module and every setting, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from qa_cluster import __version__
from qa_cluster.config import SETTINGS
from tests.harness.servers import Server

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROTOCOL = (ROOT / "docs" / "worker-protocol.md").read_text()
# Made by the command filter, for no client to send.
PRIVATE = {"RG.INNERHOOK"}


def test_commands(server_binary: Path) -> None:
    wire = README.split("## Commands")[1].split("## REST")[0]
    named = set(re.findall(r"`((?:AI|RG)\.[A-Z_]+)`", wire)) | set(
        re.findall(r"^\| `(QA\.[A-Z]+)", PROTOCOL, re.MULTILINE)
    )
    with Server(server_binary) as server, server.client() as client:
        known = {name.decode() if isinstance(name, bytes) else name for name in client.execute_command("COMMAND LIST")}
    present = {name.upper() for name in known if name.lower().startswith(("ai.", "rg.", "qa."))}
    assert named == present - PRIVATE


def test_settings_that_documents_name_exist() -> None:
    text = README + (ROOT / "docs" / "rest-service.md").read_text()
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text)) - {"answer_ttl"}
    fields = {"top_k", "min_score", "retriever_k", "doc_id", "timeout_ms", "no_answer", "request_id"}
    modules = {"qa_cluster", "token_type_ids", "input_ids", "call_next", "qa_rg_nexecutions", "xquad_en_a", "covidqa_a"}
    assert named - fields - modules <= set(SETTINGS)


def test_version_is_in_the_changelog() -> None:
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text()
