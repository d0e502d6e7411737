"""Random checkpoints of every family, a few kilobytes in size, with tokenizers trained on a few sentences.

Like in real checkpoints, their `tokenizer.json` defines how to normalize and split texts, and how to join pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = (
    "Ada Lovelace wrote the first program in 1843, long before there were computers.",
    "The painter Frida Kahlo was born in Coyoacán, near Mexico City.",
    "Tides are caused by the gravity of the Moon 🌙 and of the Sun; 👩‍🚀 flew there.",
    "Un café déjà vu, naïve and cafe\u0301 again. Who wrote it? When was she born? What causes tides?",
)
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BRACKETS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TAGS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BRACKET_NAMES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
TAG_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}


def word_pieces(texts: Sequence[str], special: tuple[str, ...] = BRACKETS) -> Tokenizer:
    """A lower-casing WordPiece tokenizer, like BERT's."""
    unknown = next(token for token in special if "unk" in token.lower())
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_pairs(texts: Sequence[str], special: tuple[str, ...] = TAGS) -> Tokenizer:
    """A byte-level BPE tokenizer, like RoBERTa's. A character outside of ASCII has several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def pieces(texts: Sequence[str], special: tuple[str, ...] = TAGS) -> Tokenizer:
    """A unigram tokenizer whose pieces include white space, like SentencePiece."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    unknown = next(token for token in special if "unk" in token.lower())
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=list(special), unk_token=unknown, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def joining(tokenizer: Tokenizer) -> Any:
    """The rule for joining pairs: BERT's or RoBERTa's, depending on the tokenizer."""
    bert = tokenizer.token_to_id("[CLS]") is not None
    first, last = ((name, tokenizer.token_to_id(name)) for name in (("[CLS]", "[SEP]") if bert else ("<s>", "</s>")))
    if not bert and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        return processors.RobertaProcessing(last, first, trim_offsets=True, add_prefix_space=False)
    single = f"{first[0]} $A {last[0]}"
    pair = f"{single} $B:1 {last[0]}:1" if bert else f"{single} {last[0]} $B {last[0]}"
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[first, last])


@dataclass(frozen=True, slots=True)
class Family:
    """The parts of a family's checkpoints: the prefix of class names, the tokenizer, and the sizes."""

    prefix: str
    tokenizer_class: str
    tokenizer: Callable[[Sequence[str]], Tokenizer]
    names: dict[str, str]
    sizes: dict[str, Any]
    tokenizer_settings: dict[str, Any]

    def save(
        self, folder: Path, head: str = "ForQuestionAnswering", texts: Sequence[str] = TEXTS, **config: Any
    ) -> Path:
        """Write a checkpoint with a tokenizer for `texts`. Random weights give different spans different scores."""
        import torch
        import transformers

        torch.manual_seed(11)
        tokenizer = self.tokenizer(texts)
        tokenizer.post_processor = joining(tokenizer)
        made = getattr(transformers, f"{self.prefix}Config")(
            **{"vocab_size": tokenizer.get_vocab_size(), "initializer_range": 0.2, **self.sizes, **config}
        )
        folder.mkdir(parents=True, exist_ok=True)
        getattr(transformers, f"{self.prefix}{head}")(made).save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
        stated = {"tokenizer_class": self.tokenizer_class, **self.names, **self.tokenizer_settings}
        (folder / "tokenizer_config.json").write_text(json.dumps(stated))
        return folder


def _family(
    prefix: str,
    tokenizer: Callable[[Sequence[str]], Tokenizer],
    names: dict[str, str],
    *,
    positions: int = 128,
    sizes: dict[str, Any] | None = None,
    tokenizer_class: str | None = None,
    **tokenizer_settings: Any,
) -> Family:
    limits = {"max_position_embeddings": positions, **(SMALL if sizes is None else sizes)}
    return Family(prefix, tokenizer_class or f"{prefix}Tokenizer", tokenizer, names, limits, tokenizer_settings)


_DISTILLED = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
_RELATIVE = {**SMALL, "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False}
_NO_TYPES = {**SMALL, "type_vocab_size": 1, "pad_token_id": 1}
_PIECE_BRACKETS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
_ALBERT_NAMES = {
    **BRACKET_NAMES,
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
}

FAMILIES: dict[str, Family] = {
    "bert": _family("Bert", word_pieces, BRACKET_NAMES),
    "minilm": _family("Bert", word_pieces, BRACKET_NAMES, sizes={**SMALL, "num_hidden_layers": 3}),
    "electra": _family("Electra", word_pieces, BRACKET_NAMES, sizes={**SMALL, "embedding_size": 16}),
    "distilbert": _family("DistilBert", word_pieces, BRACKET_NAMES, sizes=_DISTILLED),
    "roberta": _family("Roberta", byte_pairs, TAG_NAMES, positions=130, sizes=_NO_TYPES),
    "xlm-roberta": _family("XLMRoberta", pieces, TAG_NAMES, positions=130, sizes=_NO_TYPES),
    "albert": _family(
        "Albert",
        lambda texts: pieces(texts, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
        _ALBERT_NAMES,
        sizes={**SMALL, "embedding_size": 16},
    ),
    "mpnet": _family(
        "MPNet",
        lambda texts: word_pieces(texts, ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
        {**TAG_NAMES, "unk_token": "[UNK]"},
        positions=130,
        sizes={**SMALL, "pad_token_id": 1},
    ),
    "deberta": _family(
        "Deberta",
        lambda texts: byte_pairs(texts, BRACKETS),
        BRACKET_NAMES,
        sizes={**_RELATIVE, "pos_att_type": "c2p|p2c"},
    ),
    "deberta-v2": _family(
        "DebertaV2",
        lambda texts: pieces(texts, _PIECE_BRACKETS),
        BRACKET_NAMES,
        sizes={
            **_RELATIVE,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
        },
    ),
}
