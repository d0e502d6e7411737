"""The encoder's manifest: the bundled manifest is right, errors name the fault, and the digest identifies vectors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.errors import ModelError
from qa_cluster.reading.bundled import bundled_encoder, bundled_reader
from qa_cluster.reading.manifest import MANIFEST_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE, EncoderManifest, load_manifest, parse_manifest


@pytest.fixture(scope="module")
def bundled() -> EncoderManifest:
    return EncoderManifest.load(bundled_encoder() / MANIFEST_FILE)


def test_the_bundled_files_belong_together(bundled: EncoderManifest) -> None:
    folder = bundled_encoder()
    model = (folder / ENCODER_FILE).read_bytes()
    bundled.verify(model, (folder / TOKENIZER_FILE).read_bytes())
    assert bundled.model_bytes == len(model) < 24_000_000
    assert bundled.agreement is not None
    assert bundled.agreement.mean > 0.999
    assert bundled.agreement.least > 0.998
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert all(text in card for text in (bundled.model_id, bundled.revision, f"{bundled.agreement.mean:.5f}"[1:]))


def test_reader_and_encoder_share_their_tokens() -> None:
    assert (bundled_encoder() / TOKENIZER_FILE).read_bytes() == (bundled_reader() / TOKENIZER_FILE).read_bytes()


def test_a_manifest_is_read_back(bundled: EncoderManifest) -> None:
    assert EncoderManifest.from_json(bundled.to_json()) == bundled
    without = replace(bundled, agreement=None)
    assert EncoderManifest.from_json(without.to_json()) == without


def test_the_kind_decides(bundled: EncoderManifest, tmp_path: Path) -> None:
    reader = Manifest.load(bundled_reader() / MANIFEST_FILE)
    assert parse_manifest(bundled.to_json()) == bundled
    assert parse_manifest(reader.to_json()) == reader
    assert load_manifest(bundled_encoder() / MANIFEST_FILE) == bundled
    with pytest.raises(ModelError, match="belongs to an encoder"):
        Manifest.from_json(bundled.to_json())
    with pytest.raises(ModelError, match="lacks the field 'kind'"):
        EncoderManifest.from_json(reader.to_json())
    with pytest.raises(ModelError, match="cannot read manifest"):
        load_manifest(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "reader"}, "field 'kind' is \"reader\", must be 'encoder'"),
        ({"format": 1}, "field 'format' is 1, must be 2"),
        ({"dims": 0}, "'dims' is 0, must be an integer from 1 to 4096"),
        ({"context_tokens": 16}, "'context_tokens' is 16, must be an integer from 64 to 512"),
        ({"max_question_tokens": 511}, "'max_question_tokens' is 511, must be an integer from 1 to 510"),
        ({"missing_cosine": 2}, "'missing_cosine' is 2, must be a number from -1 to 1"),
        ({"rank_weight": -1}, "'rank_weight' is -1"),
        ({"revision": "0" * 12}, "'revision'"),
        ({"head": []}, "'head' is \\[\\], must be a list of 1 to 4 token ids"),
        ({"agreement": {"texts": 0, "mean": 1, "least": 1}}, "'texts' is 0"),
        ({"lengths": 1}, "unknown field 'lengths'"),
    ],
)
def test_a_fault_is_named(bundled: EncoderManifest, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        EncoderManifest.from_json(json.dumps({**json.loads(bundled.to_json()), **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"model_sha256": "0" * 64},
        {"tokenizer_sha256": "0" * 64},
        {"context_tokens": 96},
        {"passage_prefix": False},
        {"max_question_tokens": 32},
        {"dims": 383},
        {"head": (1,)},
        {"tail": (1,)},
    ],
)
def test_the_digest_names_everything_that_vectors_depend_on(bundled: EncoderManifest, change: dict[str, Any]) -> None:
    assert replace(bundled, **change).digest != bundled.digest


def test_a_new_fit_keeps_the_vectors(bundled: EncoderManifest) -> None:
    fitted = replace(bundled, rank_weight=25.0, missing_cosine=0.2, created="2027-01-01", model_id="other")
    assert fitted.digest == bundled.digest
    assert len(bundled.digest) == 8


def test_the_format_of_readers_is_not_the_format_of_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qa_cluster.reading.manifest.FORMAT", 3)
    found = EncoderManifest.load(bundled_encoder() / MANIFEST_FILE)
    assert EncoderManifest.from_json(found.to_json()) == found
