"""The cost of reading for one question: stored or new tokens, batches by length or by order of arrival.

It measures `qa.read` on one shard with the best-ranked sentences of real questions. This is the whole cost of a
question on the shard after ranking: the shard fetches records, tokenizes the question, forms and runs batches, decodes
spans and stores answers. Two shards have the same documents. One has our worker; the worker of the other batches
sentences in order of arrival. The worker tokenizes sentences without stored tensors when it reads them; their
neighbours keep their tensors. Each question goes all four ways in turn.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from qa_cluster import keys
from tests.functions.running_shards import Shards
from tests.harness.clusters import Cluster
from tests.harness.polling import eventually

from .corpus import Corpus
from .report import Report, median
from .systems import START_SECONDS

CANDIDATES = (8, 32)
QUESTIONS = 40
DOCUMENTS = 150
SETTINGS = {"qa.worker-threads": 1}
TELLING_SECONDS = 1.2  # twice as long as a worker takes between two reports, so that no report is in flight
WORKERS = {
    "by length": f'"{sys.executable}" -m qa_cluster.gears.worker',
    "as they come": f'"{sys.executable}" "{Path(__file__).parent / "baselines" / "unsorted_worker.py"}"',
}
TOKENS = ("stored", "made when asked")
OURS = ("stored", "by length")
Way = tuple[str, str]


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one question, or the median of a round: wall time, and the worker's processor time."""

    wall: float
    processor: float


class Side:
    """A shard with documents; it counts what its worker reads."""

    def __init__(self, cluster: Cluster) -> None:
        self.shards = Shards(cluster)
        self.node = cluster.nodes[0]
        self.client = self.node.client(decode_responses=False)
        self.worker = int(self.node.field("worker_pid"))

    def fill(self, documents: Sequence[tuple[str, str]]) -> None:
        """Store functions, reader and documents."""
        self.shards.set_up()
        self.shards.load_reader()
        for document_id, text in documents:
            self.shards.put(document_id, text)
        self.shards.wait_tokenized(*(document_id for document_id, _ in documents))

    def candidates(self, question: str, count: int) -> list[str]:
        """The best-ranked sentences."""
        return [found.sentence for found in self.shards.rank(question, count).candidates]

    def read(self, question: str, sentences: Sequence[str]) -> Cost:
        """The cost of reading; RuntimeError unless the model read every sentence."""
        worked, started = self._processor_ms(), time.perf_counter()
        replies = self.client.execute_command("RG.TRIGGER", "qa.read", "", question, *sentences)
        took = Cost((time.perf_counter() - started) * 1000, self._processor_ms() - worked)
        if any(isinstance(reply, Exception) or json.loads(reply)["cache"] != "miss" for reply in replies):
            raise RuntimeError(f"a sentence was not read for {question!r}: {replies!r}"[:500])
        return took

    def _processor_ms(self) -> float:
        """The processor time of the worker's threads."""
        spent = 0
        for task in Path(f"/proc/{self.worker}/task").iterdir():
            with suppress(OSError):  # the thread has just ended
                spent += int((task / "schedstat").read_text().split()[0])
        return spent / 1e6

    @contextmanager
    def without_tokens(self, sentences: Sequence[str]) -> Iterator[None]:
        """Within the block, the documents have no stored tokens; tokens in the worker's memory stay."""
        found = {keys.parse_sentence(sentence) for sentence in sentences}
        names = sorted({keys.tokens_key(each.document_id, each.tag) for each in found})
        kept = [(name, dump) for name in names if (dump := self.client.dump(name))]
        for name in names:
            self.client.unlink(name)
        yield
        for name, dump in kept:
            self.client.restore(name, 0, dump)

    def totals(self) -> tuple[int, int, int]:
        """Batches, tokens and padded tokens of the worker so far; it reports them twice a second."""
        last: tuple[int, int, int] | None = None

        def settled() -> tuple[int, int, int] | None:
            nonlocal last
            info = self.node.info()
            before, last = (
                last,
                (
                    int(info["qa_worker_batches"]),
                    int(info["qa_worker_batched_tokens"]),
                    int(info["qa_worker_padded_tokens"]),
                ),
            )
            return last if last == before else None

        found = eventually(settled, pause=TELLING_SECONDS)
        if found is None:
            raise RuntimeError("the worker tells nothing of its batches")
        return found


