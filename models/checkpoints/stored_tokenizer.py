"""Restores the content of `tokenizer.json` in a tokenizer that transformers 5 has loaded.

transformers 5 takes only the vocabulary from that file and builds a tokenizer of its own around it: DeBERTa's pairs
then have two separators instead of one, and ALBERT's and DeBERTa v3's texts are normalized differently.
"""

from pathlib import Path
from typing import Any


def use_stored(tokenizer: Any, path: Path) -> None:
    """Make the file's tokenizer the backend of a fast tokenizer of transformers; a bad file raises any error."""
    from tokenizers import Tokenizer

    tokenizer._tokenizer = _as_trained(Tokenizer.from_file(str(path)), tokenizer.backend_tokenizer)


def _as_trained(stored: Any, rebuilt: Any) -> Any:
    """Return the tokenizer of a `tokenizer.json`, `stored`, as transformers 4 interpreted it.

    The parts of `rebuilt`, which transformers 5 has made, are right only where the tokenizer's config overruled the
    file in transformers 4 too (BERT's normalization, the space before a byte-level text, which tokens are special), and
    where the file has nothing.
    """
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import RobertaProcessing

    if isinstance(stored.normalizer, BertNormalizer) and isinstance(rebuilt.normalizer, BertNormalizer):
        stored.normalizer = rebuilt.normalizer
    if isinstance(stored.pre_tokenizer, ByteLevel) and isinstance(rebuilt.pre_tokenizer, ByteLevel):
        stored.pre_tokenizer = rebuilt.pre_tokenizer
    if stored.post_processor is None or (
        isinstance(stored.post_processor, RobertaProcessing) and isinstance(rebuilt.post_processor, RobertaProcessing)
    ):  # RoBERTa's depends on the space before a text
        stored.post_processor = rebuilt.post_processor
    known = stored.get_added_tokens_decoder()
    added = rebuilt.get_added_tokens_decoder()
    stored.add_tokens(
        [token for id_, token in sorted(added.items()) if id_ not in known and stored.token_to_id(token.content) == id_]
    )
    return stored
