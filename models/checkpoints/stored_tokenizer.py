"""Restores the content of `tokenizer.json` in a tokenizer that transformers 5 has loaded.

transformers 5 uses only the vocabulary of this file and builds the rest of the tokenizer itself. Pairs of DeBERTa then
have two separators instead of one, and texts of ALBERT and DeBERTa v3 are normalized differently.
"""

from pathlib import Path
from typing import Any


def use_stored(tokenizer: Any, path: Path) -> None:
    """Replace the backend of a fast transformers tokenizer by the tokenizer in a file. Invalid files raise errors of
    any type.
    """
    from tokenizers import Tokenizer

    tokenizer._tokenizer = _as_trained(Tokenizer.from_file(str(path)), tokenizer.backend_tokenizer)


def _as_trained(stored: Any, rebuilt: Any) -> Any:
    """Return the tokenizer `stored` in a `tokenizer.json`, as transformers 4 interpreted it.

    Some parts are taken from `rebuilt`, the tokenizer of transformers 5: parts that the file does not have, and parts
    that transformers 4 also took from the tokenizer's config (BERT's normalization, the space before a byte-level text,
    special tokens).
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
    ):  # RoBERTa's post-processor depends on the space before a text, which the config states
        stored.post_processor = rebuilt.post_processor
    known = stored.get_added_tokens_decoder()
    added = rebuilt.get_added_tokens_decoder()
    stored.add_tokens(
        [token for id_, token in sorted(added.items()) if id_ not in known and stored.token_to_id(token.content) == id_]
    )
    return stored
