"""Faults of the readers people had before, one test each; the docstring says whose it was.

Logits are made by hand: each test puts the highest ones where the faulty reader let itself be misled.
"""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from qa_cluster.asking.assembly import CitedDocument, assemble, distinct
from qa_cluster.asking.questions import AskOptions
from qa_cluster.documents import Neighbour, SentenceRecord
from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.answering.passage import passage_of
from qa_cluster.keys import SentenceRef, answer_key, parse_answer_key
from qa_cluster.reading.manifest import Manifest, PairLayout
from qa_cluster.reading.readings import FoundSpan, SentenceReading, parse_readings
from qa_cluster.reading.spans import Reading, best_spans
from qa_cluster.reading.tokenization import TextTokens, pack_sentence
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder, Window
from tests.unit.small_tokenizer import small_tokenizer

QUESTION = "who is the cat"
TEXT = "Élan, the Cat, sat ON the mat. The dog is un-happy!"
PASSAGE_START = 6  # [CLS], four tokens of the question, [SEP]
LOW = -5.0

Marks = dict[int, float]


def tokens_of(text: str) -> TextTokens:
    return small_tokenizer().encode_text(text)


def logits(tokens: int, marks: Marks) -> np.ndarray:
    """Low but for `marks`: negative positions are before the passage, those from `tokens` on are [SEP] and padding."""
    row = np.full(PASSAGE_START + tokens + 4, LOW, dtype=np.float32)
    for position, value in marks.items():
        row[PASSAGE_START + position] = value
    return row


def window(tokens: int, first: int = 0) -> Window:
    return Window(np.zeros(PASSAGE_START + tokens + 1, dtype=np.int64), PASSAGE_START, first, tokens)


def read(text: str, start: Marks, end: Marks, **options: Any) -> Reading:
    tokens = tokens_of(text)
    count = len(tokens.ids)
    pair = logits(count, start), logits(count, end)
    return best_spans([window(count)], [pair], tokens, text, **{"max_answer_tokens": 8, **options})


def words(text: str) -> list[str]:
    tokens = tokens_of(text)
    return [text[start:end] for start, end in zip(tokens.starts, tokens.ends, strict=True)]


def answers(text: str, reading: Reading) -> list[str]:
    return [text[span.start : span.end] for span in reading.spans]


CLS = -PASSAGE_START
THE, CAT, MAT = (words(TEXT).index(word) for word in ("the", "Cat", "mat"))


def test_the_question_is_not_echoed() -> None:
    """the-pattern: argmax ran over the question's tokens too; its README expects the question as the answer."""
    found = read(TEXT, {CLS + 1: 9, THE: 1}, {CLS + 4: 9, CAT: 1})
    assert answers(TEXT, found) == ["the Cat"]


def test_start_and_end_are_chosen_together() -> None:
    """the-pattern: independent argmax of start and end gave empty spans where the end came first."""
    found = read(TEXT, {MAT: 9, THE: 8}, {CAT: 9})
    assert answers(TEXT, found) == ["the Cat"]


def test_an_end_before_the_start_is_no_answer_turned_round() -> None:
    """DJL: start and end were swapped when the end came first, which answers with what the reader refused."""
    found = read(TEXT, {MAT: 9, CAT: 3}, {CAT: 9, MAT: 2})
    # the two best valid spans: "Cat" (3 + 9), "mat" (9 + 2); "Cat, sat ON the mat" (3 + 2) is what swapping answers
    assert answers(TEXT, found) == ["Cat"]


def test_a_start_at_the_null_position_is_a_low_score_and_no_crash() -> None:
    """txtai: a start on [CLS] made `word_to_chars(None, 1)` raise before the score was looked at."""
    found = read(TEXT, {CLS: 9}, {CLS: 9})
    assert found.null_logit == 18
    assert all(span.score < 0 for span in found.spans)


