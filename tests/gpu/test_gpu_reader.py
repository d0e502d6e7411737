"""The bundled reader on a GPU has the same answers as on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qa_cluster import pipeline
from qa_cluster.errors import ModelError
from qa_cluster.gears.inference.backends.base import RuntimeLimits
from qa_cluster.reading.local_reader import LocalReader
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder, Window
from tests.gears.files import load_bytes
from tests.unit.huggingface.pairs import ADA, FILLER, WHEN, WHO

# The GPU adds numbers in another order, and int8 rounding increases the difference. Logits are between -15 and 15.
CLOSE = 0.3


def windows(reader: LocalReader) -> list[Window]:
    texts = [ADA, f"{FILLER} {ADA}", FILLER]
    pairs = TextPairEncoder(reader.tokenizer, PairEncoder(reader.manifest))
    return [window for question in (WHO, WHEN) for text in texts for window in pairs.windows(question, text)]


def test_logits_on_the_gpu_equal_those_of_the_cpu(reader: Path) -> None:
    here, there = LocalReader(reader, runtime="onnxruntime"), LocalReader(reader, device="cuda")
    asked = windows(here)
    for size in (1, len(asked)):
        for one, other in zip(here.read(asked), there.read(asked, batch_size=size), strict=True):
            for ours, theirs in zip(one, other, strict=True):
                length = min(len(ours), len(theirs))
                assert np.abs(ours[:length] - theirs[:length]).max() < CLOSE


@pytest.mark.parametrize("device", [0, "cuda", "cuda:0"])
def test_the_pipeline_answers_from_the_gpu(device: object) -> None:
    there, here = pipeline(device=device), pipeline(device=-1)
    for question in (WHO, WHEN):
        one, other = (made(question=question, context=f"{FILLER} {ADA}") for made in (there, here))
        assert (one["answer"], one["start"]) == (other["answer"], other["start"])
        assert abs(one["score"] - other["score"]) < CLOSE


def test_a_missing_gpu_is_an_error(reader: Path) -> None:
    with pytest.raises(ModelError, match="device 'cuda:63' cannot be used: this host has no GPU 63: Invalid device ID"):
        LocalReader(reader, device="cuda:63")


def test_the_reader_of_a_shard_may_be_on_a_gpu(reader: Path) -> None:
    blob = (reader / "reader.onnx").read_bytes()
    model = load_bytes("ONNX", "GPU", blob, RuntimeLimits(threads=2))
    ids = np.full((2, 24), 2000)
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    arrays = [given[port.name] for port in model.inputs]
    same = load_bytes("ONNX", "CPU", blob, RuntimeLimits(threads=2)).run(arrays)
    for ours, theirs in zip(model.run(arrays), same, strict=True):
        assert np.abs(ours - theirs).max() < CLOSE
