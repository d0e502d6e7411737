"""`qa-cluster documents show`: prints one stored document."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qa_cluster.documents.source_map import FIELD, NO_MAP, read_map, shown_metadata
from qa_cluster.keys import DEFAULT_COLLECTION

from ...terminal import console, tables
from ..shared_options import CollectionOption, Json, client_of


def show(
    context: typer.Context,
    id: Annotated[
        str, typer.Argument(help="Id of the document; `qa-cluster documents list` lists the ids.", metavar="ID")
    ],
    collection: CollectionOption = DEFAULT_COLLECTION,
    json: Json = False,
) -> None:
    """Show the record and the text of a document. The exit code is 1 if the document does not exist.

    The record has only the sizes of the source map, which maps the text to its file. --json prints the whole map.

    Example: qa-cluster documents show news/today.txt --json | jq -r .text
    """
    with client_of(context) as client:
        found = client.get_document(id, collection=collection)
    if json:
        console.say_json(found.to_dict())
        return
    metadata = shown_metadata(found.metadata)
    about = {
        "id": found.id,
        "title": found.title,
        "version": found.version,
        "sentences": found.sentences,
        "answers": "yes" if found.tokenized else "not yet",
        "file": _file(found.metadata),
        "metadata": json_module.dumps(metadata, ensure_ascii=False) if metadata else "",
    }
    tables.table([{"": name, "value": value} for name, value in about.items() if value != ""])
    console.say(found.text.rstrip())


def _file(metadata: Mapping[str, Any]) -> str:
    """The source file of a document and the sizes of its source map; empty without a source map."""
    if FIELD not in metadata:
        return ""
    size = f"{len(json_module.dumps(metadata[FIELD], ensure_ascii=False).encode()):,} bytes in metadata.{FIELD}"
    found = read_map(metadata)
    if found is NO_MAP:
        return f"unreadable source map, {size}"
    about = [f"{found.file or 'no name'} ({found.format})" if found.format else found.file or "no name"]
    for number, noun in ((len(found.starts), "section"), (len(found.place_starts), f"{found.unit} number")):
        about += [console.counted(number, noun)] if number else []
    return "; ".join([*about, size])