def test_a_start_in_the_question_is_not_a_word_of_the_context() -> None:
    """txtai: a start inside of the question was looked up as the number of a word of the context."""
    found = read(TEXT, {CLS + 2: 9, 5: 1}, {CLS + 2: 9, 5: 1})
    assert answers(TEXT, found) == [words(TEXT)[5]]


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_separator_and_padding_are_in_no_answer(behind: int) -> None:
    """DJL #2607: `[SEP]` in the answer."""
    count = len(words(TEXT))
    found = read(TEXT, {count - 2: 2, count + behind: 9}, {count - 1: 1, count + behind: 9}, n_best=5)
    assert answers(TEXT, found)
    assert all(0 <= span.start < span.end <= len(TEXT) for span in found.spans)
    assert "SEP" not in "".join(answers(TEXT, found))


def test_the_answer_is_the_text_as_it_was_written() -> None:
    """the-pattern, DJL: answers were put together from tokens again: lower case, without accents, spaces at "-"."""
    count = len(words(TEXT))
    found = read(TEXT, {0: 5}, {CAT + 1: 5})
    assert answers(TEXT, found) == ["Élan, the Cat,"]
    assert answers(TEXT, read(TEXT, {count - 4: 5}, {count - 1: 5}))[0].endswith("un-happy!")


LAYOUTS = {
    "bert": (PairLayout((101,), (102,), (102,), 1), [0, 0, 0, 0, 1, 1, 1]),
    "roberta": (PairLayout((0,), (2, 2), (2,), 0), [0, 0, 0, 0, 0, 0, 0, 0]),
    "distilbert": (PairLayout((101,), (102,), (102,), 0), [0, 0, 0, 0, 0, 0, 0]),
    "deberta": (PairLayout((1,), (2,), (2,), 1), [0, 0, 0, 0, 1, 1, 1]),
}


@pytest.mark.parametrize("family", list(LAYOUTS))
def test_the_reader_is_told_which_tokens_are_the_context(manifest: Manifest, family: str) -> None:
    """Haystack: the model was called without `token_type_ids`, so BERT and ELECTRA readers got zeros everywhere."""
    pair, expected = LAYOUTS[family]
    pairs = PairEncoder(replace(manifest, pair=pair))
    question = small_tokenizer().encode_question("who is", 64)
    (found,) = pairs.windows(question, tokens_of("the cat"))
    arrays = pairs.batch([found])
    length = len(expected)
    assert arrays["token_type_ids"][0, :length].tolist() == expected
    assert not arrays["token_type_ids"][0, length:].any()
    assert arrays["input_ids"][0, :length].tolist() == [
        *pair.head,
        *question.ids,
        *pair.middle,
        *tokens_of("the cat").ids,
        *pair.tail,
    ]
    assert arrays["attention_mask"][0].tolist() == [1] * length + [0] * (arrays["attention_mask"].shape[1] - length)


def sentence_reading(document: str, *spans: tuple[int, int, float]) -> SentenceReading:
    found = tuple(FoundSpan(*span, 0) for span in spans)
    return SentenceReading(SentenceRef(document, "t", 0), found, "v", "x" * 99, 0, "m", "s", False, 1, False)


RECORDS = {name: CitedDocument("v", "", {}) for name in "abcd"}


@pytest.mark.parametrize("readings", [[], [sentence_reading("a")], [sentence_reading("a"), sentence_reading("b")]])
def test_nothing_found_is_no_answer_and_no_crash(manifest: Manifest, readings: list[SentenceReading]) -> None:
    """Haystack: the removal of overlaps took `answers[0]` of a list that can be empty."""
    chosen = distinct(readings, {}, manifest.no_answer_threshold)
    result = assemble(chosen, RECORDS, manifest, AskOptions(no_answer=False))
    assert (result.answers, result.answerable, result.no_answer_score) == ((), False, 1.0)


