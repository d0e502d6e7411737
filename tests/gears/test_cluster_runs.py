"""Runs and registrations over three shards."""

from __future__ import annotations

import signal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster.hashtags import hashtag_for_slot
from tests.harness.clusters import Cluster, meet
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute, pairs
from tests.harness.workers import WORKER


def test_runs_cover_all_shards(cluster: Cluster) -> None:
    with cluster.client() as client:
        for number in range(300):
            client.set(f"k:{number}", number % 3)
    first, second, third = cluster.nodes
    ids = {execute(node, "CLUSTER", "MYID") for node in cluster.nodes}
    results, errors = execute(first, "RG.PYEXECUTE", "GB('ShardsIDReader').run()")
    assert (set(results), errors) == (ids, [])
    assert execute(second, "RG.PYEXECUTE", "GB().count().run('k:*')") == [["300"], []]
    results, errors = execute(third, "RG.PYEXECUTE", "GB().countby(lambda r: r['value']).run('k:*')")
    assert sorted(results) == [f"{{'key': '{n}', 'value': 100}}" for n in range(3)]
    results, errors = execute(first, "RG.PYEXECUTE", "GB().map(lambda r: int(r['value'])).avg().run('k:*')")
    assert (results, errors) == (["1.0"], [])
    results, _ = execute(first, "RG.PYEXECUTE", "GB('ShardsIDReader').run(mode='async_local')")
    assert results == [execute(first, "CLUSTER", "MYID")]
    results, errors = execute(second, "RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda r: 1 // 0).run()")
    assert (results, len(errors)) == ([], 3)


def test_repartition_moves_records_to_the_owner_of_their_key(cluster: Cluster) -> None:
    with cluster.client() as client:
        for number in range(200):
            client.set(f"k:{number}", "x" * 20_000)
    script = """
def write(r):
    execute('SET', 'copy:' + r['key'], r['value'])
GB().repartition(lambda r: 'copy:' + r['key']).foreach(write).count().run('k:*')
"""
    assert execute(cluster.nodes[1], "RG.PYEXECUTE", script) == [["200"], []]
    with cluster.client() as client:
        assert len(client.get("copy:k:7")) == 20_000
    sent = "GB('ShardsIDReader').flatmap(lambda r: ['x' * 3000000]).repartition(lambda r: 'foo').map(len).run()"
    assert execute(cluster.nodes[0], "RG.PYEXECUTE", sent) == [["3000000"] * 3, []]


def test_registrations_are_on_all_shards(cluster: Cluster) -> None:
    script = """
def started():
    execute('SET', 'started:{%s}' % hashtag(), 1)
GB('CommandReader').map(lambda r: hashtag()).register(trigger='tag', mode='async_local', onRegistered=started)
where = GB('CommandReader').repartition(lambda r: r[1]).map(lambda r: [r[1], hashtag()])
where.register(trigger='where', convertToStr=False)
"""
    assert execute(cluster.nodes[0], "RG.PYEXECUTE", script, "ID", "s") == "OK"
    tags = [execute(node, "RG.TRIGGER", "tag")[0] for node in cluster.nodes]
    assert len(set(tags)) == 3
    for node, tag in zip(cluster.nodes, tags, strict=True):
        eventually(lambda node=node, tag=tag: execute(node, "GET", f"started:{{{tag}}}") == "1")  # type: ignore[misc]
    found = {tuple(execute(node, "RG.TRIGGER", "where", "foo")[0]) for node in cluster.nodes}
    assert len(found) == 1
    changed = "GB('CommandReader').map(lambda r: 'v2').register(trigger='tag')"
    with pytest.raises(redis.ResponseError, match="trigger already registered: tag"):
        execute(cluster.nodes[2], "RG.PYEXECUTE", changed, "ID", "other")
    assert execute(cluster.nodes[2], "RG.PYEXECUTE", changed, "ID", "s", "UPGRADE") == "OK"
    assert [execute(node, "RG.TRIGGER", "tag") for node in cluster.nodes] == [["v2"] * 3] * 3
    with pytest.raises(redis.ResponseError, match="subcommand not found"):
        execute(cluster.nodes[0], "RG.TRIGGER", "where", "foo")


def test_a_silent_shard_prevents_the_registration_on_all_shards(cluster: Cluster) -> None:
    silent = cluster.nodes[1]
    with silent.stopped_worker():
        script = "GB('CommandReader').register(trigger='t')"
        with pytest.raises(redis.ResponseError) as told:
            execute(cluster.nodes[0], "RG.PYEXECUTE", script)
    assert execute(silent, "CLUSTER", "MYID") in str(told.value)
    assert "did not answer within" in str(told.value)
    for node in cluster.nodes:
        eventually(lambda node=node: execute(node, "RG.DUMPREGISTRATIONS") == [])  # type: ignore[misc]


WAYS_TO_WAIT = """
import time
def blocks(r):
    if r == slow:
        time.sleep(11)
    return r
async def awaits(r):
    if r == slow:
        await asyncio.sleep(11)
    return r
def future(r):
    if r != slow:
        return r
    made = gearsFuture()
    def work():
        time.sleep(11)
        made.continueRun(r)
    Thread(target=work).start()
    return made
"""


