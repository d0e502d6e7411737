"""Rounds of random steps on a cluster with replicas: clients block, and meanwhile the data of their jobs changes.

    python -m tests.fuzz.asan_sequences --rounds 200 --seed 1 [--server redis]

Two primaries with a replica each run with a hostile worker. A round has `STEPS` random steps:

- blocking calls, and CLIENT KILL and CLIENT UNBLOCK of blocked clients; calls of all kinds on the replica
- RENAME, COPY, DEL and expiry of the keys that the calls use; MULTI; EVAL; RESTORE of good and damaged dumps
- rewriting and loading of the AOF, DEBUG RELOAD, broken replication links, manual failovers, dead workers

After each round all clients leave. Then no job and no blocked client may remain, and each replica must have its
primary's data. The exit status is 1 if a server ends, hangs or reports an error. The output then names the seed, the
round and the file with the last commands.

QA_TEST_MODULE and QA_TEST_PRELOAD choose a sanitized build, as in `fuzz_commands.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import redis

from tests.fuzz.checks import check_alive, keep_log
from tests.fuzz.client import Client, Finding
from tests.fuzz.damage import damaged, payloads
from tests.fuzz.fuzz_commands import SETTINGS, binary_of
from tests.fuzz.generate import Generator
from tests.fuzz.words import OURS, PLAIN, Command
from tests.harness.clusters import Cluster, meet
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import fake_worker

STEPS = 40
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 15.0  # in a failover, a primary pauses writes for at most 10 s
NAMES = frozenset([*OURS, *PLAIN, "absent"])
CLUSTER: dict[str, object] = {
    **SETTINGS,
    "cluster-enabled": "yes",
    "cluster-node-timeout": 15_000,  # a sanitized server is slow on a busy machine
    "cluster-replica-no-failover": "yes",  # failovers occur only as steps of the rounds
    "cluster-allow-replica-migration": "no",
    "cluster-require-full-coverage": "no",
    "repl-timeout": 20,
    "qa.worker-start-ms": 20_000,  # a step may stop a worker before its first heartbeat
    "crash-memcheck-enabled": "no",  # the check would hang in a sanitized server
}

Step = Callable[["Shard", random.Random], None]


def tagged(command: Command, tag: str) -> Command:
    """The command with the shard's tag in its keys."""
    return [f"{word}{{{tag}}}" if isinstance(word, str) and word in NAMES else word for word in command]


class Shard:
    """A primary and its replica, which may change roles, and the clients of the primary."""

    def __init__(self, first: Server, second: Server) -> None:
        self.servers = (first, second)
        self.tag = ""
        self.clients: list[Client] = []
        self.failing_over: tuple[Server, float] | None = None  # the old primary; it may pause writes until this time

    @property
    def primary(self) -> Server:
        """The server that is the primary now."""
        return self.servers[0] if _role(self.servers[0]) == "master" else self.servers[1]

    @property
    def replica(self) -> Server:
        """The other server."""
        return self.servers[1] if self.primary is self.servers[0] else self.servers[0]

    @property
    def pausing(self) -> bool:
        """Whether a failover may pause the writes. Redis 7.0 panics if CLIENT UNBLOCK names a client of a pause."""
        if self.failing_over is None:
            return False
        primary, until = self.failing_over
        return time.monotonic() < until and self.primary is primary

    def leave(self) -> None:
        """Disconnect all clients."""
        for client in self.clients:
            client.leave()
        self.clients.clear()


def _role(server: Server) -> str:
    return str(server.info("replication")["role"])


