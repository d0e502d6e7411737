"""Makers of well-formed QA.INDEX.* commands, and of writes of documents and answers.

Some of their binary arguments are damaged.
"""

from __future__ import annotations

import random
import struct

from tests.fuzz.words import INDEXES, Command, Maker, Word, drawn, junk


def varint(number: int) -> bytes:
    """A varint: seven bits in a byte, the lowest first."""
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def packed_sentences(chance: random.Random) -> bytes:
    """Sentences for an index, usually good."""
    made = b""
    for _ in range(chance.choice([0, 1, 1, 3, 40])):
        terms = sorted(chance.sample([b"a", b"b", b"c", b"d" * 256, b"ab", b"\0"], chance.randint(0, 5)))
        made += varint(chance.choice([0, 5, 65535])) + varint(len(terms))
        made += b"".join(varint(chance.choice([1, 1, 300])) + varint(len(term)) + term for term in terms)
    if chance.random() < 0.2 and made:
        at = chance.randrange(len(made))
        made = chance.choice([made[:at], made[:at] + bytes([chance.randrange(256)]) + made[at + 1 :]])
    return made


FIELDS = [b"", b"", b"\0\0", b"\1\0\1y\1\0n\0\0\0\0\0\0\x9f@", b"\1\0\1y\2\0s\1\0as\1\0b", b"\1\0"]
FILTERS = [
    b"&\0\0",
    b"!|\0\0",
    b"=\0s\1\0a",
    b"i\0\2\0\0\0s\1\0as\1\0b",
    b">\1yn\0\0\0\0\0\0\0@",
    b"!" * 40,
    b"z\1y",
    b"!e\1y",
]
DOCUMENTS = ["a", "b", "c", "d" * 300]
QUESTIONS = [f"q{number}" for number in range(20)]


def index_put(chance: random.Random) -> Command:
    made: Command = ["QA.INDEX.PUT", chance.choice(INDEXES)]
    for _ in range(chance.choice([1, 1, 2, 5])):
        made += [chance.choice(DOCUMENTS), chance.choice(FIELDS), packed_sentences(chance)]
    return made


def some_fields(chance: random.Random) -> Word:
    """The fields of a document, which may be wrong."""
    return chance.choice(FIELDS) if chance.random() < 0.8 else junk(chance)


def filtered(chance: random.Random) -> Command:
    """Sometimes a filter."""
    return ["FILTER", chance.choice(FILTERS) if chance.random() < 0.9 else junk(chance)] * (chance.random() < 0.4)


def with_vector(chance: random.Random) -> Command:
    """Sometimes a vector, which may be wrong."""
    if chance.random() < 0.5:
        return []
    numbers = [chance.choice([0, 1, 40, "nan", 1e7]), chance.choice([0, 0.1, -1, "inf"])]
    vector = packed_vector(chance, chance.choice([4, 4, 4, 64, 0, 4097]))
    return ["VECTOR", chance.choice([*DIGESTS, b"short"]), *numbers, vector]


def index_rank(chance: random.Random) -> Command:
    """A question of any number of terms. Few terms are in the index."""
    terms = chance.sample(["a", "b", "c", "ab", "", "none", *map(str, range(30))], chance.choice([0, 1, 3, 4, 32, 33]))
    pairs = [argument for term in terms for argument in (term, chance.choice([0, 1, 7, 2**48 - 1]))]
    numbers: Command = [chance.choice([0, 1, 8, 1000, 1001]), chance.choice([0, 0, 5, 2**48])]
    words: Command = ["QA.INDEX.RANK", chance.choice(INDEXES), *numbers, *filtered(chance), *with_vector(chance)]
    return [*words, *["DISTINCT"] * (chance.random() < 0.3), "TERMS", len(terms), *pairs]


