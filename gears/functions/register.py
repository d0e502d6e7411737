"""Registers all functions; the script of the session `qa-functions` only calls `register_all`.

Registering again, with ``UPGRADE``, replaces the registrations and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qa_cluster.gears.functions import watch
from qa_cluster.gears.functions.answering import answer, pipeline, rank, sentences
from qa_cluster.gears.functions.indexing import split, tokenize
from qa_cluster.gears.functions.readers import report
from qa_cluster.gears.functions.shard import partitions
from qa_cluster.gears.scripting import api as rg
from qa_cluster.shard_functions import (
    ANSWER_KEYS,
    LOOSE_SENTENCE_KEYS,
    MODELS_TRIGGER,
    PARTITIONS_TRIGGER,
    PIPELINE_TRIGGER,
    RANK_TRIGGER,
    READ_TRIGGER,
    READER_KEYS,
    READER_TRIGGER,
    SENTENCES_TRIGGER,
    TEXT_KEYS,
)


def register_all() -> None:
    """Register every function on every shard; `FUNCTIONS` in `qa_cluster/shard_functions.py` names them."""
    _on_keys(TEXT_KEYS, split.on_paragraphs, "index documents")
    _on_keys(LOOSE_SENTENCE_KEYS, tokenize.on_sentences, "forget answers of sentences without a document")
    _on_keys(READER_KEYS, watch.on_reader_file, "take up a new reader")
    rg.GearsBuilder("KeysReader", desc="read a sentence when its answer is missing").foreach(
        answer.on_missing_answer
    ).register(prefix=ANSWER_KEYS, eventTypes=["keymiss"], commands=["get"], mode="async_local", readValue=False)
    _on_trigger(READ_TRIGGER, answer.on_read, "read sentences", flat=True)
    _on_trigger(RANK_TRIGGER, rank.on_rank, "rank sentences", flat=False)
    _on_trigger(READER_TRIGGER, report.on_reader, "show the default reader", flat=False)
    _on_trigger(PIPELINE_TRIGGER, pipeline.on_pipeline, "read given contexts", flat=False)
    _on_trigger(SENTENCES_TRIGGER, sentences.on_sentences, "show the sentences of a document", flat=True)
    _on_trigger(MODELS_TRIGGER, report.on_models, "list the readers", flat=False)
    _on_trigger(PARTITIONS_TRIGGER, partitions.on_partitions, "tell the number of partitions", flat=False)


def _on_keys(prefix: str, function: Callable[[Any], Any], description: str) -> None:
    rg.GearsBuilder("KeysReader", desc=description).foreach(function).register(
        prefix=prefix, mode="async_local", readValue=False, onRegistered=watch.on_registered
    )


def _on_trigger(trigger: str, function: Callable[[Any], Any], description: str, *, flat: bool) -> None:
    builder = rg.GearsBuilder("CommandReader", desc=description)
    builder = builder.flatmap(function) if flat else builder.map(function)
    # the API's user needs no rights to indexes and locks: the functions run with the worker's rights
    builder.register(trigger=trigger, mode="async_local", convertToStr=False, rights="owner")
