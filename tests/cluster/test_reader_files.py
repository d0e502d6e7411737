"""The folder of a reader: a check reports any damage before the command contacts a shard."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster.cluster.readers.reader_files import budget_of, read_reader
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, ModelError
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest, sha256_hex
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE
from tests.gears.onnx_file import deep_model, encoder_model, span_model, token_model
from tests.harness.tiny_readers import tiny_encoder, tiny_reader

Damage = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a complete reader."""
    tiny_reader(tmp_path / "tiny", "tiny", last=True)
    read_reader(tmp_path / "tiny")
    return tmp_path / "tiny"


def changed(folder: Path, **changes: object) -> Manifest:
    """Change the manifest in a folder."""
    manifest = replace(Manifest.load(folder / MANIFEST_FILE), **changes)  # type: ignore[arg-type]
    (folder / MANIFEST_FILE).write_text(manifest.to_json())
    return manifest


def with_model(data: bytes) -> Damage:
    """Replace the ONNX file, and its hash in the manifest."""

    def put(folder: Path) -> None:
        (folder / MODEL_FILE).write_bytes(data)
        changed(folder, model_sha256=sha256_hex(data), model_bytes=len(data))

    return put


def with_tokenizer(data: bytes) -> Damage:
    """Replace the tokenizer, and its hash in the manifest."""

    def put(folder: Path) -> None:
        (folder / TOKENIZER_FILE).write_bytes(data)
        changed(folder, tokenizer_sha256=sha256_hex(data))

    return put


def flip_last_byte(folder: Path) -> None:
    path = folder / MODEL_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip_last_byte, "model file does not belong to manifest of 'tiny': sha256 "),
        (lambda folder: (folder / TOKENIZER_FILE).unlink(), r"cannot read '.*tokenizer\.json': No such file"),
        (lambda folder: (folder / MANIFEST_FILE).unlink(), "has no manifest.json: name a folder"),
        (with_model(b"\x08\x07 no model"), "cannot be read as an ONNX model"),
        (with_model(token_model()), r"has the inputs input_ids, attention_mask, but its manifest names .*token_type"),
        (
            with_model(span_model(last=True, shape=[1, 384])),
            r"input input_ids of shape \[1, 384\], but must have \[any, any\]",
        ),
        (with_model(deep_model()), r"output start_logits of shape \[any, any, 1\], but must have \[any, any\]"),
        (with_tokenizer(b"{}"), r"tokenizer cannot be read.*: copy '.*/tiny' again, or export it again"),
    ],
    ids=[
        "model changed",
        "no tokenizer",
        "no manifest",
        "no ONNX",
        "other inputs",
        "fixed shape",
        "no logits",
        "no words",
    ],
)
def test_a_damaged_reader_is_refused(folder: Path, damage: Damage, problem: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=problem):
        read_reader(folder)


def test_an_encoder_is_read_from_its_own_file(tmp_path: Path) -> None:
    about = tiny_encoder(tmp_path, "words")
    found = read_reader(tmp_path, context_tokens=64)  # the setting does not apply to encoders
    assert (found.is_encoder, found.model_file, found.manifest, found.tag) == (True, ENCODER_FILE, about, about.name)
    assert not read_reader(bundled_reader()).is_encoder


def test_an_encoder_needs_vectors_of_its_dimensions(tmp_path: Path) -> None:
    about = tiny_encoder(tmp_path, "words", dims=16)
    model = encoder_model(24)
    (tmp_path / ENCODER_FILE).write_bytes(model)
    changed_hash = replace(about, model_sha256=sha256_hex(model), model_bytes=len(model))
    (tmp_path / MANIFEST_FILE).write_text(changed_hash.to_json())
    with pytest.raises(ModelError, match=r"output vector of shape \[any, 24\], but must have \[any, 16\]"):
        read_reader(tmp_path)
    (tmp_path / ENCODER_FILE).unlink()
    with pytest.raises(ModelError, match=r"cannot read .*encoder\.onnx"):
        read_reader(tmp_path)


@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_the_order_of_inputs_and_outputs_counts(folder: Path, name: str) -> None:
    order = getattr(Manifest.load(folder / MANIFEST_FILE), name)
    changed(folder, **{name: order[::-1]})
    with pytest.raises(ModelError, match=rf"has the {name} {', '.join(order)}, but its manifest names {order[-1]}"):
        read_reader(folder)


@pytest.mark.parametrize("name", ["a@b", "a\nb", "a" * 401, ""])
def test_an_id_that_cannot_be_part_of_a_key_is_refused(folder: Path, name: str) -> None:
    problem = rf"without '@'.*got {re.escape(ascii(name)[:100])}.*with --name"
    with pytest.raises(ConfigError, match=problem):
        read_reader(folder, model_id=name)
    changed(folder, model_id=name)
    with pytest.raises((ConfigError, ModelError)):  # the damage of the manifest is an empty file
        read_reader(folder)


def test_the_setting_decides_the_context_budget() -> None:
    folder = bundled_reader()
    own = read_reader(folder, budget_of(Settings())).manifest.context_tokens
    assert own == Manifest.load(folder / MANIFEST_FILE).context_tokens
    assert read_reader(folder, budget_of(Settings(context_tokens=96))).manifest.context_tokens == 96
    assert read_reader(folder, budget_of(Settings(context_tokens=0))).manifest.context_tokens == 0
    with pytest.raises(ConfigError, match=r"from 0 to 512, .* got 513"):
        read_reader(folder, budget_of(Settings(context_tokens=513)))
