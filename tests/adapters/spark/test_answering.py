"""Questions about contexts in Spark and Ray, questions to a service, and files on executors."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from qa_cluster.client import Client
from qa_cluster.errors import InvalidInput
from qa_cluster.integrations.spark import ask_questions, extract_files, read_contexts
from qa_cluster.integrations.spark.options import concurrently
from qa_cluster.integrations.spark.preparing import file_name

pytestmark = pytest.mark.timeout(1200)

QUESTION = "Who wrote the first program?"
CONTEXT = "Ada Lovelace wrote the first program in 1843. Babbage designed the engine."


def test_contexts_are_read_on_executors(spark: Any) -> None:
    rows = [(1, QUESTION, CONTEXT), (2, None, CONTEXT), (3, "Who won the world cup?", "Bread is made of flour.")]
    frame = spark.createDataFrame(rows, "id long, question string, context string").repartition(2)
    found = {row.id: row for row in read_contexts(frame).collect()}
    assert found[1].answer == "Ada Lovelace" == CONTEXT[found[1].start : found[1].end]
    assert found[1].question == QUESTION and found[1].score > 0.3 and not found[1].no_answer
    assert found[2].no_answer and found[2].score == 0 and found[3].no_answer and found[3].answer == ""


def test_a_worker_loads_the_reader_once(spark: Any) -> None:
    frame = spark.range(8, numPartitions=4).selectExpr(f"'{QUESTION}' as question", f"'{CONTEXT}' as context")
    loads = read_contexts(frame).select("answer").rdd.map(lambda row: row.answer).collect()
    assert loads == ["Ada Lovelace"] * 8


def test_questions_are_asked_of_the_service(spark: Any, url: str) -> None:
    rows = [(1, QUESTION), (2, ""), (3, "x" * 5000), (4, "Which ship sank near Iceland in 1999?")]
    frame = spark.createDataFrame(rows, "id long, question string").repartition(2)
    found = {row.id: row for row in ask_questions(frame, url, connections=2).collect()}
    assert (found[1].answer, found[1].document_id, found[1].title) == ("Ada Lovelace", "ada", "Ada")
    assert found[1].start == 0 and found[1].end == 12 and found[1].error is None and not found[1].no_answer
    assert found[2].no_answer and found[2].answer is None and found[2].error is None
    assert found[3].no_answer and "5000 characters" in found[3].error
    assert found[4].no_answer and found[4].start is None
    with pytest.raises(InvalidInput, match="no column 'query', its columns are id, question"):
        ask_questions(frame, url, column="query")
    with pytest.raises(Exception, match="no such collection"):
        ask_questions(frame, url, collection="nothing").collect()


def test_the_number_of_connections_is_bounded() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return item

    assert list(concurrently(work, range(100), 3)) == list(range(100))
    assert most == 3
    started: list[int] = []

    def fails(item: int) -> int:
        started.append(item)
        raise ValueError(str(item))

    with pytest.raises(ValueError, match="0"):
        list(concurrently(fails, range(100), 2))
    assert len(started) <= 4


def test_files_are_extracted_on_executors(spark: Any, url: str, collection: str, tmp_path: Path) -> None:
    folder = tmp_path / "some files"
    (folder / "deep").mkdir(parents=True)
    (folder / "ships.html").write_text("<title>Ships</title><h1>Ships</h1><p>The Vasa sank in 1628.</p>")
    (folder / "deep" / "cats.md").write_text("# Cats\n\nCats purr.\n")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(str(folder))
    found = extract_files(files, root=str(folder), prefix="files/").cache()
    rows = {row.id: row for row in found.collect()}
    assert sorted(rows) == ["files/broken.pdf", "files/deep/cats.md", "files/ships.html"]
    assert rows["files/broken.pdf"].text is None and rows["files/broken.pdf"].error
    assert rows["files/ships.html"].title == "Ships" and "The Vasa sank in 1628." in rows["files/ships.html"].text
    documents = found.filter("error is null").drop("error")
    documents.write.format("qacluster").options(url=url, collection=collection).mode("append").save()
    with Client(url, timeout=120) as client:
        assert client.ask("When did the Vasa sink?", collection=collection).best.answer == "1628"
        entry = client.get_document("files/ships.html", collection=collection)
        assert entry.metadata == orjson.loads(rows["files/ships.html"].metadata)


@pytest.mark.parametrize(
    ("path", "root", "name"),
    [
        ("file:/data/a%20b/c.md", "/data", "a b/c.md"),
        ("file:///data/c.md", "file:///data/", "c.md"),
        ("s3a://bucket/docs/c.md", "s3a://bucket/docs", "c.md"),
        ("hdfs://host:9000/docs/c.md", "", "docs/c.md"),
    ],
)
def test_the_names_of_files(path: str, root: str, name: str) -> None:
    assert file_name(path, root) == name
