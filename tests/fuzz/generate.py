"""Random commands of all names of the module: well formed, damaged, or nonsense."""

from __future__ import annotations

import random
from collections.abc import Sequence

from qa_cluster.gears.shard.forbidden import is_internal
from tests.fuzz.shapes import SHAPES, bare
from tests.fuzz.words import KEYS, OURS, PLAIN, Command, Word, word, words

# Commands that may block their client. Some clients disconnect while they are blocked.
BLOCKING = [
    "AI.MODELSTORE",
    "AI.MODELSET",
    "AI.MODELEXECUTE",
    "AI.MODELRUN",
    "AI.SCRIPTSTORE",
    "AI.SCRIPTSET",
    "AI.SCRIPTEXECUTE",
    "AI.SCRIPTRUN",
    "AI.DAGEXECUTE",
    "AI.DAGEXECUTE_RO",
    "RG.TRIGGER",
    "RG.TRIGGERONKEY",
    "RG.PYEXECUTE",
    "RG.GETRESULTSBLOCKING",
    "RG.GETRESULTS",
    "RG.GETEXECUTION",
    "RG.DUMPEXECUTIONS",
    "RG.ABORTEXECUTION",
    "RG.PYDUMPSESSIONS",
]
# Random commands have these names more often.
FAVOURITES = [
    "AI.TENSORSET",
    "AI.TENSORSET",
    "AI.MODELSTORE",
    "AI.SCRIPTSTORE",
    "AI.MODELEXECUTE",
    "AI.DAGEXECUTE",
    "RG.TRIGGER",
]


class Generator:
    """Makes commands from the server's list of names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = sorted(name.upper() for name in names)
        self.blocking = [name for name in BLOCKING if name in self.names]
        self.favourites = [name for name in FAVOURITES if name in self.names]
        self.internal = [name for name in self.names if is_internal(name)]
        self.public = [name for name in self.names if not is_internal(name)]

    def command(self, chance: random.Random) -> Command:
        """A command of any kind."""
        roll = chance.random()
        if roll < 0.15:
            return neighbour(chance)
        if roll < 0.4:
            return self.of(chance, chance.choice(self.favourites))
        return self.of(chance, chance.choice(self.public if roll < 0.92 else self.internal))

    def of(self, chance: random.Random, name: str) -> Command:
        """A command of this name, which is well formed in half of the cases."""
        roll = chance.random()
        if roll < 0.15:
            return [name, *words(chance)]
        made = SHAPES.get(name, bare(name))(chance)
        return spoil(chance, made) if roll < 0.5 else made

    def wait(self, chance: random.Random) -> Command:
        """A well-formed command that blocks its client."""
        if chance.random() < 0.15:
            return ["GET", chance.choice(["hook:a", "hook:hang"])]
        name = chance.choice(self.blocking)
        return SHAPES.get(name, bare(name))(chance)


def spoil(chance: random.Random, command: Command) -> Command:
    """Damages the arguments of a command."""
    made = list(command)
    for _ in range(chance.choice([1, 1, 2])):
        kind = chance.randrange(6)
        at = chance.randrange(1, len(made)) if len(made) > 1 else 0
        if kind == 0 and at:
            del made[at]
        elif kind == 1 and at:
            made[at] = word(chance)
        elif kind == 2:
            made.insert(chance.randint(1, len(made)), word(chance))
        elif kind == 3 and at:
            made = made[: at + 1]
        elif kind == 4 and at:
            other = chance.randrange(1, len(made))
            made[at], made[other] = made[other], made[at]
        elif kind == 5:
            made += made[at or 1 :] * chance.choice([1, 1, 3])
    return made[:2000]


def neighbour(chance: random.Random) -> Command:
    """A command of the server itself on the fuzzer's keys."""
    value: Word = chance.choice(["v", "1"])
    commands: list[Command] = [
        ["GET", chance.choice(KEYS)],
        ["MGET", chance.choice(KEYS), chance.choice(PLAIN)],
        ["SET", chance.choice(["ev:1", "hook:a", "s"]), value],
        ["XADD", "ev:stream", "MAXLEN", 50, "*", "f", value],
        [chance.choice(["DEL", "UNLINK"]), chance.choice(KEYS)],
        ["COPY", chance.choice(OURS), chance.choice(OURS), "REPLACE"],
        ["RENAME", chance.choice(OURS), chance.choice(OURS)],
        ["OBJECT", chance.choice(["ENCODING", "FREQ", "IDLETIME"]), chance.choice(OURS)],
        ["MEMORY", "USAGE", chance.choice(KEYS)],
        ["TYPE", chance.choice(KEYS)],
        ["DUMP", chance.choice(KEYS)],
        ["PEXPIRE", chance.choice(OURS), chance.choice([1, 20, 1000])],
        ["INCR", chance.choice(KEYS)],
        ["MOVE", chance.choice(OURS), 1],
        ["COMMAND", "GETKEYS", *spoil(chance, SHAPES[chance.choice(["AI.DAGEXECUTE", "AI.SCRIPTEXECUTE"])](chance))],
    ]
    return chance.choice(commands)
