"""Makers of well-formed AI.*, RG.* and QA.* commands, which `generate` damages.

Commands without a maker get random arguments. The hostile worker also sends the worker's commands (QA.*) on its links.
"""

from __future__ import annotations

import random

from tests.fuzz.index_shapes import INDEX_SHAPES
from tests.fuzz.words import (
    FUNCTIONS,
    KEYS,
    KEYWORDS,
    MODELS,
    NUMBERS,
    OURS,
    RESP,
    SCRIPTS,
    TENSORS,
    TRIGGERS,
    TYPES,
    Command,
    Maker,
    Word,
    drawn,
    junk,
    word,
    words,
)

SIZES = {"FLOAT": 4, "DOUBLE": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8, "UINT8": 1, "UINT16": 2, "BOOL": 1}
BLOBS: list[Word] = [*range(401)]  # numbers of stored models and scripts
SOURCE = "def bar(tensors: List[Tensor], keys: List[str], args: List[str]):\n    return tensors[0]\n"


def counted(keyword: str, chosen: list[Word]) -> Command:
    """`KEYWORD n word..`."""
    return [keyword, len(chosen), *chosen]


def timeout(chance: random.Random) -> Command:
    """Sometimes a TIMEOUT."""
    return ["TIMEOUT", chance.choice([0, 1, 50, 2**31])] if chance.random() < 0.3 else []


def some(chance: random.Random, names: list[str], most: int = 2) -> list[Word]:
    """A few of the names, perhaps with a repetition."""
    return [chance.choice(names) for _ in range(chance.randint(1, most))]


def tensorset(chance: random.Random, key: Word | None = None) -> Command:
    """A tensor, usually good."""
    dtype, size = chance.choice(TYPES), chance.randint(1, 4)
    values: Command = [chance.choice(NUMBERS) if chance.random() < 0.1 else chance.randint(0, 1) for _ in range(size)]
    blob = b"a\0" * size if dtype == "STRING" else bytes(size * SIZES.get(dtype, 1))
    data: Command = chance.choice([["VALUES", *values], ["BLOB", blob], ["BLOB", blob], [], []])
    shape: Command = [size] if chance.random() < 0.8 else [1, size, 1]
    return ["AI.TENSORSET", key if key is not None else chance.choice(TENSORS), dtype, *shape, *data]


def tensorget(chance: random.Random) -> Command:
    return ["AI.TENSORGET", chance.choice(TENSORS), *chance.sample(["META", "VALUES", "BLOB"], chance.randint(0, 2))]


def modelstore(chance: random.Random) -> Command:
    """A model, usually good."""
    options: list[Command] = [
        [],
        [],
        ["TAG", "t"],
        ["BATCHSIZE", 4],
        ["BATCHSIZE", 4, "MINBATCHSIZE", 2],
        ["TAG", "t", "BATCHSIZE", 4, "MINBATCHSIZE", 2, "MINBATCHTIMEOUT", 10],
        ["INPUTS", 1, "a", "OUTPUTS", 1, "b"],
    ]
    chunks: Command = [b"model"] if chance.random() < 0.5 else [b"mo", b"", junk(chance)]
    backend = chance.choice(["ONNX", "ONNX", "TORCH", "TF", "TFLITE"])
    return ["AI.MODELSTORE", chance.choice(MODELS), backend, "CPU", *chance.choice(options), "BLOB", *chunks]


def modelexecute(chance: random.Random) -> Command:
    """A run, usually good."""
    output = chance.choice(["t1", "t2", "t2", "m1", "s"])
    key = chance.choice(MODELS)
    return ["AI.MODELEXECUTE", key, "INPUTS", 1, "t1", "OUTPUTS", 1, output, *timeout(chance)]


def modelrun(chance: random.Random) -> Command:
    return ["AI.MODELRUN", chance.choice(MODELS), *timeout(chance), "INPUTS", "t1", "OUTPUTS", "t2"]


def scriptstore(chance: random.Random) -> Command:
    tag: Command = ["TAG", "t"] if chance.random() < 0.3 else []
    points = counted("ENTRY_POINTS", some(chance, FUNCTIONS[:2]))
    return ["AI.SCRIPTSTORE", chance.choice(SCRIPTS), "CPU", *tag, *points, "SOURCE", chance.choice([SOURCE, "x"])]


def scriptset(chance: random.Random) -> Command:
    tag: Command = ["TAG", "t"] if chance.random() < 0.3 else []
    return ["AI.SCRIPTSET", chance.choice(SCRIPTS), "CPU", *tag, "SOURCE", SOURCE]


