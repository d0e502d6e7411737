"""A reading plan of two stages on a real cluster. The first reader answers the first word, the second the last word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qa_cluster.asking.connecting import target_of
from qa_cluster.asking.engine import Engine, EngineOptions
from qa_cluster.config import Settings
from qa_cluster.options.questions import AskOptions
from qa_cluster.reading.plan import WAVES, StageOptions
from qa_cluster.types import AskResult
from tests.functions.tiny_shards import LAST, TinyShards, tiny_shards
from tests.harness.polling import eventually_async

pytestmark = pytest.mark.one_server("the client runs the plan; each stage is a call of qa.read")
QUESTION = "Who discovered radium?"


@pytest.fixture(scope="module")
def shards(shared_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyShards]:
    with tiny_shards(shared_binary, tmp_path_factory.mktemp("readers")) as found:
        found.written("both")
        found.written("other", "Pierre Curie discovered radium near Lyon")
        yield found


async def opened(shards: TinyShards, *plan: StageOptions) -> Engine:
    target = target_of(Settings(cluster_url=shards.url))
    return await Engine.open(target.seeds, target.login, EngineOptions(plan=plan, limits=target.options.limits))


async def ask(engine: Engine, **options: object) -> AskResult:
    chosen = AskOptions(no_answer=False, timeout=60, **options)  # type: ignore[arg-type]
    return (await engine.ask(QUESTION, chosen)).result("id")


async def test_the_second_reader_decides_on_shards_that_have_it(
    shards: TinyShards,
) -> None:
    engine = await opened(shards, StageOptions(waves=WAVES), StageOptions(model="last", candidates=1))
    try:
        alone = await ask(engine)
        assert (alone.model.id, alone.usage.sentences_read) == ("first", 2)
        shards.load("last", make_default=False)

        async def both() -> bool:
            return (await ask(engine)).model.id == "last"

        await eventually_async(both)
        result = await ask(engine)
        assert result.best is not None and alone.best is not None
        assert (result.model.revision, result.usage.sentences_read) == (shards.last.revision, 3)
        assert result.best.answer == {"both": LAST, "other": "Lyon"}[result.best.document_id]
        assert alone.best.answer not in (LAST, "Lyon")
        assert (await ask(engine)).cache.status == "hit"
        sure = await opened(shards, StageOptions(waves=WAVES, final_threshold=-1e6), StageOptions(model="last"))
        try:
            found = await ask(sure)
            assert (found.model.id, found.answers) == ("first", alone.answers)
        finally:
            await sure.aclose()
        shards.unload("last")

        async def without() -> bool:
            return (await ask(engine)).model.id == "first"

        await eventually_async(without)
    finally:
        await engine.aclose()
