"""A function has its caller's rights, or the rights of its owner if the registration says so."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server

pytestmark = pytest.mark.hostile

SCRIPT = """
import threading, time
from concurrent.futures import ThreadPoolExecutor

def get(record):
    return execute('GET', record[1])
def get_many(record):
    return execute_many([('GET', record[1])])
async def late(record):
    await asyncio.sleep(0)
    return execute('GET', record[1])
async def own_coroutine(record):
    async def read():
        return execute('GET', record[1])
    return await runCoroutine(read(), delay=0.01)
def in_block(record):
    with atomic():
        return execute('GET', record[1])
def in_thread(record):
    future = gearsFuture()
    def work():
        try:
            future.continueRun(execute('GET', record[1]))
        except Exception as error:
            future.continueFailed(error)
    threading.Thread(target=work).start()
    return future
async def in_pool(record):
    return await asyncio.get_running_loop().run_in_executor(None, lambda: execute('GET', record[1]))
pools = []
async def in_callback(record):
    found = asyncio.get_running_loop().create_future()
    if not pools:
        pools.append(ThreadPoolExecutor(1))
    def read(_):
        try:
            setFutureResults(found, execute('GET', record[1]))
        except Exception as error:
            setFutureException(found, error)
    pools[0].submit(time.sleep, 0.02).add_done_callback(read)
    return await found
async def in_run(record):
    results, errors = await GB('KeysReader').map(lambda r: r['value']).run(record[1], noScan=True)
    return results + errors
async def in_session(record):
    session, found = getGearsSession(), asyncio.get_running_loop().create_future()
    def work():
        with GearsSession(session):
            try:
                setFutureResults(found, execute('GET', record[1]))
            except Exception as error:
                setFutureException(found, error)
    threading.Thread(target=work).start()
    return await found
def tensor(record):
    return str(redisAI.getTensorFromKey(record[1]))
def model(record):
    redisAI.createModelRunner(record[1])
def write_later(record):
    execute_later('SET', record[1], 'x')
    return 'sent'
def internal(record):
    return execute('QA.SESSIONS')
def run(record):
    return execute(*record[1:])
for function in (get, get_many, late, own_coroutine, in_block, in_thread, in_pool, in_callback, in_run, in_session,
                 tensor, model, write_later, internal, run):
    GB('CommandReader').map(function).register(trigger=function.__name__, mode='async_local')
GB('CommandReader').map(get).register(trigger='owner', mode='async_local', rights='owner')
"""
LATER = """
told, seen = [], []
async def later():
    while not told:
        await asyncio.sleep(0.01)
    try:
        seen.append(execute('GET', 'a:1'))
    except Exception as error:
        seen.append(str(error))
def go(record):
    told.append('gone')
def start(record):
    runCoroutine(later())
    return 'started'
GB('CommandReader').map(start).register(trigger='start', mode='async_local')
GB('CommandReader').foreach(go).register(trigger='go', mode='async_local')
GB('CommandReader').filter(lambda r: seen).map(lambda r: seen).register(
    trigger='seen', mode='async_local', convertToStr=False)
"""
WAYS = ("get", "get_many", "late", "own_coroutine", "in_block", "in_thread", "in_pool", "in_callback", "in_session")


@pytest.fixture(scope="module")
def shard(shared_shard: Server) -> Server:
    with shared_shard.client() as client:
        assert client.execute_command("RG.PYEXECUTE", SCRIPT, "ID", "rights") == "OK"
        client.set("a:1", "mine")
        client.set("b:1", "secret")
        client.execute_command("ACL SETUSER", "tenant", "on", ">p", "~a:*", "+@all", "-@admin", "-flushall")
    return shared_shard


def trigger(shard: Server, name: str, *arguments: str) -> Any:
    with shard.client(username="tenant", password="p") as client:
        return client.execute_command("RG.TRIGGER", name, *arguments)


@pytest.mark.parametrize("way", WAYS)
def test_a_function_has_its_callers_rights(shard: Server, way: str) -> None:
    assert "mine" in trigger(shard, way, "a:1")[0]
    with pytest.raises(redis.ResponseError, match=r"may not run .* or touch its keys"):
        trigger(shard, way, "b:1")
    with shard.client() as client:
        assert "secret" in client.execute_command("RG.TRIGGER", way, "b:1")[0]


def test_a_run_of_a_function_reads_with_its_callers_rights(shard: Server) -> None:
    assert trigger(shard, "in_run", "a:1") == ["['mine']"]
    assert "secret" not in trigger(shard, "in_run", "b:1")[0]


def test_an_owner_function_reads_keys_that_its_caller_may_not_read(shard: Server) -> None:
    assert trigger(shard, "owner", "b:1") == ["secret"]


def test_rights_on_keys_apply_to_tensors_and_models(shard: Server) -> None:
    with shard.client() as client:
        for tag in "ab":
            client.execute_command("AI.TENSORSET", f"{tag}:t", "FLOAT", 1, "VALUES", 2)
    assert trigger(shard, "tensor", "a:t") == ["[2.0]"]
    for name in ("tensor", "model"):
        with pytest.raises(redis.ResponseError, match=r"may not run .* or touch its keys"):
            trigger(shard, name, "b:t")
    with pytest.raises(redis.ResponseError, match="ERR"):
        trigger(shard, "model", "a:none")


def test_execute_later_has_the_callers_rights(shard: Server) -> None:
    assert trigger(shard, "write_later", "a:later") == ["sent"]
    assert trigger(shard, "write_later", "b:later") == ["sent"]
    with shard.client() as client:
        assert client.get("a:later") == "x"
        assert client.get("b:later") is None
    eventually(lambda: "SET failed: NOPERM" in shard.log.read_text())


def test_functions_cannot_run_internal_commands(shard: Server) -> None:
    with shard.client() as client, pytest.raises(redis.ResponseError, match=r"QA\.SESSIONS can not run"):
        client.execute_command("RG.TRIGGER", "internal")


@pytest.mark.parametrize("command", [("MULTI",), ("select", "1"), ("SUBSCRIBE", "a"), ("CLIENT", "REPLY", "OFF")])
def test_a_function_cannot_change_the_shared_connection(shard: Server, command: tuple[str, ...]) -> None:
    with shard.client() as client:
        with pytest.raises(redis.ResponseError, match="would change the connection that functions share"):
            client.execute_command("RG.TRIGGER", "run", *command)
        assert client.execute_command("RG.TRIGGER", "run", "GET", "a:1") == ["mine"]


def test_a_removed_user_has_no_rights(shard: Server) -> None:
    with shard.client() as admin:
        admin.execute_command("ACL SETUSER", "gone", "on", ">p", "~*", "+@all")
        assert admin.execute_command("RG.PYEXECUTE", LATER) == "OK"
        with shard.client(username="gone", password="p") as client:
            assert client.execute_command("RG.TRIGGER", "start") == ["started"]
        admin.execute_command("ACL DELUSER", "gone")
        admin.execute_command("RG.TRIGGER", "go")
        seen = eventually(lambda: admin.execute_command("RG.TRIGGER", "seen"))
        assert seen == [["NOPERM no such user: gone"]]