def scriptexecute(chance: random.Random) -> Command:
    parts: list[Command] = []
    if chance.random() < 0.4:
        parts.append(counted("KEYS", some(chance, KEYS[:11])))
    parts.append(counted("INPUTS", some(chance, TENSORS)))
    if chance.random() < 0.4:
        parts.append(counted("ARGS", words(chance, 2)))
    if chance.random() < 0.8:
        parts.append(counted("OUTPUTS", some(chance, ["t1", "t2", "s"])))
    parts.append(timeout(chance))
    if chance.random() < 0.15:
        chance.shuffle(parts)
    head: Command = ["AI.SCRIPTEXECUTE", chance.choice(SCRIPTS), chance.choice(FUNCTIONS[:3])]
    return [*head, *[argument for part in parts for argument in part]]


def scriptrun(chance: random.Random) -> Command:
    head: Command = ["AI.SCRIPTRUN", chance.choice(SCRIPTS), "bar", *timeout(chance)]
    return [*head, "INPUTS", "t1", "$", "t2", "OUTPUTS", "t2"]


STEPS: list[Maker] = [tensorset, tensorget, modelexecute, modelexecute, scriptexecute, modelrun, scriptrun]


def dag_step(chance: random.Random) -> Command:
    """A step of a DAG, on the names of the DAG's tensors."""
    if chance.random() < 0.3:
        local: Word = chance.choice(["x", "y", "t1"])
        return chance.choice([tensorset(chance, local), ["AI.TENSORGET", local, "VALUES"]])
    made = chance.choice(STEPS if chance.random() < 0.2 else STEPS[:4])(chance)
    if chance.random() < 0.1:
        made = made[: chance.randint(0, len(made))]
    return made


def dagexecute(chance: random.Random) -> Command:
    parts: list[Command] = [counted("LOAD", some(chance, TENSORS))]
    if chance.random() < 0.6:
        parts.append(counted("PERSIST", [chance.choice(["t1", "t2"])]))
    if chance.random() < 0.3:
        parts.append(["ROUTING", chance.choice(TENSORS)])
    parts.append(timeout(chance))
    if chance.random() < 0.15:
        chance.shuffle(parts)
    name = chance.choice(["AI.DAGEXECUTE", "AI.DAGEXECUTE", "AI.DAGEXECUTE_RO"])
    made: Command = [name, *[argument for part in parts for argument in part]]
    for _ in range(chance.choice([0, 1, 1, 2, 3, 30])):
        made += ["|>", *dag_step(chance)]
    return made


def dag(name: str) -> Maker:
    """A command with the arguments of AI.DAGEXECUTE."""
    return lambda chance: [name, *dagexecute(chance)[1:]]


def ai_config(chance: random.Random) -> Command:
    choices: list[Command] = [["GET", "MODEL_CHUNK_SIZE"], ["MODEL_CHUNK_SIZE", chance.choice([1, 3, 535822336])]]
    choices += [["BACKENDSPATH", "x"], ["LOADBACKEND", "TORCH", "x"], ["GET", "BACKENDSPATH"]]
    return ["AI.CONFIG", *chance.choice(choices)]


def pyexecute(chance: random.Random) -> Command:
    options: list[Command] = [["UNBLOCKING"], ["ID", "a"], ["DESCRIPTION", "d"], ["UPGRADE"], ["NO_RUN"]]
    options.append(["REPLACE_WITH", "b"])
    chosen = [argument for option in chance.sample(options, chance.randint(0, 3)) for argument in option]
    return ["RG.PYEXECUTE", junk(chance), *chosen, *chance.choice([[], ["REQUIREMENTS", "redis", "numpy"]])]


def few(chance: random.Random) -> Command:
    """At most two random arguments."""
    return words(chance, 2)


def registration_id(chance: random.Random) -> str:
    """One of many ids, because an unregistered id cannot be registered again."""
    return f"r-{chance.randrange(100_000)}"


def of_id(name: str, *more: Command) -> Maker:
    """A command about a registration or an execution."""

    def make(chance: random.Random) -> Command:
        prefix = "0" * 40 + "-"
        number = prefix + str(chance.randint(0, 3))
        chosen = chance.choice([number, registration_id(chance), f"id-{chance.randint(1, 100)}", prefix])
        return [name, chosen, *chance.choice([[], *more])]

    return make


