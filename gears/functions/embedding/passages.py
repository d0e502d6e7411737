"""The passages of stored documents in the form that the encoder reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from qa_cluster.gears.functions.indexing.document_sentences import DocumentSentences
from qa_cluster.gears.functions.readers.encoder import ShardEncoder
from qa_cluster.reading.tokenization import IntArray
from qa_cluster.vectors.document_passages import document_passages
from qa_cluster.vectors.passage_cut import CutPassage

Name = tuple[str, str]


@dataclass(slots=True)
class PassageInputs:
    """A document in the form that the encoder reads.

    Attributes:
        name: the document's name, and the tag of its partition.
        version: the version of the document.
        splitter: the version of the splitter that divided the text into sentences.
        spans: for each passage, which sentences of the document it contains.
        rows: for each passage, the token ids that the encoder reads.
        stored: the number of passages whose vectors are already stored.
    """

    name: Name
    version: str
    splitter: str
    spans: list[CutPassage]
    rows: list[IntArray]
    stored: int = field(default=0)


def passage_inputs(name: Name, document: DocumentSentences, encoder: ShardEncoder) -> PassageInputs:
    """Divide a document into passages, and make the inputs of the passages. A long document may take seconds."""
    record = document.record
    spans, rows = document_passages(
        record.title, record.metadata, document.sentences, encoder.manifest, encoder.tokenizer
    )
    return PassageInputs(name, record.version, record.splitter, spans, rows)