class Sequences:
    """The rounds on one cluster."""

    def __init__(self, shards: list[Shard], generator: Generator, dumps: dict[str, bytes], seed: int) -> None:
        self.shards = shards
        self.generator = generator
        self.dumps = dumps
        self.seed = seed
        self.log: deque[str] = deque(maxlen=400)
        self.done: Counter[str] = Counter()
        self.steps: list[tuple[int, Step]] = [
            (10, self.wait),
            (4, self.vanish),
            (6, self.kill),
            (6, self.unblock),
            (5, self.ask_replica),
            (6, self.rename),
            (5, self.transaction),
            (5, self.script),
            (6, self.restore),
            (3, self.rewrite),
            (1, self.load),
            (1, self.reload),
            (3, self.break_link),
            (1, self.fail_over),
            (1, self.kill_worker),
        ]

    def run(self, number: int) -> None:
        """One round."""
        chance = random.Random(f"{self.seed} {number}")
        self.log.append(f"---- round {number}")
        steps = chance.choices([step for _, step in self.steps], [weight for weight, _ in self.steps], k=STEPS)
        try:
            for step in steps:
                self.done[step.__name__] += 1
                # a server may refuse the step while it loads, or after a change of its role
                with suppress(redis.ResponseError, redis.ConnectionError, ConnectionError):
                    step(chance.choice(self.shards), chance)
            for shard in self.shards:
                shard.leave()
            for shard in self.shards:
                self.check(shard)
        except (Finding, AssertionError, OSError, EOFError, redis.RedisError) as error:
            servers = [server for shard in self.shards for server in shard.servers]
            where = keep_log(f"sequences-{self.seed}", self.log, servers)
            raise Finding(f"seed {self.seed}, round {number}: {error}; see {where}") from error

    def send(self, shard: Shard, commands: list[Command], client: Client | None = None) -> None:
        """Send commands to a primary. The replies are read later, or never."""
        made = [tagged(command, shard.tag) for command in commands]
        self.log.extend(repr(command)[:1000] for command in made)
        if client is None:
            client = Client(shard.primary.socket, random.Random(0))
            shard.clients.append(client)
        client.send(made)
        while len(shard.clients) > 16:
            shard.clients.pop(0).leave()

    def admin(self, server: Server, *words: Any) -> Any:
        """Run a command of an administrator."""
        self.log.append(f"{server.port}: {words!r}"[:1000])
        with server.client(encoding_errors="backslashreplace") as client:
            return client.execute_command(*words)

    # ---- steps ----

    def scene(self) -> list[Command]:
        """Commands that set all keys to good values."""
        return [["RESTORE", key, 0, dump, "REPLACE"] for key, dump in self.dumps.items()]

    def wait(self, shard: Shard, chance: random.Random) -> None:
        """Blocking calls of one client."""
        known = shard.clients and chance.random() < 0.5
        client = chance.choice(shard.clients) if known else None
        commands = self.scene() if chance.random() < 0.5 else []
        self.send(shard, [*commands, *(self.generator.wait(chance) for _ in range(chance.choice([1, 2, 4])))], client)

    def vanish(self, shard: Shard, chance: random.Random) -> None:
        """A blocking call of a client that disconnects at once."""
        self.send(shard, [*self.scene(), self.generator.wait(chance)])
        shard.clients.pop().leave()

    def ask_replica(self, shard: Shard, chance: random.Random) -> None:
        """Calls and commands of all kinds on the replica. They must not change the replica's data."""
        calls = [
            self.generator.wait(chance) if chance.random() < 0.4 else self.generator.command(chance) for _ in range(6)
        ]
        client = Client(shard.replica.socket, random.Random(0))
        shard.clients.append(client)
        self.send(shard, [["READONLY"], *calls], client)

    def blocked(self, shard: Shard) -> list[int]:
        """The ids of the blocked clients of a primary."""
        with shard.primary.client(encoding_errors="backslashreplace") as client:
            return [int(c["id"]) for c in client.client_list() if "b" in c["flags"] and c["user"] != "qa-worker"]

    def kill(self, shard: Shard, chance: random.Random) -> None:
        """CLIENT KILL of a blocked client."""
        if blocked := self.blocked(shard):
            self.admin(shard.primary, "CLIENT", "KILL", "ID", chance.choice(blocked))
            self.done["killed"] += 1

    def unblock(self, shard: Shard, chance: random.Random) -> None:
        """CLIENT UNBLOCK of blocked clients.

        A server does not unblock a client of a module command without a timeout callback, and replies 0. It unblocks a
        client of its own commands, whose next command is then a blocking call.
        """
        if shard.pausing:
            return
        stock: list[Command] = [
            ["BLPOP", "absent", 0],
            ["XREAD", "BLOCK", 0, "STREAMS", "absent", "$"],
            ["WAIT", 9, 0],
        ]
        before = set(self.blocked(shard))
        self.send(shard, [["DEL", "absent"], chance.choice(stock), *(self.generator.wait(chance) for _ in range(2))])
        with suppress(TimeoutError, AssertionError):
            eventually(lambda: set(self.blocked(shard)) - before, 1.0)
        for client in chance.sample(sorted(before), min(2, len(before))) + sorted(set(self.blocked(shard)) - before):
            way = chance.choice(["TIMEOUT", "ERROR"])
            self.done["unblocked"] += self.admin(shard.primary, "CLIENT", "UNBLOCK", client, way)

    def rename(self, shard: Shard, chance: random.Random) -> None:
        """Rename, copy, delete or expire a key that jobs may use."""
        key, other = chance.choice(OURS), chance.choice(OURS)
        choices: list[Command] = [
            ["RENAME", key, other],
            ["RENAMENX", key, "absent"],
            ["COPY", key, other, "REPLACE"],
            ["DEL", key],
            ["UNLINK", key],
            ["PEXPIRE", key, chance.choice([1, 20])],
            ["SET", key, "v"],
            ["MEMORY", "USAGE", key],
        ]
        self.send(shard, [*self.scene(), self.generator.wait(chance), chance.choice(choices)])
        self.send(shard, [chance.choice(choices)])

    def transaction(self, shard: Shard, chance: random.Random) -> None:
        """Commands in MULTI, where commands must not block."""
        inner = [self.generator.wait(chance), self.generator.command(chance), ["RENAME", "m1", "m2"]]
        self.send(shard, [["MULTI"], *inner, [chance.choice(["EXEC", "EXEC", "DISCARD"])]])

    def script(self, shard: Shard, chance: random.Random) -> None:
        """A command from a Lua script."""
        inner = self.generator.wait(chance) if chance.random() < 0.6 else self.generator.command(chance)
        self.send(shard, [["EVAL", "return redis.pcall(unpack(ARGV))", 1, "absent", *inner]])

    def restore(self, shard: Shard, chance: random.Random) -> None:
        """RESTORE of good and damaged dumps, some of them over used keys."""
        commands: list[Command] = [self.generator.wait(chance)]
        for _ in range(5):
            dump = damaged(chance, self.dumps[chance.choice(sorted(self.dumps))])
            key = chance.choice(OURS)
            commands += [["RESTORE", key, chance.choice([0, 0, 30]), dump, "REPLACE"], ["DEBUG", "DIGEST-VALUE", key]]
        self.send(shard, commands)

    def rewrite(self, shard: Shard, chance: random.Random) -> None:
        """Rewrite the AOF, as commands or with an RDB preamble."""
        self.admin(shard.primary, "CONFIG", "SET", "aof-use-rdb-preamble", chance.choice(["yes", "no"]))
        self.admin(chance.choice([shard.primary, shard.replica]), "BGREWRITEAOF")

    def load(self, shard: Shard, chance: random.Random) -> None:
        """Load the data from the AOF while clients wait.

        After a full synchronization, a server rewrites its AOF. Until the end of the rewrite, the AOF has the earlier
        data, and DEBUG LOADAOF would load them.
        """
        state = shard.primary.info("persistence")
        if not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
            self.admin(shard.primary, "DEBUG", "LOADAOF")

    def reload(self, shard: Shard, chance: random.Random) -> None:
        """Save and load an RDB file while clients wait.

        A primary that loads its file removes expired keys without a DEL for its replica. So the replica then loads all
        data, too.
        """
        server = chance.choice([shard.primary, shard.replica])
        self.admin(server, "DEBUG", "RELOAD")
        if server is shard.primary:
            self.load_replica(shard)

    def break_link(self, shard: Shard, chance: random.Random) -> None:
        """Cut the replication link. The replica then continues, or loads all data again."""
        if chance.random() < 0.3:
            self.load_replica(shard)
        else:
            self.admin(shard.primary, "CLIENT", "KILL", "TYPE", "replica")

    def load_replica(self, shard: Shard) -> None:
        """Cut the replication link of a primary without its backlog, so that the replica must load all data again."""
        self.admin(shard.primary, "DEBUG", "CHANGE-REPL-ID")
        self.admin(shard.primary, "CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self, shard: Shard, chance: random.Random) -> None:
        """Exchange primary and replica while clients wait."""
        if chance.random() < 0.7:
            self.admin(shard.replica, "CLUSTER", "FAILOVER", "TAKEOVER")
            return
        shard.failing_over = (shard.primary, time.monotonic() + PAUSE_SECONDS)
        self.admin(shard.replica, "CLUSTER", "FAILOVER")

    def kill_worker(self, shard: Shard, chance: random.Random) -> None:
        """Kill or stop the worker while it has jobs."""
        if pid := int(shard.primary.field("worker_pid")):
            self.log.append(f"{shard.primary.port}: kill the worker {pid}")
            with suppress(ProcessLookupError):
                os.kill(pid, chance.choice([signal.SIGKILL, signal.SIGSTOP]))

    # ---- checks ----

    def check(self, shard: Shard) -> None:
        """Check a shard without clients: one primary, no jobs, no blocked clients, the same data on both servers."""
        for server in shard.servers:
            eventually(lambda server=server: _loaded(server), PATIENCE_SECONDS, ignore=redis.RedisError)  # type: ignore[misc]
            check_alive(server)
        until = time.monotonic() + PATIENCE_SECONDS
        while told := self._rest(shard):
            if time.monotonic() > until:
                raise Finding(told)
            time.sleep(0.1)

    def _rest(self, shard: Shard) -> str:
        """The remaining jobs, clients and differences of an idle shard, as text; empty if nothing remains."""
        try:
            roles = sorted(map(_role, shard.servers))
            if roles != ["master", "slave"]:
                return f"the roles are {roles}"
            primary, replica = shard.primary.info("everything"), shard.replica.info("everything")
            found = {name: primary[f"qa_{name}"] for name in ("queued_clients", "queued_events", "in_flight")}
            found["blocked clients"] = max(0, primary["blocked_clients"] - primary["qa_worker_links"])
            found["workers that are not ready"] = int(primary["qa_worker_state"] != "ready")
            found["jobs on the replica"] = replica["qa_queued_clients"] + replica["qa_in_flight"]
            found["replicas without a link"] = int(replica.get("master_link_status") != "up")
            if left := {name: count for name, count in found.items() if count}:
                return f"all clients have left, but there are {left}"
            before, after = self._digests(shard.primary), self._digests(shard.replica)
            differing = {key: (before.get(key), after.get(key)) for key in before | after}
            differing = {key: pair for key, pair in differing.items() if pair[0] != pair[1]}
            return f"primary and replica differ: {differing}" if differing else ""
        except redis.RedisError as error:
            return f"a server at rest does not answer: {error}"

    @staticmethod
    def _digests(server: Server) -> dict[str, Any]:
        """The digest of each key's value, all from the same time."""
        with server.client(decode_responses=False) as client:
            client.execute_command("READONLY")
            keys = sorted(client.keys("*"))
            digests = client.execute_command("DEBUG", "DIGEST-VALUE", *keys) if keys else []
            return {repr(key): digest for key, digest in zip(keys, digests, strict=True)}


def _loaded(server: Server) -> bool:
    return not server.info("persistence")["loading"]


def _dumps(name: str, seed: int) -> tuple[dict[str, bytes], list[str]]:
    """Good dumps of the module's types, and the names of its commands."""
    with Server(binary_of(name), SETTINGS, worker=fake_worker("tests.fuzz.hostile", seed)) as server:
        server.wait_ready()
        names = execute(server, "COMMAND LIST", "FILTERBY", "MODULE", "qa")
        return payloads(server), names


def _attach(replica: Server, primary: Server) -> None:
    meet(replica, primary)
    name = execute(primary, "CLUSTER", "MYID")
    eventually(lambda: execute(replica, "CLUSTER", "REPLICATE", name), PATIENCE_SECONDS, ignore=redis.RedisError)
    eventually(lambda: replica.info("replication")["master_link_status"] == "up", PATIENCE_SECONDS)


def run(rounds: int, seed: int, name: str, *, quiet: bool = False) -> Counter[str]:
    """Run `rounds` rounds on one cluster; return the number of runs of each step. Raises Finding."""
    dumps, names = _dumps(name, seed)
    worker = fake_worker("tests.fuzz.hostile", seed)
    with Cluster(binary_of(name), CLUSTER, worker=worker, size=2) as cluster, ExitStack() as stack:
        shards = []
        for primary in cluster.nodes:
            replica = stack.enter_context(Server(primary.binary, CLUSTER, worker=worker))
            _attach(replica, primary)
            shards.append(Shard(primary, replica))
        for shard in shards:
            for server in shard.servers:
                execute(server, "DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
                execute(server, "ACL", "SETUSER", "reader", "on", ">x", "~*", "&*", "+@read", "+auth", "+echo")
            primary = shard.primary
            primary.wait_ready()
            shard.tag = next(tag for tag in map(str, range(10_000)) if _owns(primary, tag))
        sequences = Sequences(shards, Generator(names), dumps, seed)
        for number in range(rounds):
            sequences.run(number)
            if not quiet:
                print(f"round {number + 1} of {rounds}", flush=True)
        return sequences.done


def _owns(server: Server, tag: str) -> bool:
    with server.client() as client:
        try:
            client.get(f"{{{tag}}}")
        except redis.ResponseError:
            return False
        return True


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description="Sequences of blocking calls and faults on a cluster with replicas.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    options = parser.parse_args()
    print(f"{options.rounds} rounds, seed {options.seed}, {options.server}", flush=True)
    try:
        done = run(options.rounds, options.seed, options.server)
    except Finding as error:
        print(f"FOUND: {error}", flush=True)
        return 1
    print(f"{options.rounds} rounds without a finding; steps: {dict(sorted(done.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
