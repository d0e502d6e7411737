"""The record of an API key: its text, its hash, its scopes, and what is refused."""

from __future__ import annotations

import hmac
import json
from hashlib import sha256
from typing import Any

import orjson
import pytest

from qa_cluster.access import records
from qa_cluster.access.records import ApiKey, KeyLimits, find, new_key, parse
from qa_cluster.errors import InvalidInput

NOW = 1_795_000_000


def made(**options: Any) -> tuple[ApiKey, str]:
    return new_key("the shop", options.pop("scopes", ["ask"]), now=NOW, **options)


def test_a_key_is_found_by_its_text_and_stored_without_its_secret() -> None:
    key, text = made(collections=["books", "default"], limits=KeyLimits(5, 2, 100), expires_in_seconds=60)
    identity, secret = parse(text.encode()) or ("", b"")
    assert identity == key.id and len(secret) == 43
    stored = key.to_json()
    assert ApiKey.from_json(stored) == key
    assert secret not in stored and text.encode() not in stored
    assert json.loads(stored)["digest"] == sha256(secret).hexdigest()
    assert "digest" not in key.to_dict()
    assert find({key.id: key}, text.encode()) is key
    assert [key.state(NOW + 59), key.state(NOW + 60), key.revoke(NOW).state(NOW)] == ["valid", "expired", "revoked"]
    assert key.allows("books") and not key.allows("other") and made()[0].allows("other")


def test_no_two_keys_are_alike() -> None:
    texts = {made()[1] for _ in range(100)}
    assert len({text.split("_", 2)[2] for text in texts}) == len({text.split("_")[1] for text in texts}) == 100


@pytest.mark.hostile
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text[:17] + ("A" if text[17] != "A" else "B") + text[18:],
        lambda text: text[:4] + "0" * 12 + text[16:],
        lambda text: text + "A",
        lambda text: text[:-1],
        lambda text: text + "\n",
        lambda text: text.upper(),
        lambda text: "",
        lambda text: text[:17],
        lambda text: text[17:],
    ],
)
def test_a_text_that_is_not_the_key_matches_no_key(change: Any) -> None:
    key, text = made()
    assert find({key.id: key}, change(text).encode()) is None


@pytest.mark.hostile
def test_secrets_are_compared_in_constant_time_also_those_of_unknown_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(records, "compare_digest", compare)
    key, text = made()
    _, other = made()
    secret = text.split("_", 2)[2].encode()
    assert find({key.id: key}, text.encode()) is key
    assert find({key.id: key}, other.encode()) is None
    assert compared[0] == (sha256(secret).digest(), sha256(secret).digest())
    assert len(compared) == 2 and {len(one) for pair in compared for one in pair} == {32}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scopes": []}, "got none"),
        ({"scopes": ["ask", "root"]}, "'root'"),
        ({"collections": ["Books"]}, "collection must be"),
        ({"collections": [f"c{number}" for number in range(101)]}, "101"),
        ({"expires_in_seconds": 0}, "got 0"),
    ],
)
def test_invalid_options_of_a_key_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        made(**options)


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\nb", "a\u202eb", "\ud800"])
def test_names_that_would_harm_a_list(name: str) -> None:
    with pytest.raises(InvalidInput, match="name of a key must be 1 to 100"):
        new_key(name, ["ask"], now=NOW)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", 10**10])
def test_limits_are_whole_numbers(value: Any) -> None:
    with pytest.raises(InvalidInput, match="concurrent must be an integer from 1"):
        KeyLimits(concurrent=value)


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b"null", b'{"limits": {}, "scopes": [], "collections": [], "x": 1}']
)
def test_a_damaged_record_is_no_key(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="record of an API key"):
        ApiKey.from_json(raw)


@pytest.mark.parametrize(
    ("name", "value"),
    [("collections", ""), ("collections", {}), ("collections", ["A"]), ("scopes", "admin"), ("scopes", [5]),
     ("expires", "never"), ("expires", 1e18), ("created", None), ("revoked", "no"), ("name", None)],
)  # fmt: skip
def test_a_record_with_values_of_other_types_is_no_key(name: str, value: Any) -> None:
    key, _ = new_key("the shop", ["ask"], collections=["books"], now=1_795_000_000)
    record = orjson.loads(key.to_json())
    assert ApiKey.from_json(orjson.dumps(record)) == key
    with pytest.raises(InvalidInput, match="record of an API key cannot be read"):
        ApiKey.from_json(orjson.dumps(record | {name: value}))


def test_scopes_are_sorted_and_unique() -> None:
    assert made(scopes=["admin", "ask", "admin"])[0].scopes == ("ask", "admin")