def config(name: str) -> Maker:
    """RG.CONFIGGET and RG.CONFIGSET."""

    def make(chance: random.Random) -> Command:
        keys: list[Word] = ["ExecutionMaxIdleTime", "MaxExecutions", "mine", word(chance)]
        made: Command = [name]
        for _ in range(chance.randint(1, 3)):
            made += [chance.choice(keys)] if name == "RG.CONFIGGET" else [chance.choice(keys), word(chance)]
        return made

    return make


def done(chance: random.Random) -> Command:
    """QA.DONE of some job, with any outcome."""
    tensor: Command = ["INT8", 1, 2, b"\0\1"]
    step: Command = [chance.choice(["OK", "ERR", "NA", "x"]), 5, 1, chance.choice(["", "ERR x"])]
    outcomes: list[Command] = [["OK", chance.choice(RESP)], ["OVERRIDE", chance.choice(RESP)], ["SKIP"], ["TIMEDOUT"]]
    outcomes += [["ERR", "ERR x"], ["TENSORS", 1, *tensor], ["DAG", 1, *step, 1, *tensor], ["DAG", 1, *step, 1, "NA"]]
    return ["QA.DONE", chance.choice([*range(40), 0, -1, 2**63 - 1]), *chance.choice(outcomes)]


def registration(chance: random.Random) -> list[Word]:
    """A registration, sometimes good."""
    reader = chance.choice(["KeysReader", "CommandReader", "StreamReader", "x"])
    match = chance.choice(["hook:*", "ev:*", "echo", "do", "*", ""])
    events, commands = chance.choice(["", "keymiss", "set,del"]), chance.choice(["", "get", "get,mget", "set"])
    fields: list[Word] = [registration_id(chance), reader, "async", "", match]
    fields += [events, commands, chance.choice(RESP), "pd", chance.choice(["own", "user"]), chance.randint(0, 4)]
    if chance.random() < 0.1:
        fields[chance.randrange(len(fields))] = word(chance)
    return fields


def register(chance: random.Random) -> Command:
    """QA.REGISTER of one of a few sessions, so that the number of sessions stays small."""
    count = chance.randint(0, 3)
    rows = [field for _ in range(count) for field in registration(chance)]
    said = chance.choice([count, count, word(chance)])
    return ["QA.REGISTER", chance.choice(["a", "b", ""]), "", "src", junk(chance), said, *rows]


def beat(chance: random.Random) -> Command:
    """QA.BEAT of a few values, some with a wrong name."""
    names = ["rss_bytes", "batches", "functions_stuck", "inference_file_bytes", word(chance)]
    pairs = [(chance.choice(names), chance.choice([0, 1, 2**62, -1])) for _ in range(chance.randint(0, 4))]
    return ["QA.BEAT", *[word for pair in pairs for word in pair]]


def indexing(chance: random.Random) -> Command:
    """QA.INDEXING of a few documents, some with a wrong batch."""
    pairs = [(word(chance), chance.choice(["06S", "}", ""])) for _ in range(chance.randint(0, 4))]
    return ["QA.INDEXING", chance.choice([0, 1, 7, 8, -1]), *[word for pair in pairs for word in pair]]


def pause(chance: random.Random) -> Command:
    """QA.PAUSE of streams that may be missing, with numbers of orders."""
    pairs = [(f"id-{chance.randint(1, 100)}", chance.choice([0, 1, 2, 2**60, 2**63 - 1, -1])) for _ in range(2)]
    return ["QA.PAUSE", *[field for pair in pairs for field in pair]]


def as_user(chance: random.Random) -> Command:
    inner: Command = chance.choice(
        [["GET", "s"], ["AI.TENSORGET", "t1"], ["RG.TRIGGER", "echo"], ["QA.AS", "default", "GET", "s"]]
    )
    return ["QA.AS", chance.choice(["default", "reader", "absent", "qa-worker"]), *inner]


def stream(chance: random.Random) -> Command:
    status = chance.choice(["OK", "WAITING_FOR_RETRY_ON_FAILURE", "ABORTED", "PAUSED", "x"])
    outcome: Command = chance.choice([[], ["OK", 5, 1, ""], ["ERR", 5, 1, "ERR x"], ["ABORTED", -1, 2**62, ""]])
    return ["QA.STREAM", f"id-{chance.randint(0, 3)}", status, *outcome]


