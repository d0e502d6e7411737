"""A model that is loaded on this shard: a reader or an encoder, with its manifest and tokenizer."""

from __future__ import annotations

from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.vectors.encoder_manifest import AnyManifest

from .reader_model import ReaderModel


class ShardModel:
    """A loaded model.

    Attributes:
        tag: the hash tag of its keys; None while this shard has no keys of the model.
        warm: whether the model has run in every shape of its manifest. If a run failed, `problem` says why.
        problem: why the last try to compile the model and run its shapes failed; empty without a failure.
        gone_since: the monotonic time when its keys were first missing; None while the keys exist, or if this was not
            checked yet.
        arrival: a unique number, from 1, in the order of arrival at this worker.
    """

    manifest: AnyManifest

    def __init__(
        self, tokenizer: ReaderTokenizer, manifest_text: bytes, model: ReaderModel | None, tag: str | None
    ) -> None:
        self.tag = tag
        self.tokenizer = tokenizer
        self.manifest_text = manifest_text
        self.model = model
        self.warm = False
        self.problem = ""
        self.gone_since: float | None = None
        self.arrival = 0

    @property
    def name(self) -> str:
        """The name, ``id@revision``."""
        return self.manifest.name

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes (rows, tokens) in which the model runs before questions need them."""
        return [(rows, length) for length in self.manifest.shapes.lengths for rows in self.manifest.shapes.batches]
