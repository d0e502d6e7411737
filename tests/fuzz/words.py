"""Single arguments of the fuzzer, good and broken, and the encoding of commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Word = str | bytes | int
Command = list[Word]
Maker = Callable[[random.Random], Command]
# A word, a list of which one is drawn, or a function that draws.
Part = Word | Sequence[object] | Callable[[random.Random], Word | Command]

TENSORS = ["t1", "t2"]
MODELS = ["m1", "m2"]
SCRIPTS = ["sc1", "sc2"]
INDEXES = ["ix1", "ix2"]
OURS = [*TENSORS, *MODELS, *SCRIPTS, *INDEXES]  # keys with values of the module's types
PLAIN = ["s", "list", "ev:1", "ev:stream", "hook:a", "hook:hang", "miss:1"]
KEYS = [*OURS, *PLAIN, "absent", "", "a\r\n+OK", "\0", "k" * 3000]
NUMBERS: list[Word] = [0, 1, 2, 3, -1, -128, 127, 256, 65535, 2**31, 2**32 + 1, 2**62, -(2**63), 2**63, 2**64]
NUMBERS += ["1e400", "nan", "-inf", "1.5", "", "x", "0x10", " 1", "+1", "00", "9" * 400]
TYPES = ["FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "BOOL", "STRING", "FLOAT16", "int8"]
KEYWORDS = [
    "BLOB",
    "VALUES",
    "META",
    "SOURCE",
    "INPUTS",
    "OUTPUTS",
    "KEYS",
    "ARGS",
    "TIMEOUT",
    "TAG",
    "BATCHSIZE",
    "MINBATCHSIZE",
    "MINBATCHTIMEOUT",
    "GET",
    "ENTRY_POINTS",
    "LOAD",
    "PERSIST",
    "ROUTING",
    "|>",
    "$",
    "REQUIREMENTS",
    "UNBLOCKING",
    "ID",
    "DESCRIPTION",
    "UPGRADE",
    "REPLACE_WITH",
    "RESETSTAT",
    "CLUSTER",
    "SHARD",
    "ABORTPENDING",
    "VERBOSE",
    "DEAD",
    "SESSIONS",
    "MODEL_CHUNK_SIZE",
    "BACKENDSPATH",
    "LOADBACKEND",
    "STATS",
    "FILTER",
    "TERMS",
]
DEVICES = ["CPU", "CPU:1", "GPU", "GPU:0", "cpu", "CPU:", "CPU:99999999", "TPU", ""]
FUNCTIONS = ["bar", "baz", "absent", ""]
TRIGGERS = ["echo", "echo", "do", "absent"]
RESP = [b"+OK\r\n", b"-ERR x\r\n", b":5\r\n", b"$-1\r\n", b"*-1\r\n", b"*1\r\n$1\r\na\r\n", b"*2\r\n:1\r\n"]
RESP += [b"$5\r\nab\r\n", b"", b"x", b"*1\r\n" * 200 + b":1\r\n", b"*2147483647\r\n", b"$9223372036854775807\r\n"]
RESP += [b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n", b"*0\r\n", b"+a\nb\r\n", b"-\r\n", b":\r\n", b"*1\r\n*-1\r\n"]


def junk(chance: random.Random) -> bytes:
    """Random bytes."""
    return chance.randbytes(chance.choice([0, 1, 7, 64, 1000]))


def word(chance: random.Random) -> Word:
    """A random argument."""
    kind = chance.randrange(7)
    if kind == 0:
        return junk(chance)
    return chance.choice((KEYS, NUMBERS, TYPES, KEYWORDS, RESP, DEVICES)[kind - 1])


def words(chance: random.Random, most: int = 6) -> Command:
    """Some random arguments."""
    return [word(chance) for _ in range(chance.randint(0, most))]


def drawn(name: str, *parts: Part) -> Maker:
    """A maker of a command, whose parts are drawn one after the other. A drawn part may be several arguments."""

    def make(chance: random.Random) -> Command:
        made: Command = [name]
        for part in parts:
            found: object = part(chance) if callable(part) else part
            if isinstance(found, list) and not callable(part):
                found = chance.choice(found)
            made += found if isinstance(found, list) else [found]
        return made

    return make


def encode(parts: Sequence[Word]) -> bytes:
    """A command as RESP."""
    data = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(data) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in data)