@pytest.mark.parametrize("overlapping", [True, False])
def test_more_answers_asked_for_than_there_are_spans(overlapping: bool) -> None:
    """Haystack: asking for more answers than a text has valid spans failed; spans came twice or as -inf."""
    found = read("the cat", {}, {}, n_best=1000, overlapping=overlapping)
    assert sorted(answers("the cat", found)) == (["cat", "the", "the cat"] if overlapping else ["cat", "the"])
    assert all(np.isfinite(span.score) for span in found.spans)


@pytest.mark.parametrize("document", ["a_b", "_", "x_{y}_z", "tokenized_bert_qa"])
@pytest.mark.parametrize("question", ["what_is_it", "_", "a:{t}:0_b"])
def test_underscores_in_ids_and_questions(document: str, question: str) -> None:
    """the-pattern: `key.split('_')` cut ids and questions that hold an underscore."""
    sentence = SentenceRef(document, "t", 3)
    assert parse_answer_key(answer_key(sentence, question)) == (sentence, question, "")


def test_an_empty_text_among_others_shifts_nothing(encoder: TextPairEncoder) -> None:
    """Haystack: documents without content were dropped and their questions were not, so answers went astray."""
    texts = ["The cat sat.", "", " ", "The dog sat."]
    windows = [encoder.windows("Who sat?", text) for text in texts]
    assert [len(found) for found in windows] == [1, 0, 0, 1]
    readings = [
        best_spans(found, [(np.zeros(99), np.zeros(99))] * len(found), encoder.passage(text), text, max_answer_tokens=4)
        for found, text in zip(windows, texts, strict=True)
    ]
    assert [bool(reading.spans) for reading in readings] == [True, False, False, True]
    names = [f"d:{{t}}:{i}" for i in range(3)]
    value = {
        "spans": [], "document_version": "v", "sentence": "s", "sentence_start": 0, "reading_revision": "m",
        "cache": "miss", "windows": 1, "truncated": False,
    }  # fmt: skip
    replies = [orjson.dumps(value), b"-NOTFOUND gone", orjson.dumps(value)]
    parsed = parse_readings(names, replies, "shard")
    assert [reading and reading.sentence.index for reading in parsed] == [0, None, 2]


@pytest.mark.parametrize(("window_tokens", "stride"), [(70, 3), (70, 70), (70, -1), (67, 0), (0, 0), (10_000, 0)])
def test_an_impossible_stride_is_refused_when_it_is_set(manifest: Manifest, window_tokens: int, stride: int) -> None:
    """tokenizers #944: a stride that leaves no room panics, at the first text that is long enough."""
    with pytest.raises(InvalidInput, match=r"must be from \d+"):
        PairEncoder(manifest, window_tokens=window_tokens, doc_stride=stride)


@pytest.mark.parametrize("question", ["why", "why " * 300])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 17, 1000])
def test_long_texts_are_read_whole_in_windows_that_fit(encoder: TextPairEncoder, question: str, length: int) -> None:
    """the-pattern: question and context could have more tokens than the model; transformers #2615: they were cut."""
    pairs = PairEncoder(encoder.pairs.manifest, window_tokens=70, doc_stride=2)
    found = TextPairEncoder(encoder.tokenizer, pairs).windows(question, "word " * length)
    covered = {token for each in found for token in range(each.first, each.first + each.tokens)}
    assert covered == set(range(length))
    assert all(len(each.input_ids) <= 70 for each in found)


def test_a_question_that_is_cut_off_says_so() -> None:
    """TEI: what is too long is cut off silently by default."""
    tokenizer = small_tokenizer()
    assert tokenizer.encode_question("why " * 65, 64).truncated
    assert not tokenizer.encode_question("w " * 64, 64).truncated


