"""Vectors that executors compute: shards with the same encoder use them, and other shards discard them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from qa_cluster.client import Client
from qa_cluster.errors import InvalidInput
from qa_cluster.integrations.spark import embed_documents
from qa_cluster.integrations.spark.options import SparkOptions
from qa_cluster.integrations.spark.writing import DocumentsWriter
from tests.harness.polling import eventually
from tests.harness.programs import binary_or_skip, chosen_servers
from tests.harness.system import UNHURRIED, System

pytestmark = pytest.mark.timeout(1200)

ROWS = [
    ("ada", "Ada Lovelace wrote the first program. Babbage designed the engine.", "Ada", '{"year": 1843}'),
    ("birds", "Penguins cannot fly. They swim well.", None, None),
    ("empty", " ", None, None),
    ("bad", "Its metadata are no object.", None, "[1]"),
]
SCHEMA = "id string, text string, title string, metadata string"


@pytest.fixture(scope="module")
def encoding_service() -> Iterator[System]:
    """A shard with the bundled encoder. It computes no vectors of documents itself."""
    binary = binary_or_skip(chosen_servers()[0])
    with System(binary, shards=1, QA_BACKGROUND_EMBEDDING="false", **UNHURRIED) as system:
        system.start_service()
        yield system


def counts(system: System) -> tuple[int, int]:
    """The number of documents, and the number of documents without vectors."""
    (shard,) = system.status()["shards"]
    return shard["documents"], shard["unembedded"]


def test_the_vectors_of_executors_are_used(spark: Any, encoding_service: System, url: str, collection: str) -> None:
    made = embed_documents(spark.createDataFrame(ROWS, SCHEMA).repartition(2)).collect()
    vectors = {row.id: row.vectors for row in made}
    assert vectors["empty"] is None and vectors["bad"] is None
    assert json.loads(vectors["ada"])["sentences"] == 2
    good = spark.createDataFrame([row for row in made if row.id in ("ada", "birds")], f"{SCHEMA}, vectors string")

    own = f"http://127.0.0.1:{encoding_service.port}"
    with Client(own, timeout=120) as client:
        client.put_document("other", "The shard makes no vectors of this document.")
    eventually(lambda: counts(encoding_service) == (1, 1))  # the count includes a document soon after its indexing
    good.write.format("qacluster").options(url=own).mode("append").save()
    eventually(lambda: counts(encoding_service)[0] == 3)
    time.sleep(1)
    assert counts(encoding_service) == (3, 1), "only the document that was stored without vectors has no vectors"

    # A cluster without an encoder stores the documents, and discards the vectors.
    options = SparkOptions.of({"url": url, "collection": collection})
    written = DocumentsWriter(options, overwrite=False).write(iter(good.collect()))
    assert (written.changed, written.embedded, written.discarded) == (2, 0, 2)


def test_only_texts_can_be_embedded(spark: Any) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    with pytest.raises(InvalidInput, match="column 'metadata' has the type struct, must be string"):
        embed_documents(frame.selectExpr("id", "text", "struct(title) as metadata"))
    with pytest.raises(InvalidInput, match="no column 'text'"):
        embed_documents(frame.select("id"))
