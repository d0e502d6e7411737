"""QA.INDEX.EMBED and QA.INDEX.UNEMBEDDED: vectors of documents, errors, and the storage of vectors."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.index.oracle import BothHit, Condition, Meaning, Sentence, admits, pack_condition
from tests.index.vectors import DIGEST, Passage, Vector, pack_passages, some_passages, some_vector
from tests.module.indexes import TERMS, Twins, info, some_sentences
from tests.module.persistence import rewrite_and_load_aof
from tests.module.test_index_commands import refusal
from tests.module.test_index_data import load_commands, pair

__all__ = ["pair"]  # a fixture

DIMS = 96


def embed(
    client: redis.Redis,
    key: str,
    name: str,
    passages: Sequence[Passage],
    digest: bytes = DIGEST,
    *,
    dims: int = DIMS,
    done: int = 0,
    total: int | None = None,
) -> int:
    """Attaches passages to a document; returns the reply."""
    total = done + len(passages) if total is None else total
    return int(client.execute_command("QA.INDEX.EMBED", key, name, digest, dims, done, total, pack_passages(passages)))


def encoders(client: redis.Redis, key: str) -> dict[bytes, dict[str, int]]:
    """The encoders with vectors in the index, by their digests."""
    found: Any = info(client, key)["vectors"]
    pairs = [dict(zip((name.decode() for name in flat[::2]), flat[1::2], strict=True)) for flat in found]
    return {each.pop("digest"): each for each in pairs}


def unembedded(client: redis.Redis, key: str, digest: bytes = DIGEST, count: int = 7) -> list[str]:
    """All documents without complete vectors, read page by page."""
    cursor, names = 0, []
    while True:
        cursor, page = client.execute_command("QA.INDEX.UNEMBEDDED", key, digest, cursor, count)
        names += [name.decode() for name in page]
        if not cursor:
            return names


def filled(client: redis.Redis, key: str = "index:{t}") -> tuple[Twins, dict[str, list[Passage]]]:
    """Documents: most have complete vectors, some have incomplete vectors, and one has vectors of another encoder."""
    twins, chance, vectors = Twins(client, key), random.Random(4), dict[str, list[Passage]]()
    for number in range(30):
        name = f"document{number}"
        twins.put((name, {}, some_sentences(chance, number)))
        if number % 7 == 3:
            continue
        passages = vectors[name] = some_passages(chance, number, DIMS)
        if not number:
            continue
        part = max(1, len(passages) // 2)
        assert embed(client, key, name, passages[:part], total=len(passages)) == 1
        if number % 7 == 5 and part < len(passages):
            vectors.pop(name)
            continue
        assert part == len(passages) or embed(client, key, name, passages[part:], done=part) == 1
        twins.oracle.next_id += 1  # complete vectors use an id
    assert embed(client, key, "document20", some_passages(chance, 20, 8), b"encoder2", dims=8) == 1
    vectors.pop("document20")
    del vectors["document0"]
    for name, passages in vectors.items():
        twins.oracle.live[name].encoder, twins.oracle.live[name].passages = DIGEST, passages
    return twins, vectors


def by_both(twins: Twins, terms: Sequence[str], k: int, meaning: Meaning, condition: Condition | None) -> list[BothHit]:
    """The hits of a ranking with a vector."""
    words: list[Any] = ["FILTER", pack_condition(condition)] if condition else []
    words += ["VECTOR", meaning.digest, meaning.weight, meaning.missing, meaning.vector.packed()]
    words += ["DISTINCT"] * meaning.distinct
    pairs = [word for term in terms for word in (term, 0)]
    reply = twins.client.execute_command("QA.INDEX.RANK", twins.key, k, 0, *words, "TERMS", len(terms), *pairs)
    _, _, _, hits, _, places, passages = reply
    assert [twins.oracle.live[name.decode()].head for name, *_ in hits] == places
    made = []
    for (name, sentence, score, weights), (cosine, first, count) in zip(hits, passages, strict=True):
        angle = None if cosine is None else float(cosine)
        total = float(score) + meaning.weight * (meaning.missing if angle is None else angle)
        row = tuple(map(float, weights))
        made.append(BothHit(name.decode(), sentence, float(score), total, angle, (first, count), row))
    return made


def test_the_index_counts_vectors_and_lists_documents_without_these(shared_ai: redis.Redis) -> None:
    twins, vectors = filled(shared_ai)
    counts = encoders(shared_ai, twins.key)
    assert counts[DIGEST]["documents"] == len(vectors)
    assert counts[DIGEST]["dimensions"] == DIMS and counts[b"encoder2"]["documents"] == 1
    assert counts[DIGEST]["passages"] > sum(map(len, vectors.values()))
    assert counts[DIGEST]["bytes"] < counts[DIGEST]["passages"] * (128 + 12 + 40)
    filled_documents = [name for name in twins.expected() if twins.oracle.live[name].sentences]
    for count in (1, 7, 1000):
        assert unembedded(shared_ai, twins.key, count=count) == [n for n in filled_documents if n not in vectors]
    assert unembedded(shared_ai, twins.key, b"encoder2") == [n for n in filled_documents if n != "document20"]
    assert unembedded(shared_ai, twins.key, b"encoder3") == filled_documents
    assert unembedded(shared_ai, "missing") == []
    for name in filled_documents:
        passages = some_passages(random.Random(1), len(twins.oracle.live[name].sentences), DIMS)
        assert embed(shared_ai, twins.key, name, passages) == 1
    assert unembedded(shared_ai, twins.key) == []
    assert encoders(shared_ai, twins.key).keys() == {DIGEST}
    twins.check()


def test_vectors_end_with_the_version_of_their_document(shared_ai: redis.Redis) -> None:
    twins, vectors = filled(shared_ai)
    before = info(shared_ai, twins.key)["bytes"]
    for name in vectors:
        twins.put((name, {}, some_sentences(random.Random(2), 3)))
    assert encoders(shared_ai, twins.key)[DIGEST]["documents"] == 0
    assert info(shared_ai, twins.key)["bytes"] < before - 128 * sum(map(len, vectors.values()))
    twins.delete(*twins.oracle.live)
    assert not shared_ai.exists(twins.key)


def test_vectors_that_do_not_continue_the_earlier_part_change_nothing(shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai)
    twins.put(("d", {}, [Sentence({"a": 1}, 1)] * 9))
    passages = some_passages(random.Random(1), 9, DIMS, gaps=False)
    count = len(passages)
    assert count > 2
    assert embed(shared_ai, twins.key, "missing", passages) == 0
    assert embed(shared_ai, "missing", "d", passages) == 0
    assert embed(shared_ai, twins.key, "d", passages[1:], done=1) == 0
    assert embed(shared_ai, twins.key, "d", passages[:1], total=count) == 1
    digest = twins.digest()
    assert embed(shared_ai, twins.key, "d", passages[2:], done=2) == 0
    assert embed(shared_ai, twins.key, "d", passages[1:], done=1, total=count + 1) == 0
    assert embed(shared_ai, twins.key, "d", passages[1:], b"encoder2", done=1) == 0
    assert twins.digest() == digest and unembedded(shared_ai, twins.key) == ["d"]
    assert embed(shared_ai, twins.key, "d", passages[1:], done=1) == 1
    whole = twins.digest()
    assert whole != digest and unembedded(shared_ai, twins.key) == []
    assert embed(shared_ai, twins.key, "d", passages) == 1
    assert twins.digest() == whole, "the division into parts does not matter"
    assert embed(shared_ai, twins.key, "d", []) == 1
    assert unembedded(shared_ai, twins.key) == [], "the document has no passages"


def good(first: int = 0, count: int = 1, scale: float = 1.0) -> bytes:
    return struct.pack("<IIf", first, count, scale) + bytes(4)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["digest", 4, 0, 1, good()], "the digest of an encoder must have 8 bytes"),
        (["encoder1", 0, 0, 1, good()], "number of dimensions must be between 1 and 4096"),
        (["encoder1", 4097, 0, 1, good()], "number of dimensions must be between 1 and 4096"),
        (["encoder1", "x", 0, 1, good()], "number of dimensions must be between 1 and 4096"),
        (["encoder1", 4, -1, 1, good()], "number of stored passages must be between 0 and 4294967295"),
        (["encoder1", 4, 0, 2**32, good()], "total number of passages must be between 0 and 4294967295"),
        (["encoder1", 5, 0, 1, good()], "the passages have 16 bytes, not a multiple of 17: 12 and 5 dimensions"),
        (["encoder1", 4, 0, 2, good()[:-1]], "the passages have 15 bytes, not a multiple of 16: 12 and 4 dimensions"),
        (["encoder1", 4, 0, 1, b""], "there are no passages in this part, but 1 in the document"),
        (["encoder1", 4, 0, 0, good()], "there are 1 passages after 0, more than the total of 0"),
        (["encoder1", 4, 0, 1, good(0, 0)], "passage 0 has 0 sentences, it must have at least 1"),
        (
            ["encoder1", 4, 0, 2, good(0, 2) + good(1)],
            "passage 1 starts at sentence 1, before sentence 2, the end of the previous passage",
        ),
        (["encoder1", 4, 0, 1, good(2, 2)], "passage 0 ends at sentence 4, the document has 3 sentences"),
        (["encoder1", 4, 0, 1, good(2**32 - 1, 2**32 - 1)], "passage 0 ends at sentence 8589934590, the document has"),
        (["encoder1", 4, 0, 4, good()], "there are 4 passages in all, the document has 3 sentences"),
        (["encoder1", 4, 0, 1, good(scale=float("nan"))], "passage 0 has the scale nan, it must be a finite number"),
        (["encoder1", 4, 0, 1, good(scale=float("inf"))], "passage 0 has the scale inf, it must be a finite number"),
        (["encoder1", 4, 0, 1, good(scale=-1.0)], "passage 0 has the scale -1, it must be a finite number from 0"),
        (["encoder9", 8, 0, 1, good() + bytes(4)], "a vector has 8 dimensions, the other vectors of this encoder have"),
        (["encoder1", 4, 0, 1, bytes(2**20 + 8)], "the passages have 1048584 bytes, they must have 1048576 at most"),
    ],
)
def test_errors_name_the_value_and_the_limit(shared_ai: redis.Redis, words: list[Any], error: str) -> None:
    twins = Twins(shared_ai)
    twins.put(("d", {}, [Sentence({"a": 1}, 1)] * 3), ("other", {}, [Sentence({}, 0)]))
    assert embed(shared_ai, twins.key, "other", [Passage(0, 1, Vector(1.0, (1, 2, 3, 4)))], b"encoder9", dims=4) == 1
    before = twins.digest(), info(shared_ai, twins.key)
    assert refusal(shared_ai, "QA.INDEX.EMBED", twins.key, "d", *words).startswith(error)
    assert (twins.digest(), info(shared_ai, twins.key)) == before


def test_a_hostile_size_allocates_nothing(shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai)
    twins.put(("d", {}, [Sentence({"a": 1}, 1)] * 3))
    error = refusal(shared_ai, "QA.INDEX.EMBED", twins.key, "d", DIGEST, 4096, 0, 2**32 - 1, bytes(16 << 20))
    assert error == f"the passages have {16 << 20} bytes, they must have 1048576 at most"
    for words in (["digest", 0, 1], [DIGEST, -1, 1], [DIGEST, 0, 0], [DIGEST, 0, 1001]):
        refusal(shared_ai, "QA.INDEX.UNEMBEDDED", twins.key, *words)
    assert "WRONGTYPE" in refusal(shared_ai, "QA.INDEX.EMBED", shared_ai.set("s", 1) and "s", "d", DIGEST, 4, 0, 0, b"")


def test_an_index_has_vectors_of_a_few_encoders(shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai)
    twins.put(*((f"d{number}", {}, [Sentence({"a": 1}, 1)]) for number in range(17)))
    vector = [Passage(0, 1, some_vector(random.Random(1), DIMS))]
    for number in range(16):
        assert embed(shared_ai, twins.key, f"d{number}", vector, struct.pack("<Q", number)) == 1
    with pytest.raises(redis.ResponseError, match="the index has vectors of 16 encoders, the limit"):
        embed(shared_ai, twins.key, "d16", vector)
    assert embed(shared_ai, twins.key, "d3", vector) == 1, "these vectors replace the last vectors of another encoder"
    assert embed(shared_ai, twins.key, "d16", vector) == 1
    assert len(encoders(shared_ai, twins.key)) == 16


def test_rdb_and_aof(ai: redis.Redis, ai_server: Server) -> None:
    twins, _ = filled(ai)
    twins.put(("open", {}, some_sentences(random.Random(3), 3)))
    ai.execute_command("QA.INDEX.BEGIN", twins.key, "open", b"")

    def state() -> Any:
        memory = {name: value for name, value in info(ai, twins.key).items() if name != "bytes"}
        return twins.digest(), {**memory, "vectors": [each[:8] for each in memory["vectors"]]}  # type: ignore[attr-defined]

    before = state()
    ai.execute_command("DEBUG", "RELOAD")
    assert state() == before
    ai.execute_command("DEBUG", "LOADAOF")
    assert state() == before
    rewrite_and_load_aof(ai)
    assert state() == before
    assert b"".join(load_commands(ai_server)).startswith(b"QAINDEX3")
    ai_server.restart()
    assert state() == before
    dump = ai.dump(twins.key)
    assert isinstance(dump, bytes)
    ai.restore("restored", 0, dump)
    assert ai.execute_command("DEBUG", "DIGEST-VALUE", "restored") == [before[0]]
    for name in list(twins.oracle.live):
        if twins.oracle.live[name].sentences:
            embed(ai, twins.key, name, [])
        twins.delete(name)
    twins.check()


def test_replicas_are_equal(pair: tuple[redis.Redis, redis.Redis]) -> None:
    client, replica = pair
    twins, vectors = filled(client, "index:{v}")
    name, passages = next(iter(vectors.items()))
    script = "return redis.call('QA.INDEX.EMBED', KEYS[1], unpack(ARGV))"
    words = [name, DIGEST, DIMS, 0, len(passages), pack_passages(passages)]
    assert client.eval(script, 1, twins.key, *words) == 1
    client.set("last", 1)
    eventually(lambda: replica.get("last"))
    assert twins.digest(client) == twins.digest(replica)
    assert encoders(client, twins.key) == encoders(replica, twins.key)


def test_a_ranking_by_words_and_meaning(shared_ai: redis.Redis) -> None:
    """The total score of each hit is the sum of its score by words and its weighted cosine."""
    twins, _ = filled(shared_ai)
    chance, found = random.Random(7), 0
    conditions: list[Condition | None] = [None, ("in", "", ["document9", "document10"])]
    for _ in range(60):
        meaning = Meaning(
            some_vector(chance, DIMS), chance.choice([0.0, 3.0, 40.0]), 0.1, DIGEST, chance.random() < 0.5
        )
        terms, condition = chance.sample(TERMS, chance.choice([0, 1, 4])), chance.choice(conditions)
        chosen = lambda one, condition=condition: condition is None or admits(condition, one)  # noqa: E731
        expected = twins.oracle.rank_by_both(terms, 20, meaning, None, chosen)
        assert by_both(twins, terms, 20, meaning, condition) == expected
        found += sum(hit.score == 0 for hit in expected)
    assert found > 100
    assert by_both(twins, [], 5, Meaning(some_vector(chance, DIMS), 1.0, 0.0, b"encoder9"), None) == []
    missing = Twins(shared_ai, "missing")
    assert by_both(missing, ["a"], 5, Meaning(some_vector(chance, DIMS), 1.0, 0.0), None) == []


ONE = Vector(1.0, (1, 2, 3, 4)).packed()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["VECTOR"], "VECTOR must be followed by a digest, a weight, a cosine and a vector"),
        (["VECTOR", "short", 1, 0, ONE], "the digest of an encoder must have 8 bytes"),
        (["VECTOR", DIGEST, "nan", 0, ONE], "weight must be a number from 0 to 1000000"),
        (["VECTOR", DIGEST, "inf", 0, ONE], "weight must be a number from 0 to 1000000"),
        (["VECTOR", DIGEST, -1, 0, ONE], "weight must be a number from 0 to 1000000"),
        (["VECTOR", DIGEST, 1, 1.5, ONE], "the cosine of missing vectors must be a number from -1 to 1"),
        (["VECTOR", DIGEST, 1, "nan", ONE], "the cosine of missing vectors must be a number from -1 to 1"),
        (["VECTOR", DIGEST, 1, 0, ONE[:4]], "the vector has 4 bytes, it must have 5 to 4100"),
        (["VECTOR", DIGEST, 1, 0, bytes(4101)], "the vector has 4101 bytes, it must have 5 to 4100"),
        (["VECTOR", DIGEST, 1, 0, b"\0\0\x80\x7f" + ONE], "the vector has the scale inf, it must be a finite number"),
        (["VECTOR", DIGEST, 1, 0, b"\0\0\xc0\x7f" + ONE], "the vector has the scale nan, it must be a finite number"),
        (["VECTOR", DIGEST, 1, 0, b"\0\0\x80\xbf" + ONE], "the vector has the scale -1, it must be a finite number"),
        (
            ["VECTOR", DIGEST, 1, 0, ONE],
            "the vector has 4 dimensions, the index has vectors of 96 dimensions from this encoder",
        ),
        (["DISTINCT"], "DISTINCT needs VECTOR before it"),
        (["DISTINCT", "VECTOR", DIGEST, 1, 0, ONE], "DISTINCT needs VECTOR before it"),
        (["VECTOR", DIGEST, 1, 0, ONE, "FILTER", "x"], "syntax error: TERMS is missing, or in the wrong place"),
    ],
)
def test_errors_of_a_vector(shared_ai: redis.Redis, words: list[Any], error: str) -> None:
    if not shared_ai.exists("k"):
        Twins(shared_ai, "k").put(("d", {}, [Sentence({"a": 1}, 1)]))
        assert embed(shared_ai, "k", "d", [Passage(0, 1, some_vector(random.Random(1), DIMS))]) == 1
    assert refusal(shared_ai, "QA.INDEX.RANK", "k", 1, 0, *words, "TERMS", 0).startswith(error)


def test_a_watched_question_with_a_vector(shared_ai: redis.Redis) -> None:
    """Vectors that reach the score drop the question. Other vectors and documents without its words do not."""
    twins = Twins(shared_ai, "k")
    twins.put(("best", {}, [Sentence({"a": 1}, 1)]), ("other", {}, [Sentence({"b": 1}, 1)] * 2))
    near, far = Vector(0.1, (10, 0, 0, 0)), Vector(0.1, (0, 10, 0, 0))
    assert embed(shared_ai, "k", "best", [Passage(0, 1, near)], dims=4) == 1
    vector = ["VECTOR", DIGEST, 10, 0.1, near.packed()]
    reply = shared_ai.execute_command("QA.INDEX.RANK", "k", 1, 0, *vector, "TERMS", 1, "a", 0)
    _, _, (frequency,), ((name, sentence, score, _),), (identity, next_id), (place,), ((cosine, *_),) = reply
    assert (name, sentence, float(cosine)) == (b"best", 0, pytest.approx(1.0))
    total = float(score) + 10 * float(cosine)
    bounds = [0, 2**40]
    words = ["q", 10**6, identity, next_id, total, 3, *bounds, *vector, "TERMS", 1, "a", frequency, *bounds]

    def watch() -> int:
        return int(shared_ai.execute_command("QA.INDEX.WATCH", "k", *words, "DOCUMENTS", 1, "best", place))

    def watched() -> int:
        return int(shared_ai.execute_command("QA.INDEX.WATCHED", "k", "q"))

    assert (token := watch()) and watched() == token
    twins.put(("new", {}, [Sentence({"b": 1}, 1)]), ("weak", {}, [Sentence({"a": 1}, 400)]))
    assert embed(shared_ai, "k", "other", [Passage(0, 2, far)], dims=4) == 1
    assert watched() == token
    assert embed(shared_ai, "k", "weak", [Passage(0, 1, near)], b"encoder2", dims=4) == 1
    assert watched() == token, "vectors of another encoder"
    strong = [Passage(0, 1, Vector(0.2, (10, 0, 0, 0)))]
    assert embed(shared_ai, "k", "new", strong, dims=4) == 1
    assert not watched() and not watch(), "the ranking does not know the new vectors"
    for wrong in (["VECTOR", DIGEST, "nan", 0, near.packed()], ["VECTOR", DIGEST, 1, 0, bytes(13)]):
        refusal(shared_ai, "QA.INDEX.WATCH", "k", *words[:8], *wrong, "TERMS", 0, "DOCUMENTS", 0)
