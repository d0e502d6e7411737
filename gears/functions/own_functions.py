"""The table of qa-cluster's own functions, and the registered functions of this shard.

A registration in the module names a function of this table. A job of the registration awaits this function on the
worker's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.shard_functions import (
    ANSWER_KEYS,
    EMBED_TRIGGER,
    LOOSE_SENTENCE_KEYS,
    MODELS_TRIGGER,
    PARTITIONS_TRIGGER,
    PIPELINE_TRIGGER,
    READ_TRIGGER,
    READER_KEYS,
    READER_TRIGGER,
    SENTENCES_TRIGGER,
    TEXT_KEYS,
)

from .answering.answer import SentenceAnswers
from .answering.passage import PassageReader
from .answering.pipeline import PipelineRequests
from .answering.portions import Portions
from .answering.sentences import on_sentences
from .calls import TriggerCall
from .embedding.background import BackgroundEmbedding
from .embedding.document_vectors import DocumentVectors
from .embedding.pace import Pace
from .embedding.prepare import Preparation
from .embedding.questions import QuestionVectors
from .indexing.answer_names import ForeignAnswers
from .indexing.audit import DocumentAudit
from .indexing.batches import Indexer
from .indexing.failures import Failures
from .indexing.marks import PartitionMarks
from .indexing.postponed import PostponedWork
from .indexing.sweep import Sweeps
from .indexing.texts import TextEvents
from .indexing.tokenize import SentenceTokens
from .readers.copies import ReaderCopies
from .readers.loaded import ShardReaders
from .readers.report import ReaderReports
from .readers.stored import StoredReaders
from .shard.context import ShardContext
from .watch import ShardWatch

TriggerFunction = Callable[[TriggerCall], Awaitable[str | list[str] | list[bytes | int | float]]]
KeyFunction = Callable[[Any], Awaitable[bytes | str | None]]


@dataclass(frozen=True, slots=True)
class OwnTrigger:
    """A function that clients call by `RG.TRIGGER`.

    If the function returns a list, the list is the reply. Any other result is the only item of the reply.

    Attributes:
        cost_from: determines the cost of a call in the module's fair queue. The cost is the larger of two numbers: the
            number of arguments from this index on, and the bytes of all arguments divided by 512. The trigger's name
            has index 0. If `cost_from` is 0, only the bytes count. The cost is at least 1.
    """

    name: str
    description: str
    call: TriggerFunction
    cost_from: int = 0


@dataclass(frozen=True, slots=True)
class OwnKeyFunction:
    """A function for events of keys that match `name`.

    If one of the `commands` causes the event, the result of the function replaces the reply to this command.

    Attributes:
        name: the name of the function, which is also the pattern of its keys.
        call: the function. It gets the key of the event; None as its result leaves the reply unchanged.
        events: the names of the events that start the function; empty: all events except reads of missing keys.
        commands: the commands whose reply the function may replace; empty: no commands.
        checks_all: whether the worker calls `OwnFunctions.check_all` after events of this function were dropped.
    """

    name: str
    description: str
    call: KeyFunction
    events: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    checks_all: bool = False


OwnFunction = OwnTrigger | OwnKeyFunction


class OwnFunctions:
    """The functions by name, and by the ids of their registrations.

    Attributes:
        preparation: stores the tokens and the vectors of all documents. A script starts the preparation, so it has no
            registration.
        failures: the failed documents. The heartbeat reports their number.
        embedding: the vectors of documents. The heartbeat reports the number of documents without vectors.
    """

    def __init__(self, commands: ShardCommands, models: ModelStore) -> None:
        shard = ShardContext.of(commands)
        stored = StoredReaders(shard)
        readers = ShardReaders(shard, stored, models)
        passages, portions = PassageReader(readers), Portions(commands)
        answers = SentenceAnswers(shard, readers, passages, portions)
        pipelines = PipelineRequests(readers, passages, portions)
        reports = ReaderReports(readers)
        postponed, self.failures = PostponedWork(), Failures(commands)
        indexer = Indexer(shard, self.failures)
        marks = PartitionMarks(shard, postponed)
        texts = TextEvents(shard, indexer, postponed)
        tokens = SentenceTokens(shard, readers, postponed)
        audit = DocumentAudit(shard, indexer, marks=marks, postponed=postponed, texts=texts, tokens=tokens)
        foreign = ForeignAnswers(shard, postponed)
        sweeps = Sweeps(
            shard,
            readers,
            audit=audit,
            marks=marks,
            postponed=postponed,
            foreign_answers=foreign,
            failures=self.failures,
        )
        copies = ReaderCopies(shard, stored, readers, models)
        vectors = DocumentVectors(shard, Pace(lambda: portions.is_shared, indexer.is_busy))
        self.embedding = BackgroundEmbedding(shard, readers, vectors)
        indexer.on_indexed = self.embedding.indexed
        questions = QuestionVectors(readers, portions.note_short)
        watch = ShardWatch(shard, readers, copies, marks, sweeps, self.failures, self.embedding)
        self.preparation = Preparation(shard, readers, indexer, tokens, self.embedding)
        self._check_all = watch.check_all

        async def on_partitions(_call: TriggerCall) -> str:
            """Return the number of partitions; 0 if it is unset or unknown.

            The number is in a key on one shard. While the shard with the key is down, clients call this trigger on
            other shards.
            """
            return str(await shard.partitions.count() or 0)

        functions: tuple[OwnFunction, ...] = (
            OwnKeyFunction(TEXT_KEYS, "index documents", texts.on_text, checks_all=True),
            OwnKeyFunction(
                LOOSE_SENTENCE_KEYS,
                "delete answers of sentences without a document",
                tokens.on_sentences,
                checks_all=True,
            ),
            OwnKeyFunction(READER_KEYS, "load a new reader", watch.on_reader_file, checks_all=True),
            OwnKeyFunction(
                ANSWER_KEYS,
                "read a sentence when its answer is missing",
                answers.on_missing_answer,
                events=("keymiss",),
                commands=("get",),
            ),
            OwnTrigger(READ_TRIGGER, "read sentences", answers.on_read, cost_from=3),
            OwnTrigger(EMBED_TRIGGER, "make the vector of a question", questions.on_embed, cost_from=1),
            OwnTrigger(READER_TRIGGER, "show the default reader", reports.on_reader),
            OwnTrigger(PIPELINE_TRIGGER, "read given contexts", pipelines.on_pipeline),
            OwnTrigger(SENTENCES_TRIGGER, "show the sentences of a document", partial(on_sentences, commands)),
            OwnTrigger(MODELS_TRIGGER, "list the readers", reports.on_models),
            OwnTrigger(PARTITIONS_TRIGGER, "report the number of partitions", on_partitions),
        )
        self.by_name: Mapping[str, OwnFunction] = {function.name: function for function in functions}
        self._registered: dict[str, OwnFunction] = {}

    def registered(self, registration_id: str) -> OwnFunction | None:
        """Return the own function of a registration; None for a user function or an unknown registration."""
        return self._registered.get(registration_id)

    def add(self, registration_id: str, name: str) -> None:
        """Use the function `name` for the jobs of a registration."""
        self._registered[registration_id] = self.by_name[name]

    def remove(self, registration_id: str) -> None:
        """Forget a registration that was removed. Do nothing for the registration of a user function."""
        self._registered.pop(registration_id, None)

    def check_all(self) -> None:
        """Search the shard for work that no event has started (`ShardWatch.check_all`).

        Call this after the registration of the functions, and when events may have been lost.
        """
        self._check_all()