def test_a_run_is_not_idle_while_a_function_of_any_shard_runs(cluster: Cluster) -> None:
    """The function runs for more than twice the idle time. The parts that wait for its records are not idle either."""
    first, second, _ = cluster.nodes
    for node in cluster.nodes:
        execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", "5000")
    runs = []
    for slow in (first, second):
        script = f"{WAYS_TO_WAIT}slow = {execute(slow, 'CLUSTER', 'MYID')!r}\n"
        for waits, moves in product(("blocks", "awaits", "future"), ("", ".repartition(str)", ".collect()")):
            steps = f"GB('ShardsIDReader').map({waits}){moves}.count().run()"
            runs.append(execute(first, "RG.PYEXECUTE", script + steps, "UNBLOCKING"))
    with first.client(socket_timeout=120) as client:
        found = [client.execute_command("RG.GETRESULTSBLOCKING", run) for run in runs]
    assert found == [[["3"], []]] * len(runs)


def test_run_without_progress_ends(cluster: Cluster) -> None:
    first, silent, _ = cluster.nodes
    for node in cluster.nodes:
        execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", "3000")
    script = f"""
async def f(r):
    if r == '{execute(silent, "CLUSTER", "MYID")}':
        await asyncio.sleep(3600)
    return 1
GB('ShardsIDReader').map(f).run()
"""
    name = execute(first, "RG.PYEXECUTE", script, "UNBLOCKING")
    eventually(lambda: name in str(execute(silent, "RG.DUMPEXECUTIONS")))
    with silent.stopped_worker():
        assert execute(first, "RG.GETRESULTSBLOCKING", name) == [["1"] * 2, ["Execution max idle reached"]]
    # the silent shard is notified of the end of the run
    eventually(lambda: [e[3] for e in execute(silent, "RG.DUMPEXECUTIONS") if e[1] == name] == ["aborted"])


def test_a_shard_that_gets_slots_later_also_gets_the_sessions(own_cluster: Cluster, server_binary: Path) -> None:
    execute(
        own_cluster.nodes[0],
        "RG.PYEXECUTE",
        "GB('CommandReader').map(lambda r: 'here').register(trigger='t', mode='async_local')",
    )
    with Server(server_binary, {"cluster-enabled": "yes"}, worker=WORKER) as joining:
        joining.wait_ready(30)
        meet(joining, own_cluster.nodes[0])
        name = execute(joining, "CLUSTER", "MYID")
        eventually(lambda: len(execute(joining, "CLUSTER", "SHARDS")) == 4)
        owner = execute(own_cluster.nodes[0], "CLUSTER", "MYID")
        execute(joining, "CLUSTER", "SETSLOT", 0, "IMPORTING", owner)
        for node in (joining, *own_cluster.nodes):
            eventually(lambda node=node: len(execute(node, "CLUSTER", "SHARDS")) == 4)  # type: ignore[misc]
            execute(node, "CLUSTER", "SETSLOT", 0, "NODE", name)
        assert eventually(lambda: execute(joining, "RG.TRIGGER", "t"), 30, ignore=redis.ResponseError) == ["here"]