def index_watch(chance: random.Random) -> Command:
    """A question about a key that may be missing. The identity is right only for a missing key."""
    terms = chance.sample(["a", "b", "c", "ab", "none", *map(str, range(30))], chance.choice([0, 1, 3, 32, 33]))
    bounds = [
        argument for term in terms for argument in (term, chance.choice([0, 1, 7]), 0, chance.choice([0, 3, 900]))
    ]
    documents = [word for name in chance.choices(DOCUMENTS, k=chance.choice([0, 0, 1])) for word in (name, 0)]
    numbers: Command = [
        chance.choice([1, 50, 2**40]),
        0,
        chance.choice([0, 9]),
        chance.choice([0, 0.5, 3, "nan", "-inf"]),
    ]
    numbers += [chance.choice([0, 10, 2**53]), 0, chance.choice([0, 5, 2**53 - 1])]
    name: Command = [chance.choice([chance.choice(QUESTIONS), "", junk(chance)])]
    words: Command = [
        *filtered(chance),
        *with_vector(chance),
        "TERMS",
        len(terms),
        *bounds,
        "DOCUMENTS",
        len(documents) // 2,
        *documents,
    ]
    return ["QA.INDEX.WATCH", chance.choice(INDEXES), *name, *numbers, *words]


def index_load(chance: random.Random) -> Command:
    """The first part of a payload, or invalid bytes."""
    good = [b"QAINDEX1n\0e", b"QAINDEX1d\0\0\0\1a\0n\1e", b"QAINDEX2o\0\1\1\1a\0n\2t\1a\1\1\5e"]
    good.append(b"QAINDEX3d\0\1\1\1a\0n\2t\1a\1\1\5v\0encoder1\4\1\1\0\1\0\0\0\0\1\2\3\4e")
    part = chance.choice([b"", b"", *good, junk(chance)])
    return ["QA.INDEX.LOAD", chance.choice(INDEXES), chance.choice([0, 0, 11, 17, 25, 47, 2**63 - 1]), part]


def index_part(chance: random.Random) -> Command:
    """A part of a document, or its commit. Places are small numbers, as in a new index."""
    name = chance.choice(["ADD", "ADD", "COMMIT", "ABORT"])
    made: Command = [
        f"QA.INDEX.{name}",
        chance.choice(INDEXES),
        chance.choice(DOCUMENTS),
        chance.choice([0, 0, 1, 2, chance.randrange(60), 2**48]),
    ]
    if name != "ABORT":
        made.append(chance.choice([0, 0, 0, 1, 3, 40]))
    if name == "ADD":
        made.append(packed_sentences(chance) if chance.random() < 0.95 else b"\0" * 65537)
    return made


DIGESTS = [b"encoder1", b"encoder1", b"encoder2"]
SCALES = [0.0, 0.01, 0.01, 1.0, 3e38, float("nan"), float("inf"), -1.0]


def packed_vector(chance: random.Random, dims: int) -> bytes:
    """A vector, usually good."""
    scale = chance.choice(SCALES[:4]) if chance.random() < 0.9 else chance.choice(SCALES)
    return struct.pack("<f", scale) + chance.randbytes(dims)


def index_embed(chance: random.Random) -> Command:
    """Passages of a document, which may have fewer sentences. Some passages ascend, and some numbers are wrong."""
    dims, at, passages = chance.choice([4, 4, 4, 64, 0, 4097]), 0, b""
    count = chance.choice([0, 1, 1, 2, 5])
    for _ in range(count):
        sentences = chance.choice([1, 1, 1, 2, 0])
        passages += struct.pack("<II", at, sentences) + packed_vector(chance, dims)
        at += sentences
    if chance.random() < 0.1:
        passages = chance.choice([passages[:-1], passages + b"\0", bytes(2**20 + 16)])
    done = chance.choice([0, 0, 0, 1, 2, 2**32 - 1])
    total = chance.choice([done + count, done + count, 1, 5, 2**32])
    words: Command = [chance.choice(INDEXES), chance.choice(DOCUMENTS), chance.choice([*DIGESTS, b"short"])]
    return ["QA.INDEX.EMBED", *words, dims, done, total, passages]


def put_document(chance: random.Random) -> Command:
    """A document. One of the arguments may be wrong."""
    name = chance.choice(["a", "b%/c", "50%25", "%zz", "a{"])
    ids = {"b%/c": "c", "50%25": "50%"}
    made: Command = [
        "QA.PUTDOCUMENT",
        f"paragraphs:{name}:{{t}}",
        chance.choice(["*", ""]),
        ids.get(name, name),
        "Title",
    ]
    made += ['{"a":[1]}', 16 * "0", 5, "Text.", "source"]
    if chance.random() < 0.3:
        made[chance.randrange(2, len(made))] = junk(chance)
    return made


