"""Loads the checkpoint of an encoder, in Hugging Face layout.

torch and transformers are imported only when they are needed. Code in a checkpoint is never run.
"""

from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError
from qa_cluster.reading.manifest import TOKENIZER_FILE

from .loading import LOCAL, one_line, require_weights
from .stored_tokenizer import use_stored

# The lengths of the longest passage and the longest question in tokens, with special tokens, in training and on the
# shards.
CONTEXT_TOKENS = 128
MAX_QUESTION_TOKENS = 64


def load_encoder(checkpoint: Path) -> tuple[Any, Any]:
    """Return the network and the tokenizer of an encoder's checkpoint. Raises ModelError if one of them cannot be
    loaded.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, **LOCAL)
        use_stored(tokenizer, checkpoint / TOKENIZER_FILE)
        network, info = AutoModel.from_pretrained(
            checkpoint,
            **LOCAL,
            weights_only=True,
            attn_implementation="eager",
            dtype=torch.float32,
            add_pooling_layer=False,
            output_loading_info=True,
        )
    except Exception as error:  # corrupt files raise anything from OSError to safetensors' own types
        raise ModelError(f"cannot load the encoder in {str(checkpoint)!r}: {one_line(error)}") from error
    require_weights(info, str(checkpoint))
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return network.eval(), tokenizer


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the special tokens before a text, and of the special tokens after a text.

    Raises ModelError if the tokenizer puts no special token before a text, or no special token after it.
    """
    found = tokenizer("a", return_special_tokens_mask=True)
    first = found["special_tokens_mask"].index(0)
    ids, text = found["input_ids"], found["special_tokens_mask"].count(0)
    head, tail = tuple(ids[:first]), tuple(ids[first + text :])
    if not head or not tail:
        raise ModelError(f"the tokenizer puts no special tokens around a text: {ids}")
    return head, tail
