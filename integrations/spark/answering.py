"""Answers the questions of a DataFrame: with a model on the executors and given contexts, or with a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from qa_cluster.client import AskResult
from qa_cluster.errors import InputTooLong, InvalidInput

from .options import SparkOptions, concurrently

READ_COLUMNS = "answer string, score double, start long, end long, no_answer boolean"
ASK_COLUMNS = (
    "answer string, score double, document_id string, title string, start long, end long, context string, url string,"
    " no_answer boolean, error string"
)
_OF_ANSWER = ("answer", "score", "document_id", "title", "start", "end", "context", "url")
_NO_ANSWER: dict[str, Any] = {**dict.fromkeys(_OF_ANSWER), "no_answer": True, "error": None}


def read_contexts(frame: Any, **options: Any) -> Any:
    """Add answers to a DataFrame of questions and contexts, without a service.

    `options` are the arguments of `qa_cluster.BatchReader`. The result has the columns of `frame` and `READ_COLUMNS`.
    Each Python worker of an executor loads the reader once.
    """
    from qa_cluster import BatchReader

    reader = BatchReader(**options)

    def read(tables: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        for table in tables:
            yield pd.DataFrame(reader(table))

    return frame.mapInPandas(read, _extended(frame, READ_COLUMNS))


def ask_questions(
    frame: Any,
    url: str,
    *,
    column: str = "question",
    collection: str = "default",
    token: str = "",
    token_file: str = "",
    tls_ca: str = "",
    timeout: float = 120.0,
    connections: int = 4,
    **options: Any,
) -> Any:
    """Add the best answer of a service to each question of a DataFrame.

    The result has the columns of `frame` and `ASK_COLUMNS`. If the service refuses a question, such as a question that
    is too long, `error` has the reason. If the service is down or overloaded for longer than `timeout`, the task fails,
    and Spark retries the task.

    Args:
        frame: the DataFrame of questions.
        url: the address of the service, which every executor must reach.
        column: the column with the questions. A null or empty question is not sent, and gets no answer.
        collection: the collection to search for answers.
        token, token_file, tls_ca: as in `SparkOptions`.
        timeout: the time limit for a question with all its retries, in seconds.
        connections: the maximum number of concurrent questions of one Python worker. An executor has one worker per
            task slot.
        options: the options of `Client.ask`, such as `filter` and `min_score`.
    """
    service = SparkOptions(
        url=url,
        collection=collection,
        token=token,
        token_file=token_file,
        tls_ca=tls_ca,
        timeout=timeout,
        connections=connections,
    ).checked()
    if column not in frame.columns:
        raise InvalidInput(f"the DataFrame has no column {column!r}, its columns are {', '.join(frame.columns)}")
    asked = {**options, "collection": collection, "top_k": 1}

    def ask(tables: Iterator[Any]) -> Iterator[Any]:
        client = service.client()
        for table in tables:
            yield _asked(table, column, lambda question: client.ask(question, **asked), connections)

    return frame.mapInPandas(ask, _extended(frame, ASK_COLUMNS))


def _asked(table: Any, column: str, ask: Callable[[str], AskResult], connections: int) -> Any:
    import pandas as pd

    questions: Iterable[Any] = table[column]
    rows = list(concurrently(lambda question: _row(question, ask), questions, connections))
    names = list(_NO_ANSWER)
    added = pd.DataFrame(rows, columns=names, index=table.index, dtype=object)
    for name in ("start", "end"):
        added[name] = added[name].astype("Int64")
    added["score"] = added["score"].astype("float64")
    added["no_answer"] = added["no_answer"].astype(bool)
    return pd.concat([table.drop(columns=names, errors="ignore"), added], axis=1)


def _row(question: Any, ask: Callable[[str], AskResult]) -> dict[str, Any]:
    if not isinstance(question, str) or not question.strip():
        return _NO_ANSWER
    try:
        result = ask(question)
    except (InvalidInput, InputTooLong) as error:
        return _NO_ANSWER | {"error": str(error)}
    best = result.best if result.answerable else None
    if best is None:
        return _NO_ANSWER
    return _NO_ANSWER | {name: getattr(best, name) for name in _OF_ANSWER} | {"no_answer": False}


def _extended(frame: Any, columns: str) -> Any:
    """Return the schema of a DataFrame with additional columns, which replace columns of the same names.

    `columns` are the names and types of the additional columns, separated by commas.
    """
    from pyspark.sql.types import StructType

    added = StructType.fromDDL(columns)
    kept = [column for column in frame.schema.fields if column.name not in added.fieldNames()]
    return StructType([*kept, *added.fields])