@dataclass
class _Found:
    """For one number of candidates: medians of each round, and the contents of the batches of each side."""

    took: dict[Way, list[Cost]] = field(default_factory=dict)
    batches: dict[str, float] = field(default_factory=dict)
    padding: dict[str, float] = field(default_factory=dict)


def run(
    report: Report,
    binary: Path,
    corpus: Corpus,
    rounds: int,
    *,
    candidates: Sequence[int] = CANDIDATES,
    questions: int = QUESTIONS,
    documents: int = DOCUMENTS,
) -> None:
    """Run rounds of all questions, each read in all four ways, for each number of candidates."""
    step = max(1, len(corpus.documents) // documents)
    chosen = corpus.documents[::step][:documents]
    with _side(binary, "by length") as ours, _side(binary, "as they come") as other:
        sides = {"by length": ours, "as they come": other}
        for side in sides.values():
            side.fill(chosen)
        # spaces at the end make another question with the same tokens, which has no cached answer
        ends = (" " * number for number in itertools.count())
        found = {count: _measure(sides, _asked(ours, corpus, count, questions), rounds, ends) for count in candidates}
    _print(report, found, rounds, questions)


@contextmanager
def _side(binary: Path, batches: str) -> Iterator[Side]:
    with Cluster(binary, SETTINGS, worker=WORKERS[batches], size=1) as cluster:
        cluster.nodes[0].wait_ready(START_SECONDS)
        yield Side(cluster)


def _asked(side: Side, corpus: Corpus, count: int, questions: int) -> list[tuple[str, list[str]]]:
    """Questions of the corpus that have `count` candidates, and these."""
    ranked = ((question, side.candidates(question, count)) for question in corpus.questions)
    asked = list(itertools.islice((pair for pair in ranked if len(pair[1]) == count), questions))
    if len(asked) < questions:
        raise RuntimeError(f"{len(asked)} questions of {corpus.name} have {count} candidates, {questions} are wanted")
    return asked


def _measure(
    sides: dict[str, Side], asked: Sequence[tuple[str, list[str]]], rounds: int, ends: Iterator[str]
) -> _Found:
    found = _Found()
    ways = list(itertools.product(TOKENS, sides))
    before = {name: side.totals() for name, side in sides.items()}
    for number in range(rounds + 1):
        took: dict[Way, list[Cost]] = {way: [] for way in ways}
        end = {tokens: next(ends) for tokens in TOKENS}
        for (question, sentences), way in itertools.product(asked, ways):
            tokens, name = way
            stored = nullcontext() if tokens == "stored" else sides[name].without_tokens(sentences)
            with stored:
                took[way].append(sides[name].read(question + end[tokens], sentences))
        if number:  # the first round compiles the shapes
            for way in ways:
                wall, processor = ([getattr(cost, name) for cost in took[way]] for name in ("wall", "processor"))
                found.took.setdefault(way, []).append(Cost(statistics.median(wall), statistics.median(processor)))
    for name, side in sides.items():
        runs, real, padded = (now - then for now, then in zip(side.totals(), before[name], strict=True))
        found.batches[name] = runs / (len(TOKENS) * (rounds + 1) * len(asked))
        found.padding[name] = padded / real
    return found


def _print(report: Report, found: dict[int, _Found], rounds: int, questions: int) -> None:
    rows = []
    for count, cost in found.items():
        for way, took in cost.took.items():
            tokens, name = way
            ratios = [theirs.wall / ours.wall for theirs, ours in zip(took, cost.took[OURS], strict=True)]
            rows.append(
                [
                    str(count),
                    tokens,
                    name + (" (ours)" if way == OURS else ""),
                    median([one.wall for one in took], 1),
                    "" if way == OURS else f"{median(ratios)} ×",
                    f"{statistics.median(one.processor for one in took):.1f}",
                    f"{cost.batches[name]:.1f}",
                    f"{cost.padding[name]:.2f}",
                ]
            )
    report.table(
        "Reading one question (milliseconds)",
        ["sentences", "tokens", "batches", "p50", "against ours", "processor", "runs", "padding"],
        rows,
        f"`qa.read` on one shard, one client, {SETTINGS['qa.worker-threads']} runtime thread; ours: sentences were"
        " tokenized when they were stored and batches hold like lengths; the others: the same worker with the stored"
        " tokens taken away, and with batches in the order of ranking up to the same token budget;"
        f" {questions} questions with their best-ranked sentences, no answer cached; medians of {rounds} rounds"
        " [least–most]; processor: time of all the worker's threads; runs: of the model, for a question;"
        " padding: padded tokens for each real one",
    )
