"""Models of a few hundred bytes: readers that answer the first or the last word, encoders that count words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest, sha256_hex
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE, EncoderManifest
from tests.gears.onnx_file import encoder_model, span_model
from tests.harness.programs import ROOT

BUNDLED = ROOT / "models" / "default"
BUNDLED_ENCODER = ROOT / "models" / "encoder"


def tiny_reader(
    folder: Path,
    model_id: str,
    *,
    last: bool,
    weights: bytes = b"",
    tokenizer: bytes | None = None,
    created: str = "2026-01-01",
) -> Manifest:
    """Write a reader into `folder`, by default with the limits and the tokenizer of the bundled reader."""
    model = span_model(last=last, weights=weights)
    text = tokenizer if tokenizer is not None else (BUNDLED / TOKENIZER_FILE).read_bytes()
    manifest = replace(
        Manifest.load(BUNDLED / MANIFEST_FILE),
        model_id=model_id,
        model_sha256=sha256_hex(model),
        model_bytes=len(model),
        tokenizer_sha256=sha256_hex(text),
        precision="float32",
        created=created,
        metrics=(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(model)
    (folder / TOKENIZER_FILE).write_bytes(text)
    (folder / MANIFEST_FILE).write_text(manifest.to_json())
    return manifest


def tiny_encoder(folder: Path, model_id: str, *, dims: int = 16, created: str = "2026-01-01") -> EncoderManifest:
    """Write an encoder into `folder`, with the limits and the tokenizer of the bundled encoder."""
    model, text = encoder_model(dims), (BUNDLED / TOKENIZER_FILE).read_bytes()
    manifest = replace(
        EncoderManifest.load(BUNDLED_ENCODER / MANIFEST_FILE),
        model_id=model_id,
        model_sha256=sha256_hex(model),
        model_bytes=len(model),
        precision="float32",
        dims=dims,
        created=created,
        agreement=None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ENCODER_FILE).write_bytes(model)
    (folder / TOKENIZER_FILE).write_bytes(text)
    (folder / MANIFEST_FILE).write_text(manifest.to_json())
    return manifest
