"""Records per second of functions over many keys, compared with a client that does the same in Python.

There are three runs: map, filter and count (each shard sends one number); the same, counted by a key (each shard sends
its counts to the owners of the keys); and grouped by a key without counting first (every record moves).
"""

from __future__ import annotations

import ast
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qa_cluster.keys import slot
from tests.harness.clusters import ready_shards
from tests.harness.servers import Server

from .report import Report, median

KEYS = 100_000
SHARDS = (1, 3)
PAGE = 500
GROUPS = 100
LEAST = 500
SOURCE = f"""
def parse(record):
    group, amount = record["value"].split(",")
    return group, int(amount)

def large(sale):
    return sale[1] >= {LEAST}

def group_of(sale):
    return sale[0]

GB("KeysReader").map(parse).filter(large).{{end}}.run("sale:*")
"""
ENDS = {
    "map, filter, count": "count()",
    "map, filter, countby (repartition of the counts)": "countby(group_of)",
    "map, filter, groupby (repartition of the records)": (
        "groupby(group_of, lambda group, total, sale: (total or 0) + 1)"
    ),
}


Counts = dict[str, int]


def run(report: Report, binary: Path, rounds: int, keys: int = KEYS, shards: tuple[int, ...] = SHARDS) -> None:
    """Each function and the client on each number of shards."""
    rows = []
    for count in shards:
        with ready_shards(binary, count) as servers:
            _fill(servers, keys)
            clients = [server.client(socket_timeout=120) for server in servers]
            rows += [[name, str(count), *_measured(clients, end, keys, rounds)] for name, end in ENDS.items()]
            for client in clients:
                client.close()
    report.table(
        "Functions: records per second",
        ["", "shards", "function", "client", "against the client"],
        rows,
        f"{keys} string keys, wall time of RG.PYEXECUTE; client: redis-py, SCAN COUNT {PAGE}, the page's GETs as one"
        f" pipeline, the same function in Python, shard after shard; medians of {rounds} rounds [least–most]",
    )


def _measured(clients: list[Any], end: str, keys: int, rounds: int) -> list[str]:
    """The cells of one function: the function and the client, measured in turn."""
    expected, groups = _expected(keys, by_group=end != "count()"), _expected(keys, by_group=True)
    ours, plain = [], []
    for _ in range(rounds):
        plain.append(keys / _timed(lambda: _client_side(clients), groups))
        ours.append(keys / _timed(lambda: _function(clients[0], end), expected))
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    return [median(ours, 0), median(plain, 0), median(ratios, 2) + " ×"]


def _sale(number: int) -> tuple[str, int]:
    return f"group{number % GROUPS}", number * 7919 % 1000


def _expected(keys: int, *, by_group: bool) -> Counts:
    counted = Counter(group for group, amount in map(_sale, range(keys)) if amount >= LEAST)
    return dict(counted) if by_group else {"": counted.total()}


def _fill(servers: list[Server], keys: int) -> None:
    """Write each key on its shard, whose slots are an even share."""
    share = 16384 // len(servers)
    clients = [server.client() for server in servers]
    pipelines = [client.pipeline(transaction=False) for client in clients]
    for number in range(keys):
        key = f"sale:{number}"
        group, amount = _sale(number)
        pipelines[min(slot(key) // share, len(servers) - 1)].set(key, f"{group},{amount}")
        if number % 10_000 == 9_999 or number == keys - 1:
            for pipe in pipelines:
                pipe.execute()
    for client in clients:
        client.close()


def _timed(call: Callable[[], Counts], expected: Counts) -> float:
    """Seconds that `call` takes; RuntimeError when it counts wrong."""
    started = time.perf_counter()
    counted = call()
    seconds = time.perf_counter() - started
    if counted != expected:
        raise RuntimeError(f"counted {counted}, expected {expected}")
    return seconds


def _function(client: Any, end: str) -> Counts:
    results, errors = client.execute_command("RG.PYEXECUTE", SOURCE.format(end=end))
    if errors:
        raise RuntimeError(f"{len(errors)} errors, the first: {errors[0]}")
    if end == "count()":
        return {"": int(results[0])}
    groups = map(ast.literal_eval, results)
    return {group["key"]: group["value"] for group in groups}


def _client_side(clients: list[Any]) -> Counts:
    counted: Counter[str] = Counter()
    for client in clients:
        cursor = 0
        while True:
            cursor, keys = client.scan(cursor, match="sale:*", count=PAGE)
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.get(key)
            for value in pipe.execute():
                group, amount = value.split(",")
                if int(amount) >= LEAST:
                    counted[group] += 1
            if cursor == 0:
                break
    return dict(counted)
