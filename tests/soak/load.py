"""The load: questions with known answers; documents that are written and deleted; tensors, models and functions.

Every thread knows the right answers; `Verdicts` counts the outcomes.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import redis

from qa_cluster.client import Client, NotFound
from qa_cluster.cluster.nodes.formation import slot_ranges
from qa_cluster.hashtags import hashtag_for_slot
from tests.fuzz.words import encode
from tests.gears.onnx_file import add_model
from tests.harness.polling import eventually
from tests.harness.system import SHARDS, System
from tests.soak.gate import Gate
from tests.soak.verdicts import Verdicts, Wrong

TOWNS = 30
BOOKS = 4
PAUSE_SECONDS = 0.02
STREAM_SECONDS = 60.0  # a few workers may die during a run, and each death costs seconds
STOP_SECONDS = 90.0  # the longest turn ends within this time
SLEEPS = """
import time
def sleep(words):
    time.sleep(float(words[1]))
    return words[2]
GB('CommandReader').map(sleep).register(trigger='soak.sleep', mode='async_local')
"""
SLOW_STREAM = """
import time
def slow(record):
    time.sleep(0.3)
    execute('SADD', 'soak-seen:' + record['key'].partition(':')[2], record['value']['n'])
GB('StreamReader').foreach(slow).register(prefix='soak-in:*', batch=5, duration=100, mode='async_local',
    onFailedPolicy='retry', onFailedRetryInterval=1)
"""
REGISTER = "GB('CommandReader').map(lambda words: '/'.join(words[1:])).register(trigger='{name}', mode='async_local')"


def last_errors(client: Any) -> list[str]:
    """The last errors of the shard's registrations on streams."""
    rows = [dict(zip(row[::2], row[1::2], strict=True)) for row in client.execute_command("RG.DUMPREGISTRATIONS")]
    data = [
        dict(zip(row["RegistrationData"][::2], row["RegistrationData"][1::2], strict=True))
        for row in rows
        if row["reader"] == "StreamReader"
    ]
    return [str(each["lastError"]) for each in data]


def town(number: int) -> tuple[str, str, str, str]:
    """The id, text, question and answer of a document that is not deleted."""
    text = f"The city of Town{number} was founded in {1500 + number} by the explorer Number{number} Smith."
    return f"town-{number}", text, f"When was the city of Town{number} founded?", str(1500 + number)


