"""Invalid metadata of a stored document count as empty, and no request fails."""

from __future__ import annotations

import pytest

from qa_cluster import keys
from qa_cluster.asking.engine import Engine
from tests.client.engines import ask, search
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_functions import PARTITIONS

pytestmark = pytest.mark.hostile


BAD = ('{"a":1e999}', '{"a":NaN}', "{never closed", "[1]", "7", "", '{"_source":{"sections":7,"places":{}}}', "\xff")


async def test_no_request_fails(cluster: ScriptedCluster, engine: Engine) -> None:
    name = "doc 0"
    await engine.documents.put(name, "Ada wrote programs.", metadata={"year": 1843}, wait=True)
    key = keys.document_key(name, keys.partition_of(name, PARTITIONS))
    for metadata in BAD:
        await engine.shards.execute(key, "HSET", key, "metadata", metadata)
        result = await ask(engine, "Who wrote programs?", cache="off")
        assert [(answer.answer, answer.document_id) for answer in result.answers] == [("Ada", name)], metadata
        assert [hit.document_id for hit in (await search(engine, "wrote programs")).hits] == [name], metadata
        assert (await engine.documents.get(name)).text == "Ada wrote programs.", metadata