def test_records_that_cannot_be_pickled_are_errors_and_the_others_arrive(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    script = f"""
import threading
def record(shard):
    return threading.Lock() if shard == {execute(second, "CLUSTER", "MYID")!r} else shard
GB('ShardsIDReader').map(record).run(convertToStr=False)
"""
    results, errors = execute(first, "RG.PYEXECUTE", script)
    # the shard with the failed record still sends its end markers, so the run does not end as idle
    assert (len(results), len(errors)) == (2, 1)
    assert "cannot pickle" in errors[0]


def test_an_execution_is_known_to_all_shards(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    ids = {execute(node, "CLUSTER", "MYID") for node in cluster.nodes}
    script = "GB('ShardsIDReader').repartition(str).map(len).run()"
    execution_id = execute(first, "RG.PYEXECUTE", script, "UNBLOCKING")
    assert execute(first, "RG.GETRESULTSBLOCKING", execution_id) == [["40"] * 3, []]

    def plans(node: Server, *where: str) -> dict[str, dict[str, Any]]:
        entries = map(pairs, execute(node, "RG.GETEXECUTION", execution_id, *where))
        return {entry["shard_id"]: pairs(entry["execution_plan"]) for entry in entries}

    for node in cluster.nodes:
        # repeated, because the reply omits a shard that answers late
        told = eventually(lambda node=node: found if set(found := plans(node)) == ids else None)  # type: ignore[misc]
        assert {plan["status"] for plan in told.values()} == {"done"}
        assert [pairs(step)["type"] for step in told[min(ids)]["steps"]] == ["repartition", "map", "map", "collect"]
        own = execute(node, "CLUSTER", "MYID")
        assert set(plans(node, "SHARD")) == {own}
    origin = plans(first)[execute(first, "CLUSTER", "MYID")]
    assert (origin["shards_received"], origin["shards_completed"]) == (2, 2)
    assert execute(third, "RG.DROPEXECUTION", execution_id) == "OK"
    for node in cluster.nodes:
        with pytest.raises(redis.ResponseError, match="execution plan does not exist"):
            execute(node, "RG.GETEXECUTION", execution_id)
    with pytest.raises(redis.ResponseError, match="execution does not exist"):
        execute(second, "RG.ABORTEXECUTION", execution_id)


def test_an_execution_is_aborted_from_another_shard(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    script = "async def slow(r):\n    await asyncio.sleep(60)\nGB('ShardsIDReader').map(slow).run()"
    for node in cluster.nodes:
        execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", 60000)
    execution_id = execute(first, "RG.PYEXECUTE", script, "UNBLOCKING")

    def states(node: Server) -> list[str]:
        return [entry[3] for entry in execute(node, "RG.DUMPEXECUTIONS") if entry[1] == execution_id]

    for node in cluster.nodes:
        eventually(lambda node=node: states(node) == ["running"])  # type: ignore[misc]
    assert execute(second, "RG.ABORTEXECUTION", execution_id) == "OK"
    for node in cluster.nodes:
        eventually(lambda node=node: states(node) == ["aborted"])  # type: ignore[misc]
    assert "execution was aborted" in execute(first, "RG.GETRESULTS", execution_id)[1]


def test_callers_rights_reach_other_shards(cluster: Cluster) -> None:
    first, *_ = cluster.nodes
    for node in cluster.nodes:
        execute(node, "ACL SETUSER", "tenant", "on", ">p", "~a:*", "+@all", "-@admin")
    with cluster.client() as client:
        client.mset_nonatomic({f"{kind}:{number}": "x" for kind in "ab" for number in range(30)})
    script = """
async def count(r):
    results, errors = await GB('KeysReader').map(lambda r: r['value']).filter(bool).count().run(r[1])
    return [results, len(errors)]
def read(r):
    return execute('GET', r[1])
GB('CommandReader').map(count).register(trigger='count', convertToStr=False, mode='async_local')
GB('CommandReader').repartition(lambda r: r[1]).map(read).register(trigger='read', convertToStr=False)
"""
    assert execute(first, "RG.PYEXECUTE", script) == "OK"
    assert execute(first, "RG.TRIGGER", "count", "b:*") == [[["30"], 0]]
    with first.client(username="tenant", password="p") as tenant:
        assert tenant.execute_command("RG.TRIGGER", "count", "a:*") == [[["30"], 0]]
        assert tenant.execute_command("RG.TRIGGER", "count", "b:*")[0][0] != ["30"]
        for number in range(6):
            assert tenant.execute_command("RG.TRIGGER", "read", f"a:{number}") == ["x"] * 3
            with pytest.raises(redis.ResponseError, match=r"may not run .* or touch its keys"):
                tenant.execute_command("RG.TRIGGER", "read", f"b:{number}")


def test_a_migrated_stream_is_read_on_its_new_shard(cluster: Cluster) -> None:
    source, target, _ = cluster.nodes
    slot = 100  # a slot of the first shard
    tag = hashtag_for_slot(slot)
    script = f"GB('StreamReader').foreach(lambda r: execute('INCR', 'n:{{{tag}}}')).register(prefix='in:*', batch=10)"
    assert execute(source, "RG.PYEXECUTE", script) == "OK"
    key = f"in:{{{tag}}}"
    for number in range(5):
        execute(source, "XADD", key, "*", "n", number)
    group = ("XPENDING", key, "__gears_consumer_group__")
    # the stream's group is created meanwhile
    eventually(lambda: execute(source, *group)["pending"] == 5, ignore=redis.ResponseError)
    ids = [execute(node, "CLUSTER", "MYID") for node in (source, target)]
    execute(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    execute(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
    execute(source, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    for node in (target, *cluster.nodes):
        execute(node, "CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    eventually(lambda: execute(target, "GET", f"n:{{{tag}}}") == "5")
    eventually(lambda: execute(target, "XLEN", key) == 0)


def test_a_run_ends_with_an_error_when_a_shard_dies(shared_cluster: Cluster) -> None:
    """The last test of this file: its shared cluster lacks a shard afterwards."""
    first, second, _ = shared_cluster.nodes
    for node in shared_cluster.nodes:
        execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", 4000)
        # a long timeout: a server that detects the down cluster would unblock its clients with CLUSTERDOWN
        execute(node, "CONFIG", "SET", "cluster-node-timeout", 60_000)
    dying = execute(second, "CLUSTER", "MYID")
    waits = f"if r == '{dying}':\n        await asyncio.sleep(3600)"
    script = f"async def slow(r):\n    {waits}\n    return r\nGB('ShardsIDReader').map(slow).run()"
    execution_id = execute(first, "RG.PYEXECUTE", script, "UNBLOCKING")
    # a shard that is down at the start of the run causes another error
    eventually(lambda: execution_id in [entry[1] for entry in execute(second, "RG.DUMPEXECUTIONS")])
    second.stop(signal.SIGKILL)
    results, errors = execute(first, "RG.GETRESULTSBLOCKING", execution_id)
    assert errors == ["Execution max idle reached"]
    assert len(results) == 2
