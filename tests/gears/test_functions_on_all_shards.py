"""What functions of RedisGears rely on in a cluster: triggers on all shards, rights, session globals, noScan."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute


def registered(cluster: Cluster, script: str, *options: str) -> None:
    """Run a script that registers functions; return when all shards have its registrations."""
    assert execute(cluster.nodes[0], "RG.PYEXECUTE", script, *options) == "OK"
    wanted = sorted(entry[1] for entry in execute(cluster.nodes[0], "RG.DUMPREGISTRATIONS"))
    for node in cluster.nodes:
        eventually(lambda node=node: sorted(e[1] for e in execute(node, "RG.DUMPREGISTRATIONS")) == wanted)  # type: ignore[misc]


def refusal(node: Server, *command: str) -> str:
    with pytest.raises(redis.ResponseError) as told:
        execute(node, *command)
    return str(told.value)


TRIGGERS = """
GB('CommandReader').count().register(trigger='everywhere')
GB('CommandReader').count().register(trigger='here', mode='async_local')
GB('CommandReader').map(lambda r: [r, hashtag()]).register(trigger='arguments', convertToStr=False)
GB('CommandReader').map(lambda r: hashtag()).register(trigger='uncollected', collect=False)
def fail_on(record):
    if hashtag() == record[1]:
        raise ValueError('not on ' + record[1])
    return 'fine'
GB('CommandReader').map(fail_on).register(trigger='fails')
seen = []
def note(record):
    seen.append(record[1])
    return len(seen)
GB('CommandReader').map(note).register(trigger='note', convertToStr=False)
"""


def test_an_async_trigger_runs_on_all_shards_and_a_local_one_does_not(cluster: Cluster) -> None:
    registered(cluster, TRIGGERS)
    tags = set()
    for node in cluster.nodes:
        assert execute(node, "RG.TRIGGER", "everywhere") == ["3"]
        assert execute(node, "RG.TRIGGER", "here") == ["1"]
        called = execute(node, "RG.TRIGGER", "arguments", "a", "b")
        assert [record for record, _ in called] == [["arguments", "a", "b"]] * 3
        tags |= {tag for _, tag in called}
        assert len(execute(node, "RG.TRIGGER", "uncollected")) == 1
    assert len(tags) == 3
    # each shard calls its own functions, whose globals change from call to call
    assert [sorted(execute(node, "RG.TRIGGER", "note", "x")) for node in cluster.nodes] == [[1] * 3, [2] * 3, [3] * 3]


def test_an_error_of_any_shard_is_the_triggers_error(cluster: Cluster) -> None:
    registered(cluster, TRIGGERS)
    tags = [tag for _, tag in execute(cluster.nodes[0], "RG.TRIGGER", "arguments")]
    for tag in tags:
        told = refusal(cluster.nodes[0], "RG.TRIGGER", "fails", tag)
        assert told.startswith(f"ValueError: not on {tag} (<script")
    assert execute(cluster.nodes[0], "RG.TRIGGER", "fails", "none") == ["fine"] * 3


def test_a_trigger_has_its_callers_rights_on_all_shards(cluster: Cluster) -> None:
    script = "GB('CommandReader').map(lambda r: execute(*r[1:])).register(trigger='run', convertToStr=False)"
    registered(cluster, script)
    first, *others = cluster.nodes
    execute(first, "ACL", "SETUSER", "tenant", "on", ">p", "~*", "+@all", "-@admin", "-dbsize")
    with first.client(username="tenant", password="p") as tenant:
        with pytest.raises(redis.ResponseError, match="no such user: tenant"):
            tenant.execute_command("RG.TRIGGER", "run", "ECHO", "x")
        for node in others:
            execute(node, "ACL", "SETUSER", "tenant", "on", ">p", "~*", "+@all", "-@admin", "-dbsize")
        assert tenant.execute_command("RG.TRIGGER", "run", "ECHO", "x") == ["x"] * 3
        with pytest.raises(redis.ResponseError, match="may not run"):
            tenant.execute_command("RG.TRIGGER", "run", "DBSIZE")


def test_a_trigger_waits_for_on_registered_of_every_shard(cluster: Cluster) -> None:
    script = f"""
import time
begun = []
def begin():
    if execute('CLUSTER', 'MYID') != {execute(cluster.nodes[0], "CLUSTER", "MYID")!r}:
        time.sleep(1)
    begun.append(1)
