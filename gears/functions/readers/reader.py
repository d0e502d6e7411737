"""A reader as the functions use it: manifest, tokenizer, model, and cached tokens of questions and sentences."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.prefix import prefix_ids
from qa_cluster.reading.tokenization import QuestionTokens, ReaderTokenizer, TextTokens
from qa_cluster.reading.windows import PairEncoder

from .reader_model import ReaderModel
from .shard_model import ShardModel

MAX_QUESTIONS = 4096
MAX_SENTENCES = 8192
"""The number of sentences whose tokens a worker caches for each reader. A sentence takes about 1 kB."""


class Reader(ShardModel):
    """A loaded reader."""

    manifest: Manifest

    def __init__(
        self, tokenizer: ReaderTokenizer, manifest_text: bytes, model: ReaderModel | None, tag: str | None
    ) -> None:
        super().__init__(tokenizer, manifest_text, model, tag)
        self.manifest = Manifest.from_json(manifest_text)
        self.pairs = PairEncoder(self.manifest)
        self._questions: OrderedDict[str, QuestionTokens] = OrderedDict()
        self._sentences: OrderedDict[str, TextTokens] = OrderedDict()

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes (rows, tokens) of `ShardModel.shapes`, and the shape of one window with the maximum length."""
        return [*super().shapes, (1, self.manifest.window_tokens)]

    def question(self, text: str) -> QuestionTokens:
        """Return the tokens of a question. The tokens of the last `MAX_QUESTIONS` questions are cached."""
        tokens = self._questions.get(text)
        if tokens is None:
            tokens = self.tokenizer.encode_question(text, self.manifest.max_question_tokens)
            self._questions[text] = tokens
            if len(self._questions) > MAX_QUESTIONS:
                self._questions.popitem(last=False)
        else:
            self._questions.move_to_end(text)
        return tokens

    def prefix(self, title: str, section: str = "") -> list[int]:
        """Return the tokens before a passage: title and section path.

        Return an empty list if the reader was trained without a prefix.
        """
        if not self.manifest.passage_prefix:
            return []
        return prefix_ids(title, section, lambda text: self.tokenizer.encode_text(text).ids.tolist())

    def sentences(
        self, texts: Sequence[str], stored: Callable[[int], TextTokens | None] = lambda number: None
    ) -> list[TextTokens]:
        """Return the tokens of sentences, from the cache, from `stored`, or computed.

        `stored` returns the stored tokens for a position in `texts`; None if no tokens are stored.
        """
        found = [self._sentences.get(text) for text in texts]
        for number, tokens in enumerate(found):
            if tokens is None:
                found[number] = stored(number)
        missing = [number for number, tokens in enumerate(found) if tokens is None]
        if missing:
            made = self.tokenizer.encode_texts([texts[number] for number in missing])
            for number, tokens in zip(missing, made, strict=True):
                found[number] = tokens
        kept = [tokens for tokens in found if tokens is not None]
        for text, tokens in zip(texts, kept, strict=True):
            self._sentences[text] = tokens
            self._sentences.move_to_end(text)
        while len(self._sentences) > MAX_SENTENCES:
            self._sentences.popitem(last=False)
        return kept
