"""Random commands: of every shape the module knows, and broken ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Word = str | bytes | int
Command = list[Word]

KEYS = ["t1", "t2", "m1", "m2", "s", "absent", "hook:a", "hook:hang", "ev:1", "miss:1"]
KEYS += ["", "a\r\n+OK", "\0", "k" * 3000]
NUMBERS: list[Word] = [0, 1, 2, 3, -1, -128, 127, 256, 2**31, 2**32 + 1, 2**62, -(2**63), 2**63]
NUMBERS += ["1e400", "nan", "1.5", "", "x", "0x10"]
TYPES = ["FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "BOOL", "STRING", "FLOAT16", "int8"]
WORDS = [
    "BLOB",
    "VALUES",
    "META",
    "INPUTS",
    "OUTPUTS",
    "TIMEOUT",
    "TAG",
    "BATCHSIZE",
    "MINBATCHSIZE",
    "MINBATCHTIMEOUT",
    "GET",
    "REQUIREMENTS",
]
NAMES = [
    "AI.TENSORSET",
    "AI.TENSORGET",
    "AI.MODELSTORE",
    "AI.MODELSET",
    "AI.MODELGET",
    "AI.MODELDEL",
    "AI._MODELSCAN",
    "AI.INFO",
    "AI.CONFIG",
    "AI.MODELEXECUTE",
    "AI.MODELRUN",
    "RG.PYEXECUTE",
    "RG.TRIGGER",
    "RG.DUMPREGISTRATIONS",
    "RG.UNREGISTER",
    "RG.PYSTATS",
    "RG.INFOCLUSTER",
    "RG.REFRESHCLUSTER",
    "RG.CONFIGGET",
    "RG.CONFIGSET",
    "RG.GETRESULTS",
    "RG.GETRESULTSBLOCKING",
    "RG.GETEXECUTION",
    "RG.DUMPEXECUTIONS",
    "RG.PYDUMPSESSIONS",
    "RG.DROPEXECUTION",
    "RG.ABORTEXECUTION",
    "RG.INNERHOOK",
    "QA.HELLO",
    "QA.READY",
    "QA.BEAT",
    "QA.NEXT",
    "QA.DONE",
    "QA.SEND",
    "QA.SESSIONS",
    "QA.REGISTER",
    "QA.ATOMIC",
    "QA.MODELREF",
    "QA.MODEL",
]
RESP = [b"+OK\r\n", b"-ERR x\r\n", b":5\r\n", b"$-1\r\n", b"*-1\r\n", b"*1\r\n$1\r\na\r\n", b"*2\r\n:1\r\n"]
RESP += [b"$5\r\nab\r\n", b"", b"x", b"*1\r\n" * 200 + b":1\r\n", b"*2147483647\r\n", b"$9223372036854775807\r\n"]
RESP += [b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n"]


def junk(chance: random.Random) -> bytes:
    """Bytes of any kind."""
    return chance.randbytes(chance.choice([0, 1, 7, 64, 1000]))


def word(chance: random.Random) -> Word:
    """An argument of any kind."""
    kind = chance.randrange(6)
    if kind == 0:
        return junk(chance)
    return chance.choice((KEYS, NUMBERS, TYPES, WORDS, RESP)[kind - 1])


def words(chance: random.Random, most: int = 6) -> Command:
    """Some arguments."""
    return [word(chance) for _ in range(chance.randint(0, most))]


def tensorset(chance: random.Random) -> Command:
    """Mostly a good tensor."""
    size = chance.randint(1, 4)
    values: Command = [chance.choice(NUMBERS) if chance.random() < 0.1 else chance.randint(0, 1) for _ in range(size)]
    data: Command = chance.choice([["VALUES", *values], ["BLOB", bytes(size * chance.choice([1, 2, 4, 8]))], [], []])
    return ["AI.TENSORSET", chance.choice(KEYS[:2]), chance.choice(TYPES), size, *data]


def modelstore(chance: random.Random) -> Command:
    """Mostly a good model."""
    options: Command = chance.choice([[], ["TAG", "t"], ["BATCHSIZE", 4], ["BATCHSIZE", 4, "MINBATCHSIZE", 2]])
    name = chance.choice(["AI.MODELSTORE", "AI.MODELSET"])
    head: Command = [name, chance.choice(KEYS[2:4]), chance.choice(["ONNX", "TORCH"]), "CPU"]
    return [*head, *options, "BLOB", b"model", junk(chance)]


def execute(chance: random.Random) -> Command:
    """Mostly a good run."""
    output = chance.choice(["t1", "t2", "t2", "m1", "s"])
    run: Command = ["AI.MODELEXECUTE", chance.choice(KEYS[2:4]), "INPUTS", 1, "t1", "OUTPUTS", 1, output]
    return run + (["TIMEOUT", chance.choice([1, 50, 2**31])] if chance.random() < 0.3 else [])


def transaction(chance: random.Random) -> Command:
    """The module's commands where they may not block."""
    inner = [str(w) if isinstance(w, int) else w for w in command(chance, nested=True)]
    return ["EVAL", "return redis.pcall(unpack(ARGV))", 0, *inner]


SHAPES: list[Callable[[random.Random], Command]] = [
    *[tensorset] * 3,
    *[modelstore] * 2,
    *[execute] * 5,
    lambda chance: ["AI.TENSORGET", chance.choice(KEYS[:6]), chance.choice(["VALUES", "BLOB", "META"])],
    *[lambda chance: ["RG.TRIGGER", chance.choice(["echo", "echo", "do"]), *words(chance, 2)]] * 3,
    lambda chance: ["RG.PYEXECUTE", junk(chance), *words(chance, 3)],
    lambda chance: [chance.choice(["GET", "MGET"]), chance.choice(KEYS[6:8])],
    lambda chance: ["RG.INNERHOOK", chance.choice(["GET", "MGET", "SET", "RG.INNERHOOK"]), *words(chance, 2)],
    lambda chance: ["SET", chance.choice(["ev:1", "hook:a", "s"]), "v"],
    lambda chance: [chance.choice(["DEL", "UNLINK"]), chance.choice(KEYS[:9])],
    lambda chance: ["COPY", chance.choice(KEYS[:4]), chance.choice(KEYS[:4]), "REPLACE"],
    lambda chance: ["RENAME", chance.choice(KEYS[:4]), chance.choice(KEYS[:4])],
]


def command(chance: random.Random, nested: bool = False) -> Command:
    """One command."""
    roll = chance.random()
    if roll < 0.65:
        made = chance.choice(SHAPES)(chance)
    elif roll < 0.9 or nested:
        made = [chance.choice(NAMES), *words(chance)]
    else:
        return transaction(chance)
    if len(made) > 1 and chance.random() < 0.15:
        made[chance.randrange(1, len(made))] = word(chance)
    return made


def encode(parts: Sequence[Word]) -> bytes:
    """A command as RESP."""
    data = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(data) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in data)
