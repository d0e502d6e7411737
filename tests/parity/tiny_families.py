"""Tiny checkpoints of every family with random weights, and the answers of transformers' pipeline with them.

    .venv-parity/bin/python -m tests.parity.tiny_families OUT

It writes OUT/<family>.json.gz: the tokenizer, the special tokens around a pair, and for every case the windows, their
logits and the result. It runs in the environment of requirements.txt; the tests decode the same logits with this
project's code.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForQuestionAnswering, PreTrainedTokenizerFast, pipeline

from tests.parity import cases
from tests.parity.reference import Recorder, asked

MAX_TOKENS = 128
VOCABULARY = 400
DECIMALS = 3
# BERT answers every case, the other families every fourth: families differ only in their tokens.
SHARE = 4
# Random heads give logits near zero; logits of trained heads spread over about ten units.
HEAD_SCALE = 60.0
TEXT = [cases.LIGHTHOUSE, cases.GARDEN, cases.SCRIPTS, cases.REPEATED, *cases.QUESTIONS]
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_pieces(special: list[str], lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token=special[-2] if special is ROBERTA_SPECIAL else "[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    )
    return tokenizer


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=ROBERTA_SPECIAL,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return tokenizer


def unigrams(lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    steps = [normalizers.NFKD(), normalizers.StripAccents()] if lowercase else [normalizers.NFKC()]
    tokenizer.normalizer = normalizers.Sequence([*steps, *([normalizers.Lowercase()] if lowercase else [])])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.UnigramTrainer(
            vocab_size=VOCABULARY, special_tokens=BERT_SPECIAL, unk_token="[UNK]", show_progress=False
        ),
    )
    return tokenizer


def with_template(tokenizer: Tokenizer, pair: str, names: tuple[str, str]) -> Tokenizer:
    known = [(name, tokenizer.token_to_id(name)) for name in names]
    single = pair.partition(" $B")[0].strip()
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
    return tokenizer


def families() -> dict[str, tuple[Tokenizer, list[str], dict[str, Any]]]:
    """Tokenizer, inputs and configuration of each family."""
    types = ["input_ids", "token_type_ids", "attention_mask"]
    plain = ["input_ids", "attention_mask"]
    bert_pair, names = "[CLS] $A [SEP] $B:1 [SEP]:1", ("[CLS]", "[SEP]")
    bert = with_template(word_pieces(BERT_SPECIAL, lowercase=True), bert_pair, names)
    cased = with_template(word_pieces(BERT_SPECIAL, lowercase=False), bert_pair, names)
    mpnet = with_template(word_pieces(ROBERTA_SPECIAL, lowercase=True), "<s> $A </s> </s> $B </s>", ("<s>", "</s>"))
    albert = with_template(unigrams(lowercase=True), bert_pair, names)
    deberta = with_template(unigrams(lowercase=False), bert_pair, names)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return {
        "bert": (bert, types, size),
        "electra": (cased, types, {**size, "embedding_size": 32}),
        "distilbert": (bert, plain, {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}),
        "roberta": (byte_level(), plain, {**size, "pad_token_id": 1}),
        "mpnet": (mpnet, plain, {**size, "pad_token_id": 1}),
        "albert": (albert, types, {**size, "embedding_size": 32}),
        "deberta-v2": (deberta, types, {**size, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    }


def fast_tokenizer(tokenizer: Tokenizer, inputs: list[str]) -> PreTrainedTokenizerFast:
    bert = tokenizer.token_to_id("[CLS]") is not None
    names = ("[CLS]", "[SEP]", "[PAD]", "[UNK]") if bert else ("<s>", "</s>", "<pad>", "<unk>")
    cls, sep, pad, unk = names
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=cls,
        sep_token=sep,
        pad_token=pad,
        unk_token=unk,
        model_max_length=MAX_TOKENS,
        model_input_names=inputs,
    )


def pair_layout(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the ids around two texts, as the tokenizer places them."""
    encoded = tokenizer("a", "b", return_token_type_ids=True)
    owner = encoded.sequence_ids()
    first, second = owner.index(0), owner.index(1)
    last = len(owner) - owner[::-1].index(1)
    ids = encoded["input_ids"]
    return {
        "head": ids[:first],
        "middle": [token for token, whose in zip(ids[first:second], owner[first:second], strict=True) if whose is None],
        "tail": ids[last:],
        "context_type": encoded["token_type_ids"][second],
    }


def reference(name: str, tokenizer: Tokenizer, inputs: list[str], size: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(17)
    fast = fast_tokenizer(tokenizer, inputs)
    config = AutoConfig.for_model(
        name, vocab_size=len(fast), max_position_embeddings=MAX_TOKENS + 2, initializer_range=0.2, **size
    )
    model = AutoModelForQuestionAnswering.from_config(config).eval()
    with torch.no_grad():
        model.qa_outputs.weight *= HEAD_SCALE / size.get("hidden_size", size.get("dim", 32))
    qa = pipeline("question-answering", model=model, tokenizer=fast, device=-1)
    recorder = Recorder(model, decimals=DECIMALS)
    found = []
    for case in cases.cases()[:: 1 if name == "bert" else SHARE]:
        found.append({**case, **asked(qa, recorder, case)})
    return {
        "family": name,
        "inputs": inputs,
        "pair": pair_layout(fast),
        "pad_id": fast.pad_token_id,
        "max_tokens": MAX_TOKENS,
        "tokenizer": json.loads(tokenizer.to_str()),
        "transformers": transformers.__version__,
        "cases": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Reference answers of tiny models of every family.")
    parser.add_argument("out", type=Path, help="folder to write to")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, (tokenizer, inputs, size) in families().items():
        text = json.dumps(reference(name, tokenizer, inputs, size), ensure_ascii=False, separators=(",", ":"))
        with gzip.GzipFile(given.out / f"{name}.json.gz", "wb", mtime=0) as file:
            file.write(text.encode())
        print(f"{name}: {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