def test_scores_do_not_depend_on_what_else_a_text_holds() -> None:
    """Haystack #739, #1220: scores were shares within a document, so the best of a poor one looked as good as any."""
    rich = read("the cat", {0: 6, 1: 5}, {0: 6, 1: 5})
    poor = read("the dog", {0: 0.5}, {0: 0.5})
    alone = read("the", {0: 6}, {0: 6})
    assert rich.spans[0].score == alone.spans[0].score > poor.spans[0].score
    chosen = distinct([sentence_reading("a", (0, 3, 1.0)), sentence_reading("b", (0, 3, 22.0))], {}, 0.0)
    assert [item.reading.sentence.document_id for item in chosen] == ["b", "a"]


def test_probabilities_rise_with_the_score_and_stay_below_one(manifest: Manifest) -> None:
    """Haystack #1522, #2916: sigmoid(0.1 x logit) and the like, called a probability."""
    shown = [manifest.calibration.probability(score) for score in np.linspace(-1e4, 1e4, 101)]
    assert shown == sorted(shown)
    assert all(0 <= value <= 1 for value in shown)


def test_every_answer_has_a_score_and_there_is_more_than_one(manifest: Manifest) -> None:
    """txtai #406, #633: one answer only, its score hidden."""
    readings = [sentence_reading("a", (0, 3, 9.0), (5, 8, 4.0)), sentence_reading("b", (0, 3, 6.0))]
    result = assemble(distinct(readings, {}, 0.0), RECORDS, manifest, AskOptions(top_k=5))
    assert [(answer.document_id, answer.start, answer.logit) for answer in result.answers] == [
        ("a", 0, 9.0),
        ("b", 0, 6.0),
        ("a", 5, 4.0),
    ]


@pytest.mark.parametrize(("scores", "answerable"), [((-9.0, 9.0), True), ((9.0, -9.0), True), ((-9.0, -3.0), False)])
def test_no_answer_is_when_none_of_all_texts_has_one(
    manifest: Manifest, scores: tuple[float, float], answerable: bool
) -> None:
    """transformers #14277, #18719: no-answer was decided window by window; Haystack: by a product of (1 - score)."""
    readings = [sentence_reading(name, (0, 3, score)) for name, score in zip("ab", scores, strict=True)]
    chosen = distinct(readings, {"a:{t}:0": 50.0}, manifest.no_answer_threshold)
    result = assemble(chosen, RECORDS, manifest, AskOptions())
    assert result.answerable is answerable
    assert bool(result.answers) is answerable


def test_null_is_the_least_of_all_windows() -> None:
    """transformers #14311, #5910: with several windows the null score was that of the last, or of the answer's own."""
    tokens, count = tokens_of("the cat"), 2
    pairs = [(logits(count, {CLS: null}), logits(count, {CLS: 0})) for null in (3.0, -4.0, 7.0)]
    reading = best_spans([window(count)] * 3, pairs, tokens, "the cat", max_answer_tokens=4)
    assert reading.null_logit == -4