ANSWERS = ["answer:{t}:a", "answer:b:{t}:a", "answer:{t}", "answer:{}:a", "answer:{u}:a"]

PARAGRAPHS = [f"paragraphs:{name}:{{t}}" for name in ("a", "b%/c", "%zz")]
CURSORS: list[Word] = [0, 1, 50, 2**62]
COUNTS: list[Word] = [0, 1, 1000, 1001]

INDEX_SHAPES: dict[str, Maker] = {
    "QA.INDEX.PUT": index_put,
    "QA.INDEX.RANK": index_rank,
    "QA.INDEX.LOAD": index_load,
    "QA.INDEX.WATCH": index_watch,
    "QA.INDEX.BEGIN": drawn("QA.INDEX.BEGIN", INDEXES, DOCUMENTS, FIELDS),
    "QA.INDEX.ADD": index_part,
    "QA.INDEX.COMMIT": index_part,
    "QA.INDEX.ABORT": index_part,
    "QA.INDEX.WATCHED": drawn("QA.INDEX.WATCHED", INDEXES, QUESTIONS),
    "QA.INDEX.EMBED": index_embed,
    "QA.INDEX.UNEMBEDDED": drawn("QA.INDEX.UNEMBEDDED", INDEXES, [*DIGESTS, b""], CURSORS, COUNTS),
    "QA.INDEX.DEL": drawn("QA.INDEX.DEL", INDEXES, DOCUMENTS, DOCUMENTS, DOCUMENTS),
    "QA.INDEX.STATS": drawn("QA.INDEX.STATS", INDEXES, "TERMS", 2, "a", "none"),
    "QA.INDEX.COMPLETE": drawn("QA.INDEX.COMPLETE", INDEXES, ["a", "b", "", "x" * 257], [0, 1, 8, 100, 101, -1]),
    "QA.INDEX.LIST": drawn("QA.INDEX.LIST", INDEXES, CURSORS, COUNTS, filtered),
    "QA.INDEX.FIELDS": drawn(
        "QA.INDEX.FIELDS",
        INDEXES,
        [["SCAN", 0, 10], ["SCAN", 2**40, 1], ["SCAN", 1, 0], ["NAMES", "y", "", "x" * 300], ["", 0]],
    ),
    "QA.INDEX.VALUES": drawn(
        "QA.INDEX.VALUES", INDEXES, [0, 0, 1, 7, 2**63 - 1, -1], ["y", "y", "x", "", "z" * 256], filtered
    ),
    "QA.INDEX.CHANGE": drawn("QA.INDEX.CHANGE", INDEXES, DOCUMENTS, some_fields),
    "QA.SETMETADATA": drawn(
        "QA.SETMETADATA",
        PARAGRAPHS,
        ["*", "", "0" * 16],
        ["{}", '{"a":1}', "[", "{" * 40, "\xff"],
        some_fields,
    ),
    "QA.EMBEDDOCUMENT": drawn(
        "QA.EMBEDDOCUMENT", PARAGRAPHS, ["", "0" * 16], "1", lambda chance: index_embed(chance)[3:]
    ),
    "QA.INDEX.GET": drawn("QA.INDEX.GET", INDEXES, DOCUMENTS),
    "QA.INDEX.INFO": drawn("QA.INDEX.INFO", INDEXES),
    "QA.PUTDOCUMENT": put_document,
    "QA.DELDOCUMENT": drawn("QA.DELDOCUMENT", PARAGRAPHS, "*"),
    "QA.PUTANSWER": drawn("QA.PUTANSWER", ANSWERS, junk, [0, 9, "x"]),
    "QA.DELCOLLECTION": drawn("QA.DELCOLLECTION", ["collections:{t}", "collections:{}"], "b"),
    "QA.DELANSWER": drawn("QA.DELANSWER", ANSWERS, ANSWERS),
}
