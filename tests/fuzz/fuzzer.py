"""One run of the fuzzer: clients pipeline, wait, disconnect early and reconnect. Checks run in between.

Each case depends only on (seed, part, number), so the same seed sends the same commands, whatever the replies are.
"""

from __future__ import annotations

import os
import random
import signal
from collections import deque
from collections.abc import Callable

import redis

from tests.fuzz.checks import Rest, check_alive, check_idle, check_reload, check_rest, rest_of
from tests.fuzz.client import PATIENCE_SECONDS, Client, Finding
from tests.fuzz.damage import damaged, fill, payloads
from tests.fuzz.generate import Generator
from tests.fuzz.words import OURS, Command, encode
from tests.harness.servers import Server

CHECK_EVERY = 250
REST_EVERY = 5000
WARM_UP = 1000  # cases before the first measurement, with which later measurements are compared
MOST_CLIENTS = 24
REMEMBERED = 300
EXTRA_SETTINGS = 1100
DUMPS = 10

Mode = Callable[[random.Random], int]


class Fuzzer:
    """One run."""

    def __init__(self, server: Server, seed: int, part: int = 0) -> None:
        self.server = server
        self.seed, self.part = seed, part
        self.clients: list[Client] = []
        self.log: deque[str] = deque(maxlen=REMEMBERED)
        self.generator = Generator([])
        self.payloads: dict[str, bytes] = {}
        self.modes: list[tuple[float, Mode]] = [
            (0.60, self.pipeline),
            (0.68, self.transaction),
            (0.76, self.script),
            (0.86, self.vanish),
            (0.91, self.half),
            (0.95, self.restore),
            (1.01, self.disturb),
        ]
        self.first: Rest | None = None
        self.grew = 0

    def prepare(self) -> None:
        """Learns which commands the server has."""
        self.server.wait_ready(PATIENCE_SECONDS)
        with self.server.client() as client:
            client.execute_command("ACL", "SETUSER", "reader", "on", ">x", "~*", "&*", "+@read", "+auth", "+echo")
            client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
            pipe = client.pipeline(transaction=False)
            for number in range(EXTRA_SETTINGS):  # the maximum number of settings, so that their memory cannot grow
                pipe.execute_command("RG.CONFIGSET", f"filler{number}", "x" * 40)
            pipe.execute()
            names = client.execute_command("COMMAND LIST", "FILTERBY", "MODULE", "qa")
        self.generator = Generator(names)
        self.payloads = payloads(self.server)

    def run(self, cases: int) -> None:
        """Runs `cases` cases, with checks in between and at the end."""
        number, checked, rested = 0, 0, WARM_UP - REST_EVERY
        try:
            self.prepare()
            while number < cases:
                number += self.step(number)
                if number - checked >= CHECK_EVERY:
                    checked = number
                    check_alive(self.server)
                    self.server.wait_ready(PATIENCE_SECONDS)  # few faults are possible without a worker
                if number - rested >= REST_EVERY:
                    rested = number
                    self.rest()
            self.rest()
        except (Finding, AssertionError, OSError, EOFError, redis.RedisError) as error:
            raise Finding(f"case {number}: {error}") from error
        finally:
            self.leave()

    def step(self, number: int) -> int:
        """Does the next step of one client; returns the number of cases in the step."""
        chance = random.Random(f"{self.seed} {self.part} {number}")
        roll = chance.random()
        mode = next(mode for limit, mode in self.modes if roll < limit)
        self.log.append(f"case {number}, {mode.__name__}")
        made = mode(chance)
        while len(self.clients) > MOST_CLIENTS:
            self.settle(self.clients.pop(chance.randrange(len(self.clients))), chance)
        return max(1, made)

    def client(self, chance: random.Random) -> Client:
        """One of the clients, or a new client."""
        if self.clients and chance.random() < 0.7:
            client = self.clients.pop(chance.randrange(len(self.clients)))
            if client.due < 40:
                return client
            self.settle(client, chance)
        return Client(self.server.socket, chance)

    def settle(self, client: Client, chance: random.Random) -> None:
        """Reads the replies of a client, or disconnects the client without reading."""
        if chance.random() < 0.25:
            client.leave()
            return
        try:
            client.settle()
        except EOFError:
            client.leave()
        else:
            self.clients.append(client)

    def send(self, client: Client, commands: list[Command], chance: random.Random) -> int:
        """Sends commands, and sometimes waits for their replies."""
        self.log.extend(repr(command)[:1000] for command in commands)
        client.send(commands)
        if chance.random() < 0.2:
            self.settle(client, chance)
        else:
            self.clients.insert(0, client)
        return len(commands)

    # ---- steps of clients ----

    def pipeline(self, chance: random.Random) -> int:
        """Sends some commands at once."""
        commands = [self.generator.command(chance) for _ in range(chance.choice([1, 2, 4, 8]))]
        return self.send(self.client(chance), [*self.scene(chance), *commands], chance)

    def scene(self, chance: random.Random) -> list[Command]:
        """Commands that set all keys to good values, or no commands."""
        if chance.random() < 0.75:
            return []
        keys: list[Command] = [["RESTORE", key, 0, dump, "REPLACE"] for key, dump in self.payloads.items()]
        return [*keys, self.generator.wait(chance), self.generator.wait(chance)]

    def transaction(self, chance: random.Random) -> int:
        """Sends commands in a transaction, where commands must not block."""
        made = [self.generator.command(chance), self.generator.wait(chance)]
        if chance.random() < 0.3:
            made.append(self.generator.command(chance))
        end: Command = [chance.choice(["EXEC", "EXEC", "EXEC", "DISCARD"])]
        return self.send(self.client(chance), [["MULTI"], *made, end], chance) - 2

    def script(self, chance: random.Random) -> int:
        """Sends a command from a Lua script."""
        inner = self.generator.wait(chance) if chance.random() < 0.5 else self.generator.command(chance)
        call: Command = ["EVAL", "return redis.pcall(unpack(ARGV))", 0, *inner]
        return self.send(self.client(chance), [call], chance)

    def vanish(self, chance: random.Random) -> int:
        """Sends blocking commands from a new client, which disconnects at once or later."""
        client = Client(self.server.socket, chance)
        commands = self.scene(chance) + [self.generator.wait(chance) for _ in range(chance.choice([1, 1, 3]))]
        self.log.extend(repr(command)[:1000] for command in commands)
        client.send(commands)
        if chance.random() < 0.5:
            client.leave()
        else:
            self.clients.insert(0, client)
        return len(commands)

    def half(self, chance: random.Random) -> int:
        """Sends a truncated or invalid command, and disconnects."""
        client = Client(self.server.socket, chance)
        data = encode(self.generator.command(chance))
        cut = data[: chance.randrange(len(data))]
        kind = chance.randrange(4)
        if kind == 0:
            cut = bytes(chance.choice([*cut, 0, 255]) if chance.random() < 0.02 else byte for byte in cut)
        if kind == 1:
            cut += chance.choice(
                [b"*-1\r\n", b"$-5\r\n", b"*999999999\r\n", b"$999999999999\r\n", b"\r\n", b"*1\r\n$\r\n"]
            )
        self.log.append(repr(cut[:1000]))
        client.send_raw(cut)
        client.leave()
        return 1

    def restore(self, chance: random.Random) -> int:
        """Restores damaged dumps of the module's types, and uses the dumps that were loaded."""
        commands: list[Command] = []
        for _ in range(DUMPS):
            key, name = chance.choice(OURS), chance.choice(sorted(self.payloads))
            commands.append(["RESTORE", key, 0, damaged(chance, self.payloads[name]), "REPLACE"])
            commands.append(["DEBUG", "DIGEST-VALUE", key])
        return self.send(self.client(chance), commands, chance) // 2

    def disturb(self, chance: random.Random) -> int:
        """Does something that the server or an administrator may do at any time."""
        if chance.random() < 0.01:
            self.kill_worker(chance)
        number = chance.randint(1, 2000)
        choices: list[Command] = [
            ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
            ["CLIENT", "KILL", "ID", number],
            ["CLIENT", "PAUSE", 30, chance.choice(["WRITE", "ALL"])],
            ["CLIENT", "PAUSE", 30, chance.choice(["WRITE", "ALL"])],
            ["CLIENT", "UNBLOCK", number, chance.choice(["ERROR", "TIMEOUT"])],
            ["SAVE"],
            ["BGREWRITEAOF"],
            ["ACL", "SETUSER", "reader", chance.choice(["+@all", "-@write"])],
            ["CONFIG", "SET", "qa.max-queue", chance.choice([1, 50, 50, 50, 50])],
            ["CONFIG", "SET", "qa.inference-workers", chance.choice([0, 1, 2, 64, 65, -1, "x"])],
            ["INFO", "everything"],
            ["DEBUG", "SLEEP", "0.01"],
        ]
        rare: list[Command] = [["FLUSHALL", chance.choice(["SYNC", "ASYNC"])], ["SWAPDB", 0, 1]] * 5
        rare += [["DEBUG", "RELOAD"]]
        command = chance.choice(rare) if chance.random() < 0.1 else chance.choice(choices)
        return self.send(Client(self.server.socket, random.Random(0)), [command], chance)

    def kill_worker(self, chance: random.Random) -> None:
        """Kills the worker. Its restarts become slower each time, so this is rare."""
        pid = int(self.server.field("worker_pid"))
        if pid:
            os.kill(pid, chance.choice([signal.SIGKILL, signal.SIGSTOP]))

    # ---- checks ----

    def leave(self) -> None:
        """Disconnects all clients."""
        for client in self.clients:
            client.leave()
        self.clients.clear()

    def rest(self) -> None:
        """Disconnects all clients. Then no resources must remain, and the data must survive saving and loading."""
        self.leave()
        check_alive(self.server)
        check_idle(self.server)
        fill(self.server)
        check_reload(self.server)
        check_alive(self.server)
        now = rest_of(self.server) if self.first is None else check_rest(self.first, self.server)
        self.first = self.first or now
        self.log.append(f"at rest: {now}")
        self.grew = now.memory - self.first.memory
