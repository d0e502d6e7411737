"""`qa-cluster questions`: lists questions without a sure answer and feedback, and exports feedback."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer

from qa_cluster.evaluation.feedback_export import examples_of, lines_of, squad_of
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.types import FeedbackEntry

from ...terminal import console, tables
from ..shared_options import CollectionOption, Json, client_of, file_option

_SHOWN_CHARS = 80


def questions(
    context: typer.Context,
    unanswered: Annotated[
        bool, typer.Option("--unanswered", help="Show the questions without a sure answer instead of the feedback.")
    ] = False,
    collection: CollectionOption = DEFAULT_COLLECTION,
    export: Annotated[
        str | None,
        file_option("Write the feedback as a question set: .json for `eval`, .jsonl for `model train` and `eval`."),
    ] = None,
    json: Json = False,
) -> None:
    """Show the feedback on answers or, with --unanswered, the questions without a sure answer.

    A question has no sure answer if it has no answer, or if its best answer has the confidence `unsure`. Questions that
    a cache answered are not counted. --export writes one example for each sentence that the feedback judges.

    Examples:

        qa-cluster questions --unanswered --json | jq -r '.data[].question'

        qa-cluster questions --export eval.json && qa-cluster eval eval.json
    """
    if export is not None and (unanswered or not export.endswith((".json", ".jsonl"))):
        raise typer.BadParameter(
            "--export writes only feedback: leave out --unanswered, and name a file that ends in .json or .jsonl",
            param_hint="--export",
        )
    with client_of(context) as client:
        if unanswered:
            asked = client.unanswered_questions(collection)
            if json:
                console.say_json({"object": "list", "data": [each.to_dict() for each in asked]})
                return
            tables.table(
                [
                    {
                        "question": each.question[:_SHOWN_CHARS],
                        "count": each.count,
                        "score": f"{each.score:.2f}",
                        "last": _day(each.last),
                    }
                    for each in asked
                ],
                right=("count", "score"),
            )
            return
        entries = client.feedback(collection)
    if export is not None:
        _export(Path(export), entries)
    elif json:
        console.say_json({"object": "list", "data": [entry.to_dict() for entry in entries]})
    else:
        tables.table(
            [
                {
                    "time": _day(entry.created),
                    "verdict": entry.feedback.verdict,
                    "question": entry.feedback.question[:_SHOWN_CHARS],
                    "answer": (entry.feedback.better_answer or entry.feedback.answer)[:_SHOWN_CHARS],
                }
                for entry in entries
            ]
        )


def _export(path: Path, entries: tuple[FeedbackEntry, ...]) -> None:
    examples = examples_of(entry.feedback for entry in entries)
    if path.name.endswith(".jsonl"):
        content = b"".join(orjson.dumps(line) + b"\n" for line in lines_of(examples))
    else:
        content = orjson.dumps(squad_of(examples), option=orjson.OPT_INDENT_2)
    if not examples:
        console.error("no feedback has the sentence of an answer, so there are no examples: nothing was written")
        raise typer.Exit(1)
    path.write_bytes(content)
    console.say(f"{console.counted(len(examples), 'example')} written to {path}")


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="minutes").removesuffix("+00:00") + "Z"