@pytest.mark.parametrize("no_answer", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_no_answer_is_never_one_of_the_answers(manifest: Manifest, top_k: int, no_answer: bool) -> None:
    """Haystack: "no answer" took a place among the top k, or made them k + 1; transformers #2623: an empty string."""
    readings = [sentence_reading(name, (0, 3, 5.0), (4, 4, 4.0)) for name in "abcd"]
    options = AskOptions(top_k=top_k, no_answer=no_answer)
    result = assemble(distinct(readings, {}, 0.0), RECORDS, manifest, options)
    assert len(result.answers) == top_k
    assert all(answer.answer for answer in result.answers)


def test_answers_are_not_longer_than_the_manifest_allows() -> None:
    """Haystack: no longest answer; whole paragraphs were answers."""
    text = "the cat " * 40
    found = read(text, {0: 9}, {60: 9, 3: 1}, max_answer_tokens=5)
    assert answers(text, found) == ["the cat the cat"]


def test_what_is_read_is_not_changed() -> None:
    """Haystack: readers wrote into the documents and logits they were given."""
    tokens, count = tokens_of(TEXT), len(words(TEXT))
    start, end = logits(count, {2: 5}), logits(count, {4: 5})
    arrays: Sequence[np.ndarray] = (start, end, tokens.ids, tokens.starts, tokens.ends)
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    for overlapping in (True, False):
        best_spans(
            [window(count)],
            [(start, end)],
            tokens,
            TEXT,
            max_answer_tokens=8,
            n_best=4,
            overlapping=overlapping,
            breaks=[3],
        )
    assert all((array == old).all() for array, old in zip(arrays, before, strict=True))


def test_eight_threads_share_one_tokenizer(encoder: TextPairEncoder) -> None:
    """tokenizers #537, Haystack #1229, transformers #47085: "Already borrowed", as each call set its truncation."""
    tokenizer = encoder.tokenizer
    texts = [f"Text {number}: {'Zoë sat on the mat. ' * number}" for number in range(1, 9)]
    expected = [tokenizer.encode_text(text).ids.tolist() for text in texts]
    ready = threading.Barrier(8)

    def work(number: int) -> bool:
        ready.wait(10)
        for turn in range(40):
            limit = 1 + (number + turn) % 16
            question = tokenizer.encode_question(texts[number], limit)
            whole = tokenizer.encode_texts(texts)
            assert len(question.ids) == min(limit, len(expected[number]))
            assert [tokens.ids.tolist() for tokens in whole] == expected
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    """Haystack: a score tensor of batch x length x length."""
    count = 4096
    starts = np.arange(count, dtype=np.int32) * 2
    tokens = TextTokens(starts, starts, starts + 1)
    rng = np.random.default_rng(1)
    pair = [rng.normal(size=PASSAGE_START + count + 1).astype(np.float32) for _ in range(2)]
    for options in ({"n_best": 3, "overlapping": False}, {"n_best": 20}):
        tracemalloc.start()
        try:
            best_spans([window(count)], [(pair[0], pair[1])], tokens, "x " * count, max_answer_tokens=30, **options)  # type: ignore[arg-type]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < count * 30 * 4 * 6 < count * count


def test_each_pair_of_a_batch_gets_its_own_answer(encoder: TextPairEncoder) -> None:
    """transformer-deploy #159: `question[0]` and `context[0]` of every batch were read."""
    texts = ["The cat sat.", "Dogs bark at night.", "It rains."]
    windows = [encoder.windows(f"What about {text}", text)[0] for text in texts]
    rows = encoder.pairs.batch(windows)["input_ids"]
    assert [row[: len(each.input_ids)].tolist() for row, each in zip(rows, windows, strict=True)] == [
        each.input_ids.tolist() for each in windows
    ]
    assert len({tuple(row) for row in rows.tolist()}) == 3


class _NoTokenizer:
    """Has the fingerprint of the one that made the stored tokens, and can do nothing else."""

    fingerprint = 5


def test_stored_texts_are_not_tokenized_again() -> None:
    """transformers #4748, #3007, #11126: the context was tokenized at every question, which took most of the time."""
    texts = ["The cat sat.", "Who is it?", "The dog."]
    starts = [0, 13, 24]
    blobs = [
        pack_sentence(start, start + len(text), tokens_of(text), _NoTokenizer.fingerprint)[1]
        for start, text in zip(starts, texts, strict=True)
    ]
    left, right = (Neighbour(texts[i], blobs[i]) for i in (0, 2))
    record = SentenceRecord(texts[1], blobs[1], "v", "d", "", "", "", (left,), (right,))
    reader: Any = SimpleNamespace(tokenizer=_NoTokenizer(), manifest=SimpleNamespace(context_tokens=50))
    passage = passage_of(SentenceRef("d", "t", 1), record, reader)
    assert passage.text == "The cat sat. Who is it? The dog."
    assert passage.tokens.ids.tolist() == [i for text in texts for i in tokens_of(text).ids.tolist()]
