"""`X-Forwarded-For`: the service uses this header for the audit log only if the peer is a listed proxy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qa_cluster.api.__main__ import forwarded_by
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from tests.api.service_under_test import listening
from tests.client.scripted_cluster import ScriptedCluster

pytestmark = pytest.mark.hostile


@pytest.mark.parametrize(
    ("proxies", "logged"),
    [
        (None, "127.0.0.1"),
        ("10.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.9"),
        ("127.0.0.0/8, 10.0.0.1", "198.51.100.9"),
    ],
)
async def test_only_a_listed_proxy_sets_the_address_of_a_request(
    cluster: ScriptedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxies: str | None, logged: str
) -> None:
    log = tmp_path / "audit.jsonl"
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's own variable has no effect
    given = {} if proxies is None else {"forwarded_allow_ips": proxies}
    async with listening(cluster, audit_log=log, **given) as (_, client):
        # the first address is from the client, the second from the proxy
        headers = {"x-forwarded-for": "203.0.113.7, 198.51.100.9", "x-forwarded-proto": "https"}
        assert (await client.put("/documents/a", json={"text": "Ada."}, headers=headers)).is_success
    (line,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert line["from"] == logged


@pytest.mark.parametrize("text", ["*", "proxy.example", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.1 10.0.0.2"])
def test_invalid_proxy_lists_are_errors(text: str) -> None:
    with pytest.raises(ConfigError, match="forwarded_allow_ips"):
        forwarded_by(Settings(forwarded_allow_ips=text))
