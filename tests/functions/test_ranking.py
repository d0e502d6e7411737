"""Rankings by real indexes: the results, also while slots migrate and documents change, and the needed rights."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from qa_cluster import keys
from qa_cluster.asking.engine import Engine
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.config import Settings
from qa_cluster.errors import MissingRights
from qa_cluster.ranking.bm25 import idf, scores
from qa_cluster.ranking.filters import Filter, chosen_by
from qa_cluster.ranking.ranker import RIGHTS

from .running_shards import Shards, tag
from .test_moved_partition import begun_move, end_move

WORDS = [f"quagga{number}" for number in range(30)]
COLLECTION = "ranked"


@pytest.fixture
async def client(shards: Shards) -> AsyncIterator[AsyncClusterClient]:
    async with AsyncClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as made:
        yield made


@pytest.fixture
async def corpus(client: AsyncClusterClient) -> AsyncIterator[AsyncClusterClient]:
    """Documents with random sentences, in the default collection and in another one."""
    chance = random.Random(7)
    await client.create_collection(COLLECTION)
    for number in range(80):
        text = " ".join(
            " ".join(WORDS[int(30 * chance.random() ** 2)] for _ in range(chance.randint(2, 12))).capitalize() + "."
            for _ in range(chance.randint(1, 8))
        )
        collection = COLLECTION if number % 4 == 0 else keys.DEFAULT_COLLECTION
        metadata = {"year": 2000 + number % 10}
        await client.put_document(f"random {number}", text, f"T {number}", metadata=metadata, collection=collection)
    yield client
    await client.delete_documents(prefix="random ")
    await client.delete_collection(COLLECTION)


@pytest.mark.parametrize("collection", [keys.DEFAULT_COLLECTION, COLLECTION])
@pytest.mark.parametrize("condition", ["", "year>=2007", "year<1900"])
async def test_the_best_sentences_are_the_first_of_the_corpus(
    corpus: AsyncClusterClient, collection: str, condition: str
) -> None:
    """Scores are BM25 over the whole corpus, for any division into indexes and any number of results."""
    chosen: Filter | None = chosen_by(short=[condition]) if condition else None
    chance = random.Random(11)
    rank = corpus.engine._ranker.rank_each
    for _ in range(25):
        question = " ".join(chance.sample(WORDS, chance.randint(1, 5)))
        every, best = [(await rank(question, count, chosen, (collection,)))[0] for count in (1000, 5)]
        assert best.candidates == every.candidates[:5]
        assert (best.terms, best.frequencies, best.sentences) == (every.terms, every.frequencies, every.sentences)
        assert (best.epochs, best.parts) == (every.epochs, every.parts)
        if every.candidates:
            rows = np.array([item.weights for item in every.candidates])
            exact = scores(rows, idf(every.sentences, every.frequencies)).tolist()
            assert [item.score for item in every.candidates] == pytest.approx(exact)
            assert exact == sorted(exact, reverse=True)
        assert bool(every.candidates) == (condition != "year<1900")


@pytest.mark.parametrize("question", ["", "the of", "zyzzyva has this"])
async def test_a_question_without_stored_terms_has_no_candidates(client: AsyncClusterClient, question: str) -> None:
    (found,) = await client.engine._ranker.rank_each(question, 8, None, (keys.DEFAULT_COLLECTION,))
    assert found.candidates == []
    assert len(found.parts) == len(found.epochs) == 12


@contextmanager
def between(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, happens: Mapping[int, Callable[[], Awaitable[object]]]
) -> Iterator[list[int]]:
    """Call each function of `happens` before the pipeline with its number, from 1; yield the numbers so far."""
    ask_all = engine.shards.execute_pipelines
    numbers: list[int] = []

    async def asked(commands: Any, **options: bool) -> list[list[Any]]:
        numbers.append(len(numbers) + 1)
        if change := happens.get(numbers[-1]):
            await change()
        return await ask_all(commands, **options)

    with monkeypatch.context() as patch:
        patch.setattr(engine.shards, "execute_pipelines", asked)
        yield numbers


@pytest.mark.parametrize("ends_before", [2, 3, 5])
async def test_a_slot_that_moves_between_the_pipelines_is_ranked_on_its_new_shard(
    shards: Shards, client: AsyncClusterClient, monkeypatch: pytest.MonkeyPatch, ends_before: int
) -> None:
    """The slot moves before the second pipeline, or is migrating during the second pipeline."""
    await client.put_document("dugong", "Dugongs graze on seagrass.")
    slot = keys.slot(tag("dugong"))
    source = shards.node_of(keys.document_key("dugong", tag("dugong")))
    target = next(node for node in shards.nodes if node is not source)

    async def begin() -> None:
        begun_move(shards, slot, source, target)
        if ends_before == 2:
            await end()

    async def end() -> None:
        end_move(shards, slot, source, target)

    before = client.engine.rankings
    with between(client.engine, monkeypatch, {2: begin, ends_before if ends_before > 2 else 0: end}) as numbers:
        result = await client.search("dugongs", timeout=20)
    try:
        assert [hit.document_id for hit in result.hits] == ["dugong"]
        assert len(numbers) >= 4
        assert client.engine.rankings == before + 1
        await client.put_document("dugong", "Dugongs sleep.")
        assert [hit.text for hit in (await client.search("dugongs")).hits] == ["Dugongs sleep."]
    finally:
        begun_move(shards, slot, target, source)
        end_move(shards, slot, target, source)


async def test_a_document_written_between_the_pipelines_is_ranked_and_its_answer_is_not_cached(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(cluster_url=f"redis://127.0.0.1:{shards.nodes[0].port}", answer_drift=0.0)
    question = "What do tamanduas masticate?"
    async with AsyncClusterClient(settings) as client:
        await client.put_document("tamandua", "Tamanduas masticate ants.")

        async def write() -> None:
            await client.put_document("tamandua 2", "Tamanduas masticate termites and nothing else.")

        with between(client.engine, monkeypatch, {2: write}):
            first = await client.ask(question, no_answer=False)
        second = await client.ask(question, no_answer=False)
        third = await client.ask(question, no_answer=False)
    assert [result.usage.candidates for result in (first, second, third)] == [2, 2, 2]
    assert [result.cache.status for result in (first, second, third)] == ["miss", "miss", "hit"]


async def test_a_document_removed_between_the_pipelines_is_not_ranked(
    client: AsyncClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.put_document("solenodon", "Solenodons are venomous.")
    with between(client.engine, monkeypatch, {2: lambda: client.delete_document("solenodon")}):
        assert (await client.search("solenodons")).hits == ()


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ("-qa.index.rank", "refused QA.INDEX.RANK index:{.*}: NOPERM.*qa.index.rank"),
        ("-qa.index.stats", "refused QA.INDEX.STATS index:{.*}: NOPERM.*qa.index.stats"),
        ("-hget", "refused HGET layout:{.*}: NOPERM.*hget"),
        ("resetkeys %R~qa:* %R~qa* %R~bert-qa:* %R~epoch:* %R~flight:* %R~layout:*", "refused QA.INDEX.STATS .*NOPERM"),
    ],
)
async def test_the_refusal_of_a_ranking_names_the_missing_rights(shards: Shards, refused: str, said: str) -> None:
    with user(shards, *refused.split()) as url:
        async with AsyncClusterClient(url) as client:
            for work in (client.search("ayes tap"), client.ask("Who taps?")):
                with pytest.raises(MissingRights, match=f"user may not rank: shard .* {said}") as denied:
                    await work
                assert RIGHTS in str(denied.value)


@contextmanager
def user(shards: Shards, *rules: str) -> Iterator[str]:
    """The URL of the cluster for a user with all rights except those that the rules remove."""
    for node in shards.nodes:
        shards.on(node, "ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", "&*", "+@all", *rules)
    try:
        yield f"redis://narrow:secret@127.0.0.1:{shards.nodes[0].port}"
    finally:
        for node in shards.nodes:
            shards.on(node, "ACL", "DELUSER", "narrow")


async def test_the_rights_that_a_refusal_names_are_enough_to_rank(shards: Shards, client: AsyncClusterClient) -> None:
    await client.put_document("indri", "Indris sing.")
    connecting = ("+@connection", "+client", "+cluster|slots", "+get", "%R~qa:*", "%R~bert-qa:*")
    with user(shards, "-@all", "resetkeys", *re.findall(r"\([^)]*\)", RIGHTS), *connecting) as url:
        async with AsyncClusterClient(url) as narrow:
            (found,) = await narrow.engine._ranker.rank_each("indris", 8, None, (keys.DEFAULT_COLLECTION,))
            assert [keys.parse_sentence(item.sentence).document for item in found.candidates] == ["indri"]
