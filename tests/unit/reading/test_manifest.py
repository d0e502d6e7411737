"""Reading the manifest is strict: errors name the wrong value, and nothing is guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.errors import ModelError
from qa_cluster.reading.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    Calibration,
    Manifest,
    Metric,
    PairLayout,
    Score,
    Shapes,
    WaveFit,
    sha256_hex,
)

MANIFEST = Manifest(
    model_id="reader",
    model_sha256=sha256_hex(b"model"),
    tokenizer_sha256=sha256_hex(b"tokenizer"),
    precision="int8",
    family="bert",
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    outputs=("start_logits", "end_logits"),
    max_tokens=512,
    max_question_tokens=64,
    max_answer_tokens=30,
    pad_id=0,
    pair=PairLayout((101,), (102,), (102,), 1),
    window_tokens=384,
    doc_stride=128,
    context_tokens=0,
    model_bytes=5,
    calibration_error=None,
    lowercase=True,
    no_answer_threshold=-0.5,
    wave_threshold=6.0,
    calibration=Calibration(a=0.25, b=-2.0),
    rank_weight=0.3,
    shapes=Shapes(lengths=(48, 32), batches=(1, 8)),
    licence="Apache-2.0",
    provenance="trained on questions",
    created="2026-11-20",
    exported_with={"torch": "2.13.0"},
    metrics=(Metric("xquad", 612, Score(0.516, 0.65), Score(0.518, 0.651)),),
)


WAVES = {
    "threshold": 5.9,
    "questions": 600,
    "sentences": 747,
    "ends": [1, 3, 8],
    "read": 3.1,
    "f1": 0.61,
    "f1_all": 0.6,
}


def document(**changes: Any) -> str:
    return json.dumps({**json.loads(MANIFEST.to_json()), **changes})


def test_round_trip() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert Manifest.from_json(MANIFEST.to_json().encode()) == MANIFEST
    assert json.loads(MANIFEST.to_json())["revision"] == MANIFEST.revision == sha256_hex(b"model")[:12]


def test_the_reading_revision_covers_everything_that_a_reading_depends_on() -> None:
    other_ways: list[dict[str, Any]] = [
        {"context_tokens": MANIFEST.context_tokens + 1},
        {"max_question_tokens": MANIFEST.max_question_tokens - 1},
        {"max_answer_tokens": MANIFEST.max_answer_tokens - 1},
        {"window_tokens": MANIFEST.window_tokens - 1},
        {"doc_stride": MANIFEST.doc_stride + 1},
        {"pair": replace(MANIFEST.pair, middle=(9, 9))},
        {"tokenizer_sha256": sha256_hex(b"another")},
        {"model_sha256": sha256_hex(b"another")},
    ]
    found = {replace(MANIFEST, **changes).reading_revision for changes in ({}, *other_ways)}
    assert len(found) == 1 + len(other_ways)
    assert {name.partition("+")[0] for name in found} == {MANIFEST.revision, sha256_hex(b"another")[:12]}
    # only the choice of answers uses these fields, so cached readings of sentences do not depend on them
    assert replace(MANIFEST, no_answer_threshold=9.0, rank_weight=9.0, created="2020-01-01").reading_revision in found
    assert Manifest.from_json(MANIFEST.to_json()).reading_revision == MANIFEST.reading_revision


def test_the_fit_of_the_waves_survives_a_round_trip() -> None:
    fit = WaveFit(5.9, 600, 747, (1, 3, 8), 3.1, 0.61, 0.6)
    assert Manifest.from_json(document(waves=WAVES)) == replace(MANIFEST, waves=fit)
    assert Manifest.from_json(replace(MANIFEST, waves=fit).to_json()).waves == fit
    assert Manifest.from_json(document(waves=None)).waves is None


def test_the_limits_of_the_words_are_optional_and_strict() -> None:
    plain = {"a": 0.25, "b": -2.0}
    assert json.loads(MANIFEST.to_json())["calibration"] == plain
    fitted = replace(MANIFEST, calibration=Calibration(0.25, -2.0, sure=0.75, likely=0.5))
    assert json.loads(fitted.to_json())["calibration"] == {**plain, "sure": 0.75, "likely": 0.5}
    assert Manifest.from_json(fitted.to_json()) == fitted
    assert Manifest.from_json(document(calibration={**plain, "sure": 0.4})).calibration.likely == 0.4
    for name, value in (("sure", 1.1), ("sure", "0.9"), ("likely", -0.1), ("likely", 0.91), ("likely", None)):
        with pytest.raises(ModelError, match=f"{name}"):
            Manifest.from_json(document(calibration={**plain, name: value}))


@pytest.mark.parametrize("name", sorted(json.loads(MANIFEST.to_json())))
def test_a_missing_field_is_named(name: str) -> None:
    broken = json.loads(MANIFEST.to_json())
    del broken[name]
    with pytest.raises(ModelError, match=f"lacks the field '{name}'"):
        Manifest.from_json(json.dumps(broken))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 1),
        ("revision", "0123456789ab"),
        ("model_id", ""),
        ("model_sha256", "ABC"),
        ("tokenizer_sha256", "f" * 63),
        ("precision", "int4"),
        ("inputs", ["a", "a"]),
        ("outputs", "start_logits"),
        ("max_tokens", 7),
        ("max_tokens", True),
        ("lowercase", 1),
        ("max_question_tokens", 509),
        ("max_answer_tokens", 0),
        ("pad_id", -1),
        ("no_answer_threshold", float("nan")),
        ("wave_threshold", float("inf")),
        ("wave_threshold", 10**400),
        ("rank_weight", -0.1),
        ("created", "20 November"),
        ("exported_with", {"torch": 2}),
        ("metrics", {}),
    ],
)
def test_a_bad_value_is_named_with_its_field(name: str, value: object) -> None:
    with pytest.raises(ModelError) as refused:
        Manifest.from_json(document(**{name: value}))
    assert f"'{name}'" in str(refused.value)
    assert json.dumps(value, ensure_ascii=False)[:50] in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"colour": "red"}, "'colour'"),
        ({"shapes": {"lengths": [1024], "batches": [1]}}, "'lengths'"),
        ({"shapes": {"lengths": [48], "batches": [1, 1]}}, "'batches'"),
        ({"calibration": {"a": -1, "b": 0}}, "'a'"),
        ({"metrics": [{"dataset": "x"}]}, "'questions'"),
        ({"metrics": [5]}, "metrics[0]"),
        ({"waves": {**WAVES, "read": -1}}, "'read'"),
        ({"waves": {**WAVES, "ends": [1, 1]}}, "'ends'"),
        ({"waves": {**WAVES, "f1_all": 1.5}}, "'f1_all'"),
        ({"waves": {**WAVES, "extra": 1}}, "'extra'"),
    ],
)
def test_inner_and_unknown_fields_are_checked(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as refused:
        Manifest.from_json(document(**changes))
    assert named in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", b"\xff\xfe", "[" * 100_000])
def test_a_text_that_is_not_a_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(ModelError, match="manifest"):
        Manifest.from_json(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(json.loads(MANIFEST.to_json()))), value=json_values)
def test_any_value_in_any_field_is_read_back_or_refused(name: str, value: object) -> None:
    try:
        found = Manifest.from_json(document(**{name: value}))
    except ModelError:
        return
    assert Manifest.from_json(found.to_json()) == found


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-such"):
        Manifest.load(tmp_path / "no-such.json")


def test_verify_tells_which_file_is_wrong() -> None:
    MANIFEST.verify(b"model", b"tokenizer")
    with pytest.raises(ModelError, match=r"model file .*'reader'"):
        MANIFEST.verify(b"other", b"tokenizer")
    with pytest.raises(ModelError, match="tokenizer file"):
        MANIFEST.verify(b"model", b"other")


@given(st.floats(-1e6, 1e6))
def test_any_score_gives_a_probability(score: float) -> None:
    assert 0 <= Calibration(1.0, 0.0).probability(score) <= 1
    assert Calibration(1.0, 0.0).probability(score) <= Calibration(1.0, 0.0).probability(score + 1)


def test_bundled_manifest_belongs_to_bundled_files(reader: Path, manifest: Manifest) -> None:
    manifest.verify((reader / MODEL_FILE).read_bytes(), (reader / TOKENIZER_FILE).read_bytes())
    assert manifest.to_json() == (reader / MANIFEST_FILE).read_text(encoding="utf-8")