SHAPES: dict[str, Maker] = {
    **INDEX_SHAPES,
    "AI.TENSORSET": tensorset,
    "AI.TENSORGET": tensorget,
    "AI.MODELSTORE": modelstore,
    "AI.MODELSET": lambda chance: ["AI.MODELSET", *modelstore(chance)[1:]],
    "AI.MODELGET": drawn("AI.MODELGET", MODELS, [[], ["META"], ["BLOB"]]),
    "AI.MODELDEL": drawn("AI.MODELDEL", MODELS),
    "AI._MODELSCAN": drawn("AI._MODELSCAN"),
    "AI.MODELEXECUTE": modelexecute,
    "AI.MODELRUN": modelrun,
    "AI.SCRIPTSTORE": scriptstore,
    "AI.SCRIPTSET": scriptset,
    "AI.SCRIPTGET": drawn("AI.SCRIPTGET", SCRIPTS, [[], ["META"], ["SOURCE"]]),
    "AI.SCRIPTDEL": drawn("AI.SCRIPTDEL", SCRIPTS),
    "AI._SCRIPTSCAN": drawn("AI._SCRIPTSCAN"),
    "AI.SCRIPTEXECUTE": scriptexecute,
    "AI.SCRIPTRUN": scriptrun,
    "AI.DAGEXECUTE": dagexecute,
    **{name: dag(name) for name in ("AI.DAGEXECUTE_RO", "AI.DAGRUN", "AI.DAGRUN_RO")},
    "AI.INFO": drawn("AI.INFO", OURS, [[], ["RESETSTAT"]]),
    "AI.CONFIG": ai_config,
    "RG.PYEXECUTE": pyexecute,
    "RG.TRIGGER": drawn("RG.TRIGGER", TRIGGERS, few),
    "RG.TRIGGERONKEY": drawn("RG.TRIGGERONKEY", TRIGGERS, KEYS[:11], few),
    "RG.UNREGISTER": of_id("RG.UNREGISTER", ["ABORTPENDING"]),
    "RG.GETEXECUTION": of_id("RG.GETEXECUTION", ["SHARD"], ["CLUSTER"]),
    **{
        name: of_id(name)
        for name in (
            *("RG.PAUSEREGISTRATIONS", "RG.UNPAUSEREGISTRATIONS", "RG.GETRESULTS", "RG.GETRESULTSBLOCKING"),
            *("RG.DROPEXECUTION", "RG.ABORTEXECUTION"),
        )
    },
    "RG.CONFIGGET": config("RG.CONFIGGET"),
    "RG.CONFIGSET": config("RG.CONFIGSET"),
    "RG.PYDUMPSESSIONS": drawn("RG.PYDUMPSESSIONS", [[], ["VERBOSE", "SOURCES"], ["SESSIONS", "a"]]),
    "RG.INNERHOOK": drawn("RG.INNERHOOK", ["GET", "MGET", "SET", "RG.INNERHOOK"], few),
    "RG.FROMPRIMARY": drawn("RG.FROMPRIMARY", ["GET", "CONFIG", "ACL", "EVAL", ""], few),
    "QA.DONE": done,
    "QA.REGISTER": register,
    "QA.REGISTRATIONS": drawn("QA.REGISTRATIONS", [0, 1, -1, 2**62, "x"]),
    "QA.UNREGISTER": lambda chance: ["QA.UNREGISTER", *[registration_id(chance) for _ in range(chance.randint(1, 9))]],
    "QA.UNREGISTERED": drawn("QA.UNREGISTERED", *[registration_id] * 3),
    "QA.PAUSE": pause,
    "QA.HELLO": drawn("QA.HELLO", 9, "0" * 64),
    "QA.BEAT": beat,
    "QA.INDEXING": indexing,
    "QA.NEXT": drawn("QA.NEXT", [0, 1, 8, 1024], [0, 1, 20]),
    "QA.MODELREF": drawn("QA.MODELREF", KEYS[:11]),
    "QA.SCRIPTREF": drawn("QA.SCRIPTREF", KEYS[:11]),
    "QA.MODEL": drawn("QA.MODEL", BLOBS),
    "QA.MODELPART": drawn("QA.MODELPART", BLOBS, [-1, 0, 1, 2, 5], [0, 1, 4 << 20, 2**62]),
    "QA.SCRIPT": drawn("QA.SCRIPT", BLOBS),
    "QA.SEND": drawn("QA.SEND", ["0" * 40, "f" * 40, "x"], junk),
    "QA.AS": as_user,
    "QA.STREAM": stream,
}


def bare(name: str) -> Maker:
    """The maker for a command without its own maker."""

    def make(chance: random.Random) -> Command:
        choices: list[Command] = [[], [chance.choice(KEYS)], words(chance), [chance.choice(KEYWORDS)]]
        return [name, *chance.choice(choices)]

    return make