class Load:
    """The threads."""

    def __init__(self, system: System, seed: int, gate: Gate) -> None:
        self.system = system
        self.seed = seed
        self.gate = gate
        self.verdicts = Verdicts()
        self.ending = threading.Event()
        self.threads: list[threading.Thread] = []
        self.broken: list[str] = []
        self.tags = ["{" + hashtag_for_slot(first) + "}" for first, _ in slot_ranges(SHARDS)]
        self.known: list[int] = []
        self.opened = ExitStack()

    def rest(self) -> Client:
        """A client of the service, which closes at the end."""
        return self.opened.enter_context(Client(f"http://127.0.0.1:{self.system.port}"))

    def prepare(self) -> None:
        """Stores documents, models and a trigger, and selects the questions that the reader answers correctly."""
        client = self.rest()
        for number in range(TOWNS):
            client.put_document(*town(number)[:2])
        for number in range(TOWNS):
            _, _, question, answer = town(number)
            found = client.ask(question).answers
            if found and found[0].answer == answer:
                self.known.append(number)
        if len(self.known) < TOWNS * 0.8:
            raise RuntimeError(f"the reader knows only {len(self.known)} of {TOWNS} answers")
        for index, tag in enumerate(self.tags):
            node = self.system.nodes[index]
            node.execute_command("AI.MODELSTORE", f"add{tag}", "ONNX", "CPU", "BATCHSIZE", 8, "BLOB", add_model())
        self.system.nodes[0].execute_command("RG.PYEXECUTE", REGISTER.format(name="soak.echo"), "ID", "soak")
        self.system.nodes[0].execute_command("RG.PYEXECUTE", SLEEPS, "ID", "soak-sleeps")
        self.system.nodes[0].execute_command("RG.PYEXECUTE", SLOW_STREAM, "ID", "soak-stream")

    def start(self) -> None:
        """Starts all threads."""
        bodies: list[Callable[[random.Random], Callable[[], None]]] = [self.asker, self.asker, self.writer, self.runner]
        bodies += [self.caller, self.registrar, self.sluggard, self.sleeper, self.streamer]
        for number, body in enumerate(bodies):
            chance = random.Random(f"{self.seed} load {number}")
            thread = threading.Thread(target=self._loop, args=(body, chance), daemon=True)
            self.threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ends all threads."""
        self.ending.set()
        until = time.monotonic() + STOP_SECONDS
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self.threads):
            self.broken.append("a client waits forever")

    def _loop(self, body: Callable[[random.Random], Callable[[], None]], chance: random.Random) -> None:
        try:
            turn = body(chance)
            while not self.ending.is_set():
                with self.gate:
                    turn()
                time.sleep(PAUSE_SECONDS)
        except Exception as error:
            self.broken.append(f"{body.__name__}: {error!r}")

    def asker(self, chance: random.Random) -> Callable[[], None]:
        """Asks questions over HTTP."""
        client = self.rest()

        def ask() -> None:
            _, _, question, answer = town(chance.choice(self.known))
            result = client.ask(question)
            found = result.answers
            # a partial result says that the documents of a killed worker or server are missing
            if not result.index.partial and (not found or found[0].answer != answer):
                raise Wrong(f"{question!r}: {found and found[0].answer!r}, right is {answer!r}")

        return lambda: self.verdicts.attempt("question", ask)

    def writer(self, chance: random.Random) -> Callable[[], None]:
        """Writes, asks and deletes documents. A failed write may have succeeded on the shard."""
        client = self.rest()
        stands: dict[str, set[str | None]] = {f"book{number}": {None} for number in range(BOOKS)}
        steps = iter(range(10**9))

        def write(name: str) -> None:
            author = f"Author{next(steps)}"
            text = f"{author} wrote the famous book {name} long ago."
            stands[name].add(author)
            client.put_document(name, text)
            stands[name] = {author}

        def delete(name: str) -> None:
            stands[name].add(None)
            try:
                client.delete_document(name)
            except NotFound:
                if None not in stands[name]:
                    raise
            stands[name] = {None}

        def ask(name: str) -> None:
            found = client.ask(f"Who wrote the famous book {name}?", doc_id=name, top_k=1, no_answer=False).answers
            if found and found[0].answer not in stands[name]:
                raise Wrong(f"{name}: {found[0].answer!r}, stored is {stands[name]}")

        def turn() -> None:
            name, roll = chance.choice(sorted(stands)), chance.random()
            kind, call = ("write", write) if roll < 0.25 else ("delete", delete) if roll < 0.35 else ("read back", ask)
            self.verdicts.attempt(kind, lambda: call(name))

        return turn

    def runner(self, chance: random.Random) -> Callable[[], None]:
        """Runs tensor commands and a tiny model on each shard."""
        clients = [self.system.client(index) for index in range(SHARDS)]

        def run() -> None:
            index = chance.randrange(SHARDS)
            client, tag = clients[index], self.tags[index]
            values = [chance.randint(0, 1000) for _ in range(4)]
            for name in ("a", "b"):
                client.execute_command("AI.TENSORSET", f"{name}{tag}", "FLOAT", 4, "VALUES", *values)
            client.execute_command(
                "AI.MODELEXECUTE", f"add{tag}", "INPUTS", 2, f"a{tag}", f"b{tag}", "OUTPUTS", 1, f"sum{tag}"
            )
            found = [float(value) for value in client.execute_command("AI.TENSORGET", f"sum{tag}", "VALUES")]
            if found != [2.0 * value for value in values]:
                raise Wrong(f"{values} + {values} = {found}")

        return lambda: self.verdicts.attempt("model", run)

    def caller(self, chance: random.Random) -> Callable[[], None]:
        """Calls a trigger, and starts runs over the whole cluster."""
        clients = [self.system.client(index) for index in range(SHARDS)]

        def trigger() -> None:
            number = str(chance.random())
            found = chance.choice(clients).execute_command("RG.TRIGGER", "soak.echo", number, "x")
            if found != [f"{number}/x"]:
                raise Wrong(f"echo of {number}: {found}")

        def count() -> None:
            script = "GB('ShardsIDReader').flatmap(lambda _: list(range(50))).count().run()"
            results, errors = chance.choice(clients).execute_command("RG.PYEXECUTE", script)
            if errors:
                raise redis.ResponseError(str(errors[0]))
            if results != [str(50 * SHARDS)]:
                raise Wrong(f"count of {SHARDS} shards: {results}")

        def turn() -> None:
            self.verdicts.attempt("run", count) if chance.random() < 0.1 else self.verdicts.attempt("trigger", trigger)

        return turn

    def sleeper(self, chance: random.Random) -> Callable[[], None]:
        """Calls a trigger that sleeps: only its caller waits."""
        clients = [self.system.client(index) for index in range(SHARDS)]

        def sleep() -> None:
            number = str(chance.random())
            client = chance.choice(clients)
            found = client.execute_command("RG.TRIGGER", "soak.sleep", chance.choice(["0.1", "1"]), number)
            if found != [number]:
                raise Wrong(f"sleep of {number}: {found}")

        return lambda: self.verdicts.attempt("slow trigger", sleep)

    def streamer(self, chance: random.Random) -> Callable[[], None]:
        """Adds entries to streams whose function is slow, and waits until the function has processed all entries."""
        clients = [self.system.client(index) for index in range(SHARDS)]
        numbers = iter(range(10**9))

        def add() -> None:
            index = chance.randrange(SHARDS)
            client, tag, number = clients[index], self.tags[index], str(next(numbers))
            client.execute_command("XADD", f"soak-in:{tag}", "*", "n", number)
            seen = f"soak-seen:{tag}"
            try:
                eventually(lambda: client.execute_command("SISMEMBER", seen, number), STREAM_SECONDS, pause=0.1)
            except AssertionError:
                waiting = client.execute_command("XLEN", f"soak-in:{tag}")
                raise Wrong(
                    f"entry {number} of {tag} was not taken within {STREAM_SECONDS:g} s: {waiting} entries in the"
                    f" stream, {last_errors(client)}"
                ) from None
            client.execute_command("SREM", seen, number)

        return lambda: self.verdicts.attempt("slow stream", add)

    def registrar(self, chance: random.Random) -> Callable[[], None]:
        """Registers and unregisters functions."""
        client = self.system.client(0)

        def turn() -> None:
            name = f"soak.{chance.randrange(3)}"
            time.sleep(0.3)
            words = ["RG.PYEXECUTE", REGISTER.format(name=name), "ID", name, "UPGRADE"]
            self.verdicts.attempt("register", lambda: registered(client.execute_command(*words)))
            self.verdicts.attempt("unregister", lambda: unregister(client, name))

        return turn

    def sluggard(self, chance: random.Random) -> Callable[[], None]:
        """Clients that send many requests and read no replies, and clients that disconnect while they wait."""

        def turn() -> None:
            address = chance.choice(self.system.addresses)
            with socket.create_connection(address, 30) as connected:
                connected.sendall(encode(["RG.TRIGGER", "soak.echo", "x" * 1000]) * 20)
                time.sleep(chance.choice([0, 0.05, 1]))

        return lambda: self.verdicts.attempt("left alone", turn)


def registered(reply: object) -> None:
    """Raises Wrong if RG.PYEXECUTE did not reply OK to a registration, and ResponseError if a shard failed."""
    if isinstance(reply, list) and reply:
        raise redis.ResponseError(str(reply[0]))
    expect(reply, "OK")


def expect(found: object, wanted: object) -> None:
    """Raises Wrong if the values differ."""
    if found != wanted:
        raise Wrong(f"{found!r}, expected {wanted!r}")


def unregister(client: Any, name: str) -> None:
    """Removes the registrations of a trigger."""
    for row in client.execute_command("RG.DUMPREGISTRATIONS"):
        fields = dict(zip(row[::2], row[1::2], strict=True))
        data = dict(zip(fields["RegistrationData"][::2], fields["RegistrationData"][1::2], strict=True))
        if name in data["args"]:
            expect(client.execute_command("RG.UNREGISTER", fields["id"]), "OK")