GB('CommandReader').map(lambda _: len(begun)).register(trigger='begun', convertToStr=False, onRegistered=begin)
"""
    registered(cluster, script)
    assert execute(cluster.nodes[0], "RG.TRIGGER", "begun") == [1, 1, 1]


GLOBALS = """
seen = []
def note(record):
    seen.append(record)
    return len(seen)
GB('CommandReader').map(note).register(trigger='note', mode='async_local', convertToStr=False)
async def all_seen(record):
    def count(_):
        return len(seen)
    results, errors = await GB('ShardsIDReader').map(count).run(convertToStr=False)
    return [sorted(results), errors]
GB('CommandReader').map(all_seen).register(trigger='all_seen', mode='async_local', convertToStr=False)
"""


def test_a_run_of_a_function_reaches_the_globals_of_its_session_on_other_shards(cluster: Cluster) -> None:
    registered(cluster, GLOBALS)
    for times, node in enumerate(cluster.nodes, start=1):
        for _ in range(times):
            execute(node, "RG.TRIGGER", "note")
    for node in cluster.nodes:
        assert execute(node, "RG.TRIGGER", "all_seen") == [[[1, 2, 3], []]]


def test_no_scan_reads_the_key_on_its_shard(cluster: Cluster) -> None:
    with cluster.client() as client:
        client.set("one", "1")
    for node in cluster.nodes:
        for run, found in (
            ("GB().map(lambda r: r['value']).run('one', noScan=True)", "1"),
            ("GB('KeysOnlyReader').run('one', noScan=True)", "one"),
            ("GB().map(lambda r: r['type']).run('none', noScan=True)", "empty"),
        ):
            assert execute(node, "RG.PYEXECUTE", run) == [[found], []]
        assert execute(node, "RG.PYEXECUTE", "GB('KeysOnlyReader').run('none', noScan=True)") == [[], []]


INSIDE = """
def inside(record):
    return execute(*record[1:])
def in_thread(record):
    future = gearsFuture()
    def work():
        try:
            future.continueRun(execute(*record[1:]))
        except Exception as error:
            future.continueFailed(error)
    Thread(target=work).start()
    return future
async def in_coroutine(record):
    return execute(*record[1:])
for function in (inside, in_thread, in_coroutine):
    GB('CommandReader').map(function).register(trigger=function.__name__, mode='async_local', convertToStr=False)
GB('CommandReader').count().register(trigger='everywhere')
"""


def test_functions_can_inspect_executions_of_all_shards(cluster: Cluster) -> None:
    registered(cluster, INSIDE)
    first = cluster.nodes[0]
    done = execute(first, "RG.PYEXECUTE", "GB('ShardsIDReader').run()", "UNBLOCKING")
    for node in cluster.nodes:
        eventually(lambda node=node: status(node, done) == ["status", "done"])  # type: ignore[misc]
    assert len(execute(first, "RG.TRIGGER", "in_coroutine", "RG.GETEXECUTION", done)[0]) == 1
    told = refusal(first, "RG.TRIGGER", "in_coroutine", "RG.TRIGGER", "everywhere")
    assert "runs on other threads, for which a coroutine may not wait" in told
    for way in ("inside", "in_thread"):
        # repeated, because the reply omits a shard that answers late
        eventually(lambda way=way: len(execute(first, "RG.TRIGGER", way, "RG.GETEXECUTION", done)[0]) == 3)  # type: ignore[misc]
        assert execute(first, "RG.TRIGGER", way, "RG.TRIGGER", "everywhere") == [["3"]]
    assert execute(first, "RG.TRIGGER", "in_coroutine", "RG.DROPEXECUTION", done) == ["OK"]
    for node in cluster.nodes:
        eventually(lambda node=node: done not in str(execute(node, "RG.DUMPEXECUTIONS")))  # type: ignore[misc]


def status(node: Server, execution: str) -> Any:
    return execute(node, "RG.GETEXECUTION", execution, "SHARD")[0][3][:2]


def test_a_shard_that_lacks_the_registration_ends_the_run_with_an_error(cluster: Cluster) -> None:
    registered(cluster, "GB('CommandReader').count().register(trigger='everywhere')")
    first, second, _ = cluster.nodes
    # on one shard only; the idle time of the shared cluster is long, so only the error message can end the run in time
    (entry,) = execute(second, "RG.DUMPREGISTRATIONS")
    execute(
        second,
        "RG.PYEXECUTE",
        f"from qa_cluster.gears.scripts.interface.runtime import current_runtime\n"
        f"current_runtime().registrar.installed._sessions.remove_registration({entry[1]!r})",
    )
    told = refusal(first, "RG.TRIGGER", "everywhere")
    assert "is being replaced or loaded on shard" in told
