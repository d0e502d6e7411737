"""`qa-cluster keys`: makes, lists, revokes and clears API keys, on a server without reader or worker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qa_cluster.keys import PARTITIONS_KEY
from tests.client.scripted_cluster import plain_server
from tests.harness.commands import run_here

Keys = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def keys() -> Iterator[Keys]:
    """Runs `qa-cluster keys` and checks its exit code."""
    with plain_server() as server:
        with server.client() as client:
            client.set(PARTITIONS_KEY, 4)

        def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
            done = run_here(("--cluster-url", f"redis://127.0.0.1:{server.port}", "keys", *arguments))
            assert done.returncode == code, done.stdout + done.stderr
            return done

        yield run


def test_a_key_is_printed_once_listed_without_its_secret_and_revoked(keys: Keys) -> None:
    assert "no keys: the REST service asks for none" in keys("list").stdout
    made = keys(
        "create", "the shop", "--scope", "ask", "--scope", "search", "--collection", "books", "--concurrent", "3"
    )
    text = made.stdout.strip()
    prefix, identity, secret = text.split("_", 2)
    assert prefix == "qac" and len(secret) == 43
    assert f"keys revoke {identity}" in made.stderr and secret not in made.stderr
    listed = keys("list", "--json")
    assert secret not in listed.stdout and "digest" not in listed.stdout
    (found,) = json.loads(listed.stdout)["data"]
    assert (found["id"], found["name"], found["state"]) == (identity, "the shop", "valid")
    assert (found["scopes"], found["collections"]) == (["ask", "search"], ["books"])
    assert found["limits"] == {"requests_per_second": None, "concurrent": 3, "sentences_per_day": None}
    shown = keys("list").stdout
    assert identity in shown and "3 at a time" in shown and secret not in shown
    assert f"key {identity} (the shop) revoked" in keys("revoke", identity).stdout
    assert json.loads(keys("list", "--json").stdout)["data"][0]["state"] == "revoked"
    assert "say --yes" in keys("clear", code=2).stderr
    assert "1 key removed" in keys("clear", "--yes").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("create", "x"), 2, "--scope"),
        (("create", "x", "--scope", "root"), 2, "'root' is not one of ask, search, write, admin"),
        (("create", "x", "--scope", "ask", "--collection", "Books"), 2, "collection must be 1 to 64"),
        (("create", "x", "--scope", "ask", "--concurrent", "0"), 2, "--concurrent"),
        (("create", "x" * 101, "--scope", "ask"), 2, "1 to 100 printable characters"),
        (("revoke", "0123456789ab"), 1, "no such key: '0123456789ab'"),
    ],
)
def test_wrong_words_are_refused(keys: Keys, arguments: tuple[str, ...], code: int, said: str) -> None:
    refused = " ".join(keys(*arguments, code=code).stderr.replace("│", " ").split())
    assert said in refused


def test_the_audit_log_has_who_and_what_and_no_secret(keys: Keys, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    to = ("--set", f"audit_log={log}")
    text = keys("create", "the shop", "--scope", "ask", *to).stdout.strip()
    identity = text.split("_")[1]
    keys("revoke", identity, *to)
    keys("clear", "--yes", *to)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["key.create", "key.revoke", "keys.clear"]
    assert all(line["user"] and line["from"].startswith("cli ") and line["time"].endswith("Z") for line in lines)
    assert (lines[0]["id"], lines[0]["name"], lines[0]["scopes"]) == (identity, "the shop", ["ask"])
    assert text.split("_", 2)[2] not in log.read_text()
    refused = keys("create", "x", "--scope", "ask", "--set", f"audit_log={tmp_path}", code=2)
    assert "audit_log" in refused.stderr
    assert "no keys" in keys("list").stdout


@pytest.mark.hostile
def test_a_whole_key_in_the_place_of_its_id_is_not_repeated(keys: Keys) -> None:
    refused = keys("revoke", "qac_0123456789ab_" + "s" * 43, code=2)
    assert "12 hex digits" in refused.stderr and "sss" not in refused.stderr
