"""Makes tiny random encoders, with tokenizers of the real families and the vocabulary of the bundled reader.

Such encoders replace the real encoders in tests of the recipe.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.manifest import TOKENIZER_FILE

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
_MPNET = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "[UNK]",
    "mask_token": "<mask>",
}
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")


def save(folder: Path, family: str, seed: int) -> None:
    """Write an encoder of the family `bert` or `mpnet` with random weights, and its tokenizer, to `folder`. `seed`
    determines the weights.
    """
    import torch
    from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel

    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Any] = json.loads((bundled_reader() / TOKENIZER_FILE).read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = stored["model"]["vocab"]
    torch.manual_seed(seed)
    if family == "bert":
        config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=512, **SIZES)
        BertModel(config).save_pretrained(folder)
        _write(folder, stored, "BertTokenizer", _BERT)
        return
    # MPNet has four tokens of its own before the tokens of BERT, and one after them.
    shifted = {word: place + len(_FIRST) for word, place in vocabulary.items()}
    words = {**{word: place for place, word in enumerate(_FIRST)}, **shifted, "<mask>": len(shifted) + len(_FIRST)}
    config = MPNetConfig(vocab_size=len(words), max_position_embeddings=514, pad_token_id=1, **SIZES)
    MPNetModel(config).save_pretrained(folder)
    _write(folder, _mpnet(stored, words), "MPNetTokenizer", _MPNET)


def _mpnet(stored: dict[str, Any], words: dict[str, int]) -> dict[str, Any]:
    special = [
        {"id": words[word], "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for word in (*_FIRST, "[UNK]", "<mask>")
    ]
    sides = {"sep": ["</s>", words["</s>"]], "cls": ["<s>", words["<s>"]]}
    processor = {"type": "RobertaProcessing", **sides, "trim_offsets": False, "add_prefix_space": False}
    model = {**stored["model"], "vocab": words}
    return {**stored, "added_tokens": special, "post_processor": processor, "model": model}


def _write(folder: Path, tokenizer: dict[str, Any], kind: str, names: dict[str, str]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    stated = {"tokenizer_class": kind, "do_lower_case": True, "model_max_length": 512, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
