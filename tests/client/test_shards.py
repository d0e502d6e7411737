"""Commands reach their shard while slots move, servers go down, and pools are full. The servers are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from qa_cluster.errors import ClusterError, InvalidInput, QueueFull, ReplyError
from qa_cluster.keys import slot
from qa_cluster.routing.connection import Connection, ConnectionLost, Login
from qa_cluster.routing.on_behalf import bulk_work, work_for
from qa_cluster.routing.shards import ShardPool, Shards
from qa_cluster.topology import Address
from tests.client.scripted_cluster import Node, ScriptedCluster
from tests.harness.polling import eventually_async

KEY = "moving:{zz9}"


@asynccontextmanager
async def connected(cluster: ScriptedCluster, login: Login | None = None, **options: int) -> AsyncIterator[Shards]:
    shards = Shards([Address("127.0.0.1", node.port) for node in cluster.nodes], login or Login(), **options)
    await shards.open()
    try:
        yield shards
    finally:
        await shards.aclose()


async def owner_and_other(cluster: ScriptedCluster) -> tuple[Node, Node]:
    for node in cluster.nodes:
        try:
            await node.commands.execute("EXISTS", KEY)
        except ReplyError:
            continue
        return node, next(other for other in cluster.nodes if other is not node)
    raise AssertionError("nobody serves the slot")


async def node_id(node: Node) -> str:
    return str((await node.commands.execute("CLUSTER", "MYID")).decode())


async def begin_move(source: Node, target: Node) -> None:
    await target.commands.execute("CLUSTER", "SETSLOT", slot(KEY), "IMPORTING", await node_id(source))
    await source.commands.execute("CLUSTER", "SETSLOT", slot(KEY), "MIGRATING", await node_id(target))
    await source.commands.execute("MIGRATE", "127.0.0.1", target.server_port, KEY, 0, 5000)


async def end_move(target: Node, source: Node) -> None:
    for node in (target, source):
        await node.commands.execute("CLUSTER", "SETSLOT", slot(KEY), "NODE", await node_id(target))


async def test_commands_follow_a_slot_that_moves_there_and_back(cluster: ScriptedCluster) -> None:
    async with connected(cluster) as shards:
        for _ in range(2):
            source, target = await owner_and_other(cluster)
            await shards.execute(KEY, "SET", KEY, "there")
            await begin_move(source, target)
            assert await shards.execute(KEY, "GET", KEY) == b"there"
            assert await shards.execute_many([(KEY, ("GET", KEY)), (KEY, ("STRLEN", KEY))]) == [b"there", 5]
            await end_move(target, source)
            assert await shards.execute(KEY, "GET", KEY) == b"there"
            assert shards.shard_of_key(KEY).address.port == target.port
        await shards.execute(KEY, "DEL", KEY)


async def test_replies_keep_their_order_and_errors_are_typed(cluster: ScriptedCluster) -> None:
    async with connected(cluster) as shards:
        echoed = await asyncio.gather(*(shards.execute(KEY, "ECHO", str(n)) for n in range(500)))
        assert echoed == [str(n).encode() for n in range(500)]
        await shards.execute(KEY, "SET", KEY, "text")
        with pytest.raises(InvalidInput, match="WRONGTYPE"):
            await shards.execute(KEY, "LPUSH", KEY, "x")
        await shards.execute(KEY, "DEL", KEY)


async def test_commands_survive_the_loss_of_all_connections(cluster: ScriptedCluster) -> None:
    async with connected(cluster) as shards:
        await shards.execute(KEY, "SET", KEY, "kept")
        for _ in range(3):
            for node in cluster.nodes:
                node.drop_clients()
            assert await shards.execute(KEY, "GET", KEY) == b"kept"
        await shards.execute(KEY, "DEL", KEY)


async def test_a_shard_that_stays_down_is_an_error_after_the_limit(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shards.retrying, "__defaults__", (0.5,))
    async with connected(cluster) as shards:
        node, _ = await owner_and_other(cluster)
        node.cut()
        try:
            with pytest.raises(ClusterError, match="gave up"):
                await shards.execute(KEY, "GET", KEY)
        finally:
            await node.listen()
        assert await shards.execute(KEY, "GET", KEY) is None


async def test_the_pool_is_limited_and_refuses_commands_beyond_its_queue(cluster: ScriptedCluster) -> None:
    async with connected(cluster, connections_per_shard=2, max_waiting_per_shard=1) as shards:
        shard = shards.shard_of_key(KEY)
        pop = ("BLPOP", "later:{zz9}", 30)
        waiting = [asyncio.create_task(shards.execute_on(shard, *pop, blocking=True)) for _ in range(3)]
        await eventually_async(lambda: shards.pool(shard.address).in_use == 2)
        with pytest.raises(QueueFull, match="wait for a connection"):
            await shards.execute_on(shard, *pop, blocking=True)
        await shards.execute("later:{zz9}", "RPUSH", "later:{zz9}", "a", "b", "c")
        assert sorted([value for _, value in await asyncio.gather(*waiting)]) == [b"a", b"b", b"c"]
        assert shards.pool(shard.address).in_use == 0


async def test_a_connection_has_the_name_of_its_api_key_or_bulk_work(cluster: ScriptedCluster) -> None:
    node, _ = await owner_and_other(cluster)

    async def waiting_names() -> list[bytes]:
        clients = (await node.commands.execute("CLIENT", "LIST")).splitlines()
        found = [dict(word.split(b"=", 1) for word in line.split()) for line in clients]
        return sorted(client[b"name"] for client in found if b"b" in client[b"flags"])  # blocked

    async def pop(shards: Shards, asker: str, *, bulk: bool = False) -> None:
        work_for(asker)
        command = ("BLPOP", "named:{zz9}", 30)
        if bulk:
            with bulk_work():
                assert await shards.execute_on(shards.shard_of_key(KEY), *command, blocking=True)
        else:
            assert await shards.execute_on(shards.shard_of_key(KEY), *command, blocking=True)

    async def popped(shards: Shards, names: list[bytes], *pops: Coroutine[None, None, None]) -> None:
        tasks = [asyncio.create_task(each) for each in pops]

        async def all_wait() -> bool:
            return await waiting_names() == names

        await eventually_async(all_wait)
        await shards.execute("named:{zz9}", "RPUSH", "named:{zz9}", *["a"] * len(tasks))
        await asyncio.gather(*tasks)

    async with connected(cluster) as shards:
        names = [b"bulk:qa-cluster", b"qa-cluster", b"qa-cluster:k1"]
        await popped(shards, names, pop(shards, ""), pop(shards, "k1"), pop(shards, "", bulk=True))
        for asker, name in (("k2", b"qa-cluster:k2"), ("", b"qa-cluster")):  # the connections had another name before
            await popped(shards, [name], pop(shards, asker))
    for each in cluster.nodes:
        await each.commands.execute("ACL", "SETUSER", "nameless", "on", ">p", "~*", "+@all", "-client|setname")
    async with connected(cluster, Login("nameless", "p")) as shards:
        await popped(shards, [b"qa-cluster"], pop(shards, "k1"))
    for each in cluster.nodes:
        await each.commands.execute("ACL", "DELUSER", "nameless")


async def test_a_command_that_a_demoted_server_unblocks_is_sent_again(cluster: ScriptedCluster) -> None:
    async with connected(cluster) as shards:
        shard = shards.shard_of_key(KEY)
        pop = ("BLPOP", "unblocked:{zz9}", 30)
        waiting = asyncio.create_task(shards.retrying(lambda: shards.execute_on(shard, *pop, blocking=True)))
        node, _ = await owner_and_other(cluster)

        async def blocked() -> list[bytes]:
            clients = (await node.commands.execute("CLIENT", "LIST")).splitlines()
            return [line.split()[0].removeprefix(b"id=") for line in clients if b" cmd=blpop " in line]

        [client] = await eventually_async(blocked)
        await node.commands.execute("CLIENT", "UNBLOCK", client, "ERROR")
        await eventually_async(lambda: shards.redirects["UNBLOCKED"] == 1)
        await shards.execute("unblocked:{zz9}", "RPUSH", "unblocked:{zz9}", "a")
        assert (await waiting)[1] == b"a"


async def test_a_connection_that_is_opened_while_its_pool_is_closed_is_closed_too() -> None:
    asked, answer, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        asked.set()
        await answer.wait()
        writer.write(b"%0\r\n")
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        pool = ShardPool(Address(*server.sockets[0].getsockname()), Login(), 1, 1)
        opening = asyncio.create_task(pool.shared())
        await asked.wait()
        pool.close()
        answer.set()
        with pytest.raises(ConnectionLost, match="are closed"):
            await opening
        await gone.wait()


@pytest.mark.parametrize("ended", ["cancelled", "failed"])
async def test_a_connection_that_has_just_opened_is_closed_if_its_command_ends(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """The command ends after the opening task has ended and before the caller resumes."""
    opened: list[Connection] = []
    original = Connection.open

    async def end_at_once(host: str, port: int, login: Login) -> Connection:
        connection = await original(host, port, login)
        opened.append(connection)
        # The event loop calls this callback after those of the opening task.
        asyncio.get_running_loop().call_soon(command.cancel if ended == "cancelled" else pool.fail_all, *reason)
        return connection

    reason = () if ended == "cancelled" else ("it does not answer",)
    pool = ShardPool(Address("127.0.0.1", cluster.nodes[0].port), Login(), 1, 1)
    monkeypatch.setattr(Connection, "open", end_at_once)
    command = asyncio.ensure_future(pool.execute_blocking("PING"))
    with pytest.raises(asyncio.CancelledError if ended == "cancelled" else ClusterError):
        await command
    assert [connection.closed for connection in opened] == [True]


async def test_the_error_without_any_server_names_every_address() -> None:
    shards = Shards([Address("127.0.0.1", 1), Address("127.0.0.1", 2)], Login())
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "):
        await shards.open()
    await shards.aclose()


async def test_a_password_is_used_and_never_shown(cluster: ScriptedCluster) -> None:
    node = cluster.nodes[0]
    await node.commands.execute("ACL", "SETUSER", "asker", "on", ">sesame", "~*", "+@all")
    login = Login("asker", "sesame")
    connection = await Connection.open("127.0.0.1", node.server_port, login)
    assert await connection.execute("ACL", "WHOAMI") == b"asker"
    connection.close()
    with pytest.raises(ClusterError, match="refused the login") as raised:
        await Connection.open("127.0.0.1", node.server_port, Login("asker", "wrong-secret"))
    assert "secret" not in str(raised.value) and "sesame" not in repr(login)
    await node.commands.execute("ACL", "DELUSER", "asker")


async def test_a_server_with_invalid_replies_is_disconnected() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionLost):
        await Connection.open("127.0.0.1", port, Login(connect_timeout_seconds=2))
    server.close()
    await server.wait_closed()
