"""The data source with a real Spark session and a real cluster: reads, writes, failures and retries."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from qa_cluster.client import Client
from qa_cluster.errors import InvalidInput
from qa_cluster.integrations.spark.options import SparkOptions
from qa_cluster.integrations.spark.writing import DocumentsWriter
from tests.harness.system import System

pytestmark = pytest.mark.timeout(1200)

ROWS = 40


def documents(spark: Any, count: int = ROWS, word: str = "first", partitions: int = 4) -> Any:
    found = spark.range(count, numPartitions=partitions)
    return found.selectExpr(
        "concat('doc-', id) as id",
        f"concat('The {word} text of number ', id, ' names a person. It has two sentences.') as text",
        "concat('Title ', id) as title",
        "named_struct('year', 1800 + id, 'tags', array('a', 'b')) as metadata",
    )


def write(frame: Any, url: str, collection: str, mode: str = "append", **options: str) -> None:
    given = {"url": url, "collection": collection, **options}
    frame.write.format("qacluster").options(**given).mode(mode).save()


def stored(url: str, collection: str) -> dict[str, str]:
    """The texts of a collection by document id; check that each id is listed once."""
    with Client(url, timeout=120) as client:
        ids = [entry.id for entry in client.list_documents(collection=collection)]
        assert len(ids) == len(set(ids))
        assert client.count_documents(collection=collection).documents == len(ids)
        return {id: client.get_document(id, collection=collection).text for id in ids}


def test_written_documents_are_read_in_partitions(spark: Any, url: str, collection: str) -> None:
    frame = documents(spark)
    write(frame, url, collection)
    expected = {row.id: row.text for row in frame.collect()}
    assert stored(url, collection) == expected

    reading = spark.read.format("qacluster").options(url=url, collection=collection)
    found = reading.option("documents_per_partition", "7").load()
    assert found.rdd.getNumPartitions() == 6
    rows = {row.id: row for row in found.collect()}
    assert {id: row.text for id, row in rows.items()} == expected
    assert rows["doc-3"].title == "Title 3" and rows["doc-3"].sentences == 2 and len(rows["doc-3"].version) == 16
    assert orjson.loads(rows["doc-3"].metadata) == {"year": 1803, "tags": ["a", "b"]}

    chosen = reading.option("filter", '["year>=1810", "year<1812"]').schema("title string, id string").load()
    assert sorted(chosen.collect()) == [("Title 10", "doc-10"), ("Title 11", "doc-11")]
    assert reading.option("prefix", "none/").load().count() == 0


def test_a_repeated_write_changes_nothing(spark: Any, url: str, collection: str) -> None:
    write(documents(spark), url, collection)
    with Client(url) as client:
        before = {entry.id: entry.version for entry in client.list_documents(collection=collection)}
        write(documents(spark, partitions=2), url, collection)
        after = {entry.id: entry.version for entry in client.list_documents(collection=collection)}
    assert before == after and len(after) == ROWS


def test_a_killed_task_is_retried_without_duplicates(spark: Any, url: str, collection: str, marker: str) -> None:
    """The Python worker of a task is killed after it has written some of its documents."""

    def killed(rows: Iterator[Any]) -> Iterator[Any]:
        import time

        for row in rows:
            yield row
            if row.id == "doc-35":
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                time.sleep(2)  # the rows before this one are written meanwhile
                os.kill(os.getpid(), signal.SIGKILL)

    frame = documents(spark)
    write(spark.createDataFrame(frame.rdd.mapPartitions(killed), frame.schema), url, collection, connections="2")
    assert os.path.exists(marker)
    assert stored(url, collection) == {row.id: row.text for row in documents(spark).collect()}


def test_a_speculative_attempt_causes_no_duplicates(spark: Any, url: str, collection: str) -> None:
    """Two attempts of each task run, and the driver commits the message of one attempt."""
    options = SparkOptions.of({"url": url, "collection": collection})
    rows = documents(spark, 10).collect()
    writer = DocumentsWriter(options, overwrite=True)
    first, second = writer.write(iter(rows)), writer.write(iter(rows))
    assert (first.changed, first.unchanged, second.changed, second.unchanged) == (10, 0, 0, 10)
    assert first.ids == second.ids and len(first.ids) == 160
    writer.commit([second])
    assert len(stored(url, collection)) == 10


def test_an_overwrite_replaces_the_collection(spark: Any, url: str, collection: str) -> None:
    write(documents(spark, 20, "old"), url, collection)
    write(documents(spark, 30, "new").filter("id != 'doc-7'"), url, collection, "overwrite")
    found = stored(url, collection)
    assert len(found) == 29 and "doc-7" not in found
    assert all("The new text" in text for text in found.values())


def test_a_failed_overwrite_deletes_nothing(spark: Any, url: str, collection: str) -> None:
    write(documents(spark, 20, "old"), url, collection)
    broken = documents(spark, 30, "new").selectExpr("id", "if(id = 'doc-29', null, text) as text", "title", "metadata")
    with pytest.raises(Exception, match="the row with the id 'doc-29' has no text"):
        write(broken.filter("id != 'doc-7'"), url, collection, "overwrite")
    found = stored(url, collection)
    assert {f"doc-{number}" for number in range(20)} <= set(found)
    assert "The old text" in found["doc-7"] and "doc-29" not in found
    write(documents(spark, 30, "new").filter("id != 'doc-7'"), url, collection, "overwrite")
    assert len(stored(url, collection)) == 29


def test_an_empty_overwrite_needs_an_option(spark: Any, url: str, collection: str) -> None:
    write(documents(spark, 3), url, collection)
    nothing = documents(spark, 3).filter("id = ''")
    with pytest.raises(Exception, match="set the option allow_empty to true"):
        write(nothing, url, collection, "overwrite")
    assert len(stored(url, collection)) == 3
    write(nothing, url, collection, "overwrite", allow_empty="true")
    assert stored(url, collection) == {}


def test_a_refused_document_fails_the_job_or_is_skipped(spark: Any, url: str, collection: str) -> None:
    long = documents(spark, 4).selectExpr("if(id = 'doc-2', repeat('x', 600), id) as id", "text")
    with pytest.raises(Exception, match="512"):
        write(long, url, collection)
    write(long, url, collection, "overwrite", on_error="skip")
    assert sorted(stored(url, collection)) == ["doc-0", "doc-1", "doc-3"]


def test_a_missing_collection_is_created_if_asked(spark: Any, url: str) -> None:
    name = f"new-{os.urandom(4).hex()}"
    with pytest.raises(Exception, match="no such collection"):
        write(documents(spark, 2), url, name)
    write(documents(spark, 2), url, name, create="true")
    assert len(stored(url, name)) == 2
    with Client(url, timeout=120) as client:
        client.delete_collection(name)


def test_wrong_columns_and_options(spark: Any, url: str, collection: str) -> None:
    for expression, error in (
        (["id"], "has no column 'text'"),
        (["id", "text", "1 as year"], "column 'year' is not a field of a document"),
        (["id", "1 as text"], "column 'text' has the type integer, must be string"),
    ):
        with pytest.raises(Exception, match=error):
            write(documents(spark, 2).selectExpr(*expression), url, collection)
    with pytest.raises(Exception, match="unknown option 'colection'"):
        spark.read.format("qacluster").options(url=url, colection="x").load().count()
    for options, error in (
        ({"connections": "0"}, "connections is 0, must be from 1 to 64"),
        ({"connections": "many"}, "connections is 'many', must be an integer"),
        ({"timeout": "soon"}, "timeout is 'soon', must be a number"),
        ({"create": "yes"}, "create is 'yes', must be true or false"),
        ({"on_error": "ignore"}, "on_error is 'ignore', must be fail or skip"),
        ({"filter": "[1]"}, "filter must be a condition or a JSON array"),
        ({"token": "a", "token_file": "b"}, "both set"),
    ):
        with pytest.raises(InvalidInput, match=error):
            SparkOptions.of(options)


def test_the_key_is_used_and_not_shown(
    spark: Any, collection: str, framework_service: System, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{framework_service.port}"
    made = framework_service.cli("keys", "create", "spark", "--scope", "write", "--scope", "search", "--json").stdout
    token = next(value for value in orjson.loads(made).values() if str(value).startswith("qac_"))
    try:
        file = tmp_path / "token"
        file.write_text(token + "\n")
        write(documents(spark, 3), url, collection, token_file=str(file))
        found = spark.read.format("qacluster").options(url=url, collection=collection, token=token).load()
        assert found.count() == 3
        assert token not in found._jdf.queryExecution().toString() and token not in repr(SparkOptions(token=token))
        found.explain(True)
        with pytest.raises(Exception) as failure:
            write(documents(spark, 3), url, collection, token=token + "x")
        assert token not in str(failure.value)
    finally:
        framework_service.cli("keys", "clear", "--yes")
    out, err = capfd.readouterr()
    assert token not in out + err
