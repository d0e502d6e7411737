"""A reader uses the tokenizer of its checkpoint's files, which transformers 5 would rebuild differently.

The tests need the `export` extra.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers

from qa_cluster.errors import ModelError
from qa_cluster.models.checkpoints.checkpoint import Checkpoint, load_checkpoint
from qa_cluster.models.checkpoints.pair_layout import PROBES
from qa_cluster.models.training.base import load_base
from qa_cluster.models.training.settings import Stage, TrainingSettings
from qa_cluster.reading.manifest import TOKENIZER_FILE
from tests.model.tiny_checkpoints import FAMILIES

pytest.importorskip("transformers", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.from_str(checkpoint.tokenizer_json)


def with_settings(folder: Path, **changes: Any) -> Path:
    """Change fields of a tokenizer's config."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize("family", ["albert", "deberta", "deberta-v2", "xlm-roberta"])
def test_texts_and_pairs_are_tokenized_as_in_tokenizer_json(family: str, tmp_path: Path) -> None:
    """transformers 5 reads only the vocabulary of these files, and adds a second separator to pairs of DeBERTa."""
    folder = FAMILIES[family].save(tmp_path / "checkpoint")
    stored = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    # an unusual setting, which no library would guess
    stored.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("wrote", "made")])
    stored.save(str(folder / TOKENIZER_FILE))
    loaded = load_checkpoint(str(folder))
    settings = TrainingSettings(
        stages=(Stage(tmp_path / "unread.jsonl"),), max_tokens=32, max_question_tokens=8, doc_stride=4
    )
    trained = load_base(str(folder), settings, "cpu").tokenizer
    for question, context in PROBES:
        assert trained(question, context)["input_ids"] == stored.encode(question, context).ids
        expected, found = stored.encode(question, context), tokenizer_of(loaded).encode(question, context)
        assert (found.ids, found.type_ids, found.offsets) == (expected.ids, expected.type_ids, expected.offsets)
    assert (len(loaded.pair.middle), loaded.pair.context_type) == ((2, 0) if family == "xlm-roberta" else (1, 1))


def test_the_tokenizers_config_decides_on_case(tmp_path: Path) -> None:
    folder = FAMILIES["bert"].save(tmp_path / "checkpoint")
    assert load_checkpoint(str(folder)).lowercase
    assert not load_checkpoint(str(with_settings(folder, do_lower_case=False))).lowercase


def test_the_tokenizers_config_decides_on_a_leading_space(tmp_path: Path) -> None:
    folder = FAMILIES["roberta"].save(tmp_path / "checkpoint")
    plain = tokenizer_of(load_checkpoint(str(folder))).encode("Ada wrote it.", add_special_tokens=False)
    spaced = tokenizer_of(load_checkpoint(str(with_settings(folder, add_prefix_space=True))))
    found = spaced.encode("Ada wrote it.", add_special_tokens=False)
    assert not plain.tokens[0].startswith("Ġ")
    assert found.tokens[0].startswith("Ġ")
    assert found.offsets[0][0] == 0
    assert found.offsets[-1] == (12, 13)


def test_special_tokens_of_the_config_are_not_words(tmp_path: Path) -> None:
    folder = FAMILIES["bert"].save(tmp_path / "checkpoint")
    document = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    (folder / TOKENIZER_FILE).write_text(json.dumps({**document, "added_tokens": []}), encoding="utf-8")
    found = tokenizer_of(load_checkpoint(str(folder))).encode("it [SEP] it", add_special_tokens=False)
    assert found.tokens.count("[SEP]") == 1


def test_a_vocabulary_alone_is_enough_for_bert(tmp_path: Path) -> None:
    folder = FAMILIES["bert"].save(tmp_path / "checkpoint")
    stored = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    words = sorted(stored.get_vocab(), key=stored.get_vocab().__getitem__)
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    (folder / TOKENIZER_FILE).unlink()
    loaded = tokenizer_of(load_checkpoint(str(folder)))
    for pair in PROBES:
        assert loaded.encode(*pair).ids == stored.encode(*pair).ids


@pytest.mark.parametrize(
    ("family", "vocabulary"), [("deberta-v2", "spm.model"), ("albert", "spiece.model"), ("deberta", "vocab.json")]
)
def test_a_vocabulary_alone_is_refused_for_other_families(family: str, vocabulary: str, tmp_path: Path) -> None:
    folder = FAMILIES[family].save(tmp_path / "checkpoint")
    (folder / TOKENIZER_FILE).rename(folder / vocabulary)
    with pytest.raises(
        ModelError, match=rf"has no tokenizer.json, and {vocabulary} alone does not define the tokenizer"
    ):
        load_checkpoint(str(folder))


def test_a_tokenizer_of_another_network_is_refused(tmp_path: Path) -> None:
    folder = FAMILIES["bert"].save(tmp_path / "checkpoint", vocab_size=150)
    with pytest.raises(
        ModelError, match=r"does not belong to its weights: token .* has the id 1[0-9]+, .* has 150 tokens"
    ):
        load_checkpoint(str(folder))
