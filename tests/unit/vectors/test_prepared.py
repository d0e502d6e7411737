"""A client makes the same vectors as the worker. Their JSON form is checked before use."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from qa_cluster.documents.sentences import SPLITTER_VERSION
from qa_cluster.documents.stored import check_document
from qa_cluster.errors import InputTooLong, InvalidInput, ModelError
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.sources.extract import extract
from qa_cluster.types import Document
from qa_cluster.vectors.local_encoder import LocalEncoder
from qa_cluster.vectors.packing import PassageVector, pack_passages
from qa_cluster.vectors.prepared import MAX_PREPARED_PASSAGES, PreparedVectors
from tests.harness.packed_vectors import cosine, unpack_passages

SHORT = Document("a", "Ada Lovelace wrote the first program.", "Ada")
LONG = Document("b", "\n\n".join(f"Sentence number {n} tells of ship {n}. It is long enough." for n in range(40)))


@pytest.fixture(scope="module")
def encoder() -> LocalEncoder:
    return LocalEncoder()


def passages_of(found: PreparedVectors | None) -> list[PassageVector]:
    assert found is not None
    return list(unpack_passages(found.passages, found.dims))


def test_documents_are_cut_and_named(encoder: LocalEncoder) -> None:
    short, empty, long = encoder.prepare([SHORT, Document("c", " \n "), LONG])
    assert empty is None and short is not None and long is not None
    assert (short.encoder, short.dims) == (encoder.manifest.digest, 384)
    assert short.version == check_document("a", SHORT.text, "Ada").version and short.splitter == SPLITTER_VERSION
    assert (short.sentences, short.count, long.sentences) == (1, 1, 80)
    spans = [(each.first, each.sentences) for each in passages_of(long)]
    assert len(spans) > 3 and sum(count for _, count in spans) == 80
    assert long.part(0, 2) + long.part(2, 99) == long.passages
    for made in (short, long):
        assert PreparedVectors.from_dict(made.to_dict()) == made


def test_the_vectors_do_not_depend_on_the_other_documents(encoder: LocalEncoder) -> None:
    together = encoder.prepare([LONG, SHORT])
    for number, document in enumerate((LONG, SHORT)):
        alone = passages_of(encoder.prepare([document])[0])
        for one, other in zip(passages_of(together[number]), alone, strict=True):
            assert cosine(one.packed, other.packed) > 0.98


def test_the_worker_cuts_the_same_passages(encoder: LocalEncoder) -> None:
    """The worker and the client use the same code, and both use the sections of the source map."""
    from qa_cluster.documents.sentence_offsets import LocatedSentence
    from qa_cluster.documents.sentences import split_sentences
    from qa_cluster.documents.source_map import FIELD, write_map
    from qa_cluster.documents.stored import DocumentRecord
    from qa_cluster.gears.functions.embedding.passages import passage_inputs
    from qa_cluster.gears.functions.indexing.document_sentences import DocumentSentences
    from qa_cluster.gears.functions.readers.encoder import ShardEncoder
    from qa_cluster.reading.manifest import TOKENIZER_FILE
    from qa_cluster.reading.tokenization import ReaderTokenizer

    source = b"# Ships\n\nThe Vasa sank. It was new.\n\n# Cats\n\nCats purr. They sleep.\n"
    format, extracted = extract(source, "a.md")
    metadata = {FIELD: write_map("a.md", format, 3, [(one.start, one.path) for one in extracted.sections])}
    document = Document("a", extracted.text, extracted.title, metadata)
    found = passages_of(encoder.prepare([document])[0])

    checked = check_document("a", document.text, document.title, metadata)
    sentences = [
        LocatedSentence(number, document.text[start:end], start)
        for number, (start, end) in enumerate(split_sentences(document.text))
    ]
    record = DocumentRecord(
        "a", checked.title, checked.metadata, checked.version, len(checked.text), len(sentences), SPLITTER_VERSION,
        True, "1", "",
    )  # fmt: skip
    rows: list[Any] = []

    class Model:
        async def run_in_background(self, inputs: list[Any]) -> list[Any]:
            rows.extend(inputs)
            return [np.ones((len(inputs[0]), 384), np.float32)]

    tokenizer = ReaderTokenizer((bundled_encoder() / TOKENIZER_FILE).read_bytes())
    shard = ShardEncoder(tokenizer, encoder.manifest.to_json().encode(), Model(), "06S")  # type: ignore[arg-type]
    inputs = passage_inputs(("a", "06S"), DocumentSentences(record, sentences), shard)
    assert [(span.first, span.sentences) for span in inputs.spans] == [(each.first, each.sentences) for each in found]
    assert len(found) > 1, "the sections are passages of their own"
    asyncio.run(shard.passage_vectors(inputs.rows))
    assert len(rows) == len(encoder.manifest.inputs)


def good(**changes: Any) -> dict[str, Any]:
    passages = pack_passages([PassageVector(0, 2, b"\0\0\x80\x3fabcd"), PassageVector(2, 1, b"\0\0\x80\x3fabcd")])
    made = PreparedVectors(b"encoder1", 4, "0" * 16, "s", 3, passages).to_dict()
    return made | changes


def packed(*passages: tuple[int, int, bytes]) -> str:
    blob = pack_passages([PassageVector(first, count, scale + b"abcd") for first, count, scale in passages])
    found: str = PreparedVectors(b"encoder1", 4, "0" * 16, "s", 3, blob).to_dict()["passages"]
    return found


ONE = b"\0\0\x80\x3f"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "vectors.encoder must be a string"),
        (good(more=1), "vectors.more is unknown, the known fields are encoder"),
        (good(dims=True), "vectors.dims must be an integer"),
        (good(dims=4097), "vectors.dims is 4097, must be from 1 to 4096"),
        (good(encoder="x" * 16), "vectors.encoder must be 16 hexadecimal digits"),
        (good(version="0"), "vectors.version must be 16 hexadecimal digits"),
        (good(splitter="x" * 201), "vectors.splitter has 201 characters, the limit is 200"),
        (good(passages="§"), "vectors.passages is not base64"),
        (good(passages=""), "vectors.passages has 0 bytes, must have a multiple of 16"),
        (good(passages="AAAA"), "vectors.passages has 3 bytes, must have a multiple of 16"),
        (good(sentences=4), "vectors.sentences is 4, the passages have 3 sentences"),
        (good(passages=packed((1, 2, ONE))), "passage 0 with the first sentence 1, must be 0"),
        (good(passages=packed((0, 1, ONE), (2, 1, ONE))), "passage 1 with the first sentence 2, must be 1"),
        (good(passages=packed((0, 0, ONE))), "passage 0 with the first sentence 0, must be 0"),
        (good(passages=packed((0, 3, b"\0\0\xc0\x7f"))), "passage 0 with the scale nan"),
        (good(passages=packed((0, 3, b"\0\0\x80\xbf"))), "passage 0 with the scale -1.0"),
    ],
)
def test_wrong_vectors_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidInput, match=error.replace("(", r"\(")):
        PreparedVectors.from_dict(given)


@pytest.mark.hostile
def test_too_many_passages_are_refused() -> None:
    passages = packed(*((number, 1, ONE) for number in range(MAX_PREPARED_PASSAGES + 1)))
    with pytest.raises(InputTooLong, match="4097 passages, the limit is 4096"):
        PreparedVectors.from_dict(good(passages=passages, sentences=MAX_PREPARED_PASSAGES + 1))


def test_a_folder_with_other_files_is_refused(tmp_path: Any) -> None:
    for file in bundled_encoder().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not the tokenizer"):
        LocalEncoder(tmp_path)
