"""`qa-cluster keys` creates, lists, revokes and clears API keys on a server without reader and worker."""

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
    """A function that runs `qa-cluster keys` and checks its exit code."""
    with plain_server() as server:
        with server.client() as client:
            client.set(PARTITIONS_KEY, 4)

        def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
            done = run_here(("--cluster-url", f"redis://127.0.0.1:{server.port}", "keys", *arguments))
            assert done.returncode == code, done.stdout + done.stderr
            return done

        yield run


def test_a_key_is_printed_once_listed_without_its_secret_and_revoked(keys: Keys) -> None:
    assert "no keys: the REST service requires no key" in keys("list").stdout
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
    assert identity in shown and "3 concurrent" in shown and secret not in shown
    assert f"key {identity} (the shop) revoked" in keys("revoke", identity).stdout
    assert json.loads(keys("list", "--json").stdout)["data"][0]["state"] == "revoked"
    assert "confirm with --yes" in keys("clear", code=2).stderr
    assert "1 key deleted" in keys("clear", "--yes").stdout


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
def test_wrong_arguments_are_refused(keys: Keys, arguments: tuple[str, ...], code: int, said: str) -> None:
    refused = " ".join(keys(*arguments, code=code).stderr.replace("│", " ").split())
    assert said in refused


def test_the_audit_log_has_the_user_and_the_change_but_no_secret(keys: Keys, tmp_path: Path) -> None:
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


def given(number: int, **changes: object) -> str:
    """A line for `keys import`."""
    text = f"qac_{number:012x}_" + "s" * 43
    return json.dumps({"key": text, "name": f"key {number}", "scopes": ["ask"]} | changes)


def test_imported_keys_are_stored_once_with_their_rights(keys: Keys, tmp_path: Path) -> None:
    file, log = tmp_path / "keys.json", tmp_path / "audit.jsonl"
    limits = {"requests_per_second": 20}
    lines = [given(1), "", given(2, scopes=["write", "ask"], collections=["books"], limits=limits, expires=4102444800)]
    file.write_text("\n".join(lines) + "\n")
    assert "2 keys stored, 0 already in the cluster" in keys("import", str(file), "--set", f"audit_log={log}").stdout
    first, second = json.loads(keys("list", "--json").stdout)["data"]
    assert (first["name"], first["scopes"], first["state"]) == ("key 1", ["ask"], "valid")
    assert (second["scopes"], second["collections"], second["expires"]) == (["ask", "write"], ["books"], 4102444800)
    assert second["limits"] == {"requests_per_second": 20, "concurrent": None, "sentences_per_day": None}
    assert [json.loads(line)["id"] for line in log.read_text().splitlines()] == [first["id"], second["id"]]
    assert "s" * 43 not in log.read_text()

    keys("revoke", first["id"])
    again = keys("import", str(file))
    assert (
        "0 keys stored, 2 already in the cluster" in again.stdout
        and f"key {first['id']} (key 1) is revoked" in again.stderr
    )
    assert [key["state"] for key in json.loads(keys("list", "--json").stdout)["data"]] == ["revoked", "valid"]

    for changed in (given(2), given(2, key="qac_000000000002_" + "t" * 43)):
        file.write_text(f"{given(3)}\n{changed}\n")
        refused = " ".join(keys("import", str(file), code=2).stderr.replace("│", " ").split())
        assert "key 000000000002 (key 2) has" in refused and "in the cluster" in refused
    assert len(json.loads(keys("list", "--json").stdout)["data"]) == 2
    keys("clear", "--yes")


def test_the_output_of_create_can_be_imported(keys: Keys, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(keys("create", "the shop", "--scope", "ask", "--concurrent", "3", "--json").stdout)
    (made,) = json.loads(keys("list", "--json").stdout)["data"]
    assert "0 keys stored, 1 already in the cluster" in keys("import", str(file)).stdout
    keys("clear", "--yes")
    assert "1 key stored" in keys("import", str(file)).stdout
    (found,) = json.loads(keys("list", "--json").stdout)["data"]
    assert {**found, "created": 0} == {**made, "created": 0}
    keys("clear", "--yes")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: must be a JSON object"),
        (given(2, key="s" * 43), "line 2: the text of a key must be qac_, 12 hex digits"),
        (given(2, key=7), "line 2: the text of a key must be qac_"),
        (given(1), "line 2: key 000000000001 is already in line 1"),
        (given(2, scope="ask"), "line 2: 'scope': unknown, known are collections, expires, key, limits, name, scopes"),
        ('{"key": "x"}', "line 2: name, scopes is missing"),
        (given(2, scopes=["root"]), "got 'root'"),
        (given(2, scopes="ask"), "line 2: scopes and collections must be lists"),
        (given(2, collections=["Books"]), "line 2: collection must be"),
        (given(2, collections=[7]), "line 2: collection must be"),
        (given(2, limits={"requests": 1}), "line 2: limits must be a JSON object with any of requests_per_second"),
        (given(2, limits=[1]), "line 2: limits must be a JSON object"),
        (given(2, limits={"concurrent": 0}), "line 2: concurrent must be an integer from 1"),
        (given(2, expires="tomorrow"), "line 2: a key expires at a time in seconds since 1970, got 'tomorrow'"),
        (given(2, expires=10**12), "line 2: a key expires at a time"),
        (given(2, name="a\nb"), "line 2: name of a key must be 1 to 100 printable characters"),
    ],
)
def test_invalid_lines_are_refused_and_nothing_is_stored(keys: Keys, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(f"{given(1)}\n{line}\n")
    refused = " ".join(keys("import", str(file), code=2).stderr.replace("│", " ").split())
    assert said in refused and "sss" not in refused.replace(str(file), "")
    assert "no keys" in keys("list").stdout


@pytest.mark.hostile
def test_a_complete_key_instead_of_its_id_is_not_repeated_in_the_error(keys: Keys) -> None:
    refused = keys("revoke", "qac_0123456789ab_" + "s" * 43, code=2)
    assert "12 hex digits" in refused.stderr and "sss" not in refused.stderr
