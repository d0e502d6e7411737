"""The records of a `KeysReader` on a real server: keys of mixed types over many pages, and the cost of reading them."""

from __future__ import annotations

import ast
from typing import Any

from tests.harness.servers import Server

RECORDS = "GB().map(lambda r: (r['key'], r['type'], r['value'])).run({pattern!r}, {options})"


def records(shard: Server, pattern: str, **options: Any) -> list[Any]:
    words = ", ".join(f"{name}={value!r}" for name, value in options.items())
    with shard.client() as client:
        script = RECORDS.format(pattern=pattern, options=words)
        results, errors = client.execute_command("RG.PYEXECUTE", script)
    assert errors == []
    return sorted(ast.literal_eval(result) for result in results)


def calls(shard: Server, command: str) -> int:
    with shard.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def fill(shard: Server, each: int) -> list[Any]:
    expected: list[Any] = []
    with shard.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(each):
            pipe.set(f"m:s{number}", "" if number == 7 else f"v{number}")
            expected.append((f"m:s{number}", "string", "" if number == 7 else f"v{number}"))
            pipe.hset(f"m:h{number}", mapping={"f": str(number)})
            expected.append((f"m:h{number}", "hash", {"f": str(number)}))
            pipe.rpush(f"m:l{number}", "a", number)
            expected.append((f"m:l{number}", "list", ["a", str(number)]))
            pipe.zadd(f"m:z{number}", {"a": 1})
            expected.append((f"m:z{number}", "zset", None))
        pipe.execute()
    return sorted(expected)


def test_keys_of_mixed_types_are_read_by_their_types(shard: Server) -> None:
    expected = fill(shard, 600)
    assert records(shard, "m:*") == expected
    for kind in ("string", "hash", "list", "zset"):
        assert records(shard, "m:*", keyTypes=[kind]) == [record for record in expected if record[1] == kind]
    assert records(shard, "m:*", keyTypes=["zset", "list"]) == [r for r in expected if r[1] in ("zset", "list")]
    assert records(shard, "m:s7", noScan=True) == [("m:s7", "string", "")]
    # the reader sees the same for a key that is deleted between the scan and the read
    assert records(shard, "m:none", noScan=True) == [("m:none", "empty", None)]
    assert records(shard, "m:none", noScan=True, keyTypes=["string"]) == []
    assert records(shard, "m:h7", noScan=True, keyTypes=["string"]) == []


def test_keys_of_one_type_are_read_at_once(shard: Server) -> None:
    with shard.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(3000):
            pipe.set(f"s:{number}", number)
            pipe.hset(f"h:{number}", "f", number)
        pipe.execute()
    assert len(records(shard, "s:*")) == 3000
    assert (calls(shard, "get"), calls(shard, "type")) == (3000, 0)
    assert len(records(shard, "h:*")) == 3000
    assert calls(shard, "hgetall") == 3000
    # the reader tries GET only for the first page of 500 scanned keys
    assert calls(shard, "get") - 3000 == calls(shard, "type") < 600
