"""Gives a tokenizer that transformers 5 has loaded back what its `tokenizer.json` says.

transformers 5 takes no more than the vocabulary from that file and puts a tokenizer of its own around it: DeBERTa's
pairs then have two separators instead of one, ALBERT's and DeBERTa v3's texts are normalized otherwise.
"""

from pathlib import Path
from typing import Any


def use_stored(tokenizer: Any, path: Path) -> None:
    """Make the file's tokenizer the backend of a fast tokenizer of transformers; a wrong file raises anything."""
    from tokenizers import Tokenizer

    tokenizer._tokenizer = _as_trained(Tokenizer.from_file(str(path)), tokenizer.backend_tokenizer)


def _as_trained(stored: Any, rebuilt: Any) -> Any:
    """Return the tokenizer of a `tokenizer.json`, `stored`, as transformers 4 understood it.

    What transformers 5 has made, `rebuilt`, is right only where transformers 4 let the tokenizer's config overrule the
    file too: in BERT's normalization, in the space before a byte-level text, in which tokens are special; and where the
    file says nothing.
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
    ):  # RoBERTa's takes the space before a text into account
        stored.post_processor = rebuilt.post_processor
    known = stored.get_added_tokens_decoder()
    added = rebuilt.get_added_tokens_decoder()
    stored.add_tokens(
        [token for id_, token in sorted(added.items()) if id_ not in known and stored.token_to_id(token.content) == id_]
    )
    return stored
