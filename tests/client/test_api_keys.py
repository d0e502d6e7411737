"""The lists of API keys in a cluster: every engine learns of a change at once, even while a shard is down."""

from __future__ import annotations

from time import time

import pytest

from qa_cluster.access import store
from qa_cluster.access.records import ApiKey, find, new_key
from qa_cluster.asking.engine import Engine
from qa_cluster.errors import ClusterError, InvalidInput, NotFound
from qa_cluster.keys import api_keys_key, partition_tags
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async


async def added(engine: Engine, **options: object) -> tuple[ApiKey, str]:
    key, text = new_key("the shop", ["ask"], now=time(), **options)  # type: ignore[arg-type]
    await engine.api_keys.add(key)
    return key, text


async def test_without_keys_the_service_is_open(engine: Engine) -> None:
    assert engine.api_keys.at_hand() is None
    known = await engine.api_keys.current()
    assert (known.keys, known.closed) == ({}, False)
    assert engine.api_keys.at_hand() is known


async def test_another_process_learns_of_a_new_and_of_a_revoked_key_at_once(
    engine: Engine, second_engine: Engine
) -> None:
    await second_engine.api_keys.current()
    key, text = await added(engine)
    known = await second_engine.api_keys.current()
    assert known.closed and find(known.keys, text.encode()) == key
    assert second_engine.api_keys.at_hand() is known
    assert await second_engine.api_keys.current() is known  # the list is not read a second time
    revoked = await engine.api_keys.revoke(key.id)
    known = await second_engine.api_keys.current()
    assert known.keys[key.id] == revoked and revoked.state(time()) == "revoked"
    assert known.closed, "without a valid key, the service stays closed"
    assert await engine.api_keys.revoke(key.id) == revoked
    assert await engine.api_keys.clear() == 1
    assert not (await second_engine.api_keys.current()).closed
    with pytest.raises(NotFound, match="keys list"):
        await engine.api_keys.revoke(key.id)


async def test_every_partition_has_the_list_and_one_revoked_copy_is_enough(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    key, _ = await added(engine)
    names = [api_keys_key(tag) for tag in partition_tags(PARTITIONS)]
    assert {await cluster.at(name, "HGET", name, key.id) for name in names} == {key.to_json()}
    for name in names[1:]:
        await cluster.at(name, "DEL", name)
    assert [found.id for found in await engine.api_keys.all()] == [key.id]
    await cluster.at(names[3], "HSET", names[3], key.id, key.revoke(5).to_json().decode())
    assert (await engine.api_keys.all())[0].revoked == 5


async def test_an_unreadable_record_is_not_a_key_but_keeps_the_service_closed(
    cluster: ScriptedCluster, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    name = api_keys_key(partition_tags(PARTITIONS)[0])
    await cluster.at(name, "HSET", name, "0123456789ab", "{")
    known = await engine.api_keys.current()
    assert (known.keys, known.closed) == ({}, True)
    assert "record of an API key" in caplog.text


async def test_while_a_shard_is_down_keys_work_and_can_be_revoked_on_other_shards(
    cluster: ScriptedCluster, engine: Engine, second_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise ClusterError("CLUSTERDOWN The cluster is down")

    key, text = await added(engine)
    other, _ = await added(engine)
    node = cluster.nodes[2]
    node.cut()
    try:
        await eventually_async(lambda: len(second_engine.shards.down) == 1)
        await eventually_async(lambda: len(engine.shards.down) == 1)
        known = await second_engine.api_keys.current()
        assert find(known.keys, text.encode()) == key
        with pytest.raises(ClusterError, match=f"key {key.id} is revoked, but not on every shard .*repeat the command"):
            await engine.api_keys.revoke(key.id)
        assert (await second_engine.api_keys.current()).keys[key.id].revoked is not None
        assert (await second_engine.api_keys.current()).keys[other.id].revoked is None
        before = await engine.api_keys.all()
        with pytest.raises(ClusterError, match=r"not returned .*, then revoke [0-9a-f]{12}, which"):
            await added(engine)
        assert await engine.api_keys.all() == before, "the failed command deleted the copies that it had stored"
        [lost] = engine.shards.down
        with monkeypatch.context() as patched:
            patched.setattr(engine.shards, "execute", refuse)
            with pytest.raises(ClusterError, match=f"shard {lost.address} is down: .*; CLUSTERDOWN The cluster is"):
                await engine.api_keys.all()
    finally:
        await node.listen()
    await eventually_async(lambda: not engine.shards.down)
    await engine.api_keys.revoke(key.id)
    names = [api_keys_key(tag) for tag in partition_tags(PARTITIONS)]
    stored = [ApiKey.from_json(await cluster.at(name, "HGET", name, key.id)) for name in names]
    assert all(record.revoked is not None for record in stored)


async def test_the_partial_work_of_an_interrupted_command_is_completed(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    valid, _ = await added(engine)
    revoked, _ = await added(engine)
    await engine.api_keys.revoke(revoked.id)
    assert await engine.api_keys.incomplete() == set()
    names = [api_keys_key(tag) for tag in partition_tags(PARTITIONS)]
    for name in names[1:]:
        await cluster.at(name, "HDEL", name, valid.id)
    await cluster.at(names[0], "HSET", names[0], revoked.id, revoked.to_json())
    assert await engine.api_keys.incomplete() == {valid.id, revoked.id}
    for key in await engine.api_keys.all():
        await engine.api_keys.complete(key)
    assert await engine.api_keys.incomplete() == set()
    states = {key.id: key.revoked is None for key in await engine.api_keys.all()}
    assert states == {valid.id: True, revoked.id: False}


async def test_a_full_list_evicts_the_key_that_was_revoked_first_but_no_key_that_the_caller_names(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_KEYS", 2)
    first, _ = await added(engine)
    second, _ = await added(engine)
    with pytest.raises(InvalidInput, match="2 keys, the limit is 2: revoke one first"):
        await added(engine)
    await engine.api_keys.revoke(first.id)
    third, _ = await added(engine)
    assert {key.id for key in await engine.api_keys.all()} == {second.id, third.id}
    for key in (second, third):
        await engine.api_keys.revoke(key.id)
    fourth, _ = new_key("x", ["ask"], now=3.0)
    await engine.api_keys.add(fourth, keep={second.id})
    assert {key.id for key in await engine.api_keys.all()} == {second.id, fourth.id}
