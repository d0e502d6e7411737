"""The exported file of every family gives the network's logits in both runtimes, with and without padding.

The reference is the checkpoint's own `tokenizer.json` for single pairs, and its network in float32 in transformers. The
tests need the `export` extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from qa_cluster.models.checkpoints.checkpoint import load_checkpoint
from qa_cluster.models.checkpoints.pair_layout import PROBES
from qa_cluster.models.exporting.export import ExportOptions, export
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.reading.runtimes import RUNTIMES, open_runner
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder
from tests.model.tiny_checkpoints import FAMILIES

transformers = pytest.importorskip("transformers", reason="the export extra is not installed")
torch = pytest.importorskip("torch", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

PAIRS = [
    *PROBES,
    ("Where was Frida Kahlo born?", "The painter Frida Kahlo was born in Coyoacán, near Mexico City."),
    ("What causes tides?", "Tides are caused by the gravity of the Moon 🌙 and of the Sun; 👩‍🚀 flew there."),
]


@dataclass(frozen=True, slots=True)
class Exported:
    """The network and the tokenizer of a family's checkpoint, and the exported reader."""

    family: str
    folder: Path
    manifest: Manifest
    encoder: TextPairEncoder
    network: Any
    tokenizer: Tokenizer

    def reference(self, question: str, context: str) -> dict[str, Any]:
        """The tokenizer's inputs for one pair, with token types if the network has them."""
        encoded = self.tokenizer.encode(question, context)
        inputs = {"input_ids": torch.tensor([encoded.ids]), "attention_mask": torch.tensor([encoded.attention_mask])}
        types = torch.tensor([encoded.type_ids])
        return {**inputs, "token_type_ids": types} if "token_type_ids" in self.manifest.inputs else inputs


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = FAMILIES[request.param].save(folder / "checkpoint")
    manifest = export(str(checkpoint), folder / "reader", ExportOptions(threads=1))
    tokenizer = ReaderTokenizer((folder / "reader" / TOKENIZER_FILE).read_bytes())
    yield Exported(
        request.param,
        folder / "reader",
        Manifest.load(folder / "reader" / MANIFEST_FILE),
        TextPairEncoder(tokenizer, PairEncoder(manifest)),
        transformers.AutoModelForQuestionAnswering.from_pretrained(checkpoint).eval(),
        Tokenizer.from_file(str(checkpoint / TOKENIZER_FILE)),
    )


def test_a_pair_of_stored_tokens_equals_the_tokenizers_pair(exported: Exported) -> None:
    for question, context in PAIRS:
        (window,) = exported.encoder.windows(question, context)
        expected = exported.reference(question, context)
        assert window.input_ids.tolist() == expected["input_ids"][0].tolist()
        batch = exported.encoder.pairs.batch([window], length_step=1)
        assert set(batch) == set(expected)
        for name, values in batch.items():
            assert values.tolist() == expected[name].tolist(), name


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_padded_batch_gives_the_logits_of_every_pair_alone(exported: Exported, runtime: str) -> None:
    windows = [exported.encoder.windows(question, context)[0] for question, context in PAIRS]
    starts, ends = open_runner(exported.folder / MODEL_FILE, runtime, threads=1)(exported.encoder.pairs.batch(windows))
    assert starts.shape == ends.shape == (len(PAIRS), starts.shape[1])
    spread = []
    for row, pair in enumerate(PAIRS):
        with torch.inference_mode():
            expected = exported.network(**exported.reference(*pair))
        length = len(windows[row].input_ids)
        np.testing.assert_allclose(starts[row, :length], expected.start_logits[0].numpy(), atol=2e-4)
        np.testing.assert_allclose(ends[row, :length], expected.end_logits[0].numpy(), atol=2e-4)
        spread.append(float(expected.start_logits.std()))
    assert min(spread) > 0.01, "the logits must differ, or the comparison proves nothing"


def test_the_longest_input_uses_all_positions(exported: Exported) -> None:
    """The maximum is 128 tokens. RoBERTa, XLM-R and MPNet have 130 rows of positions, of which two are unused."""
    assert exported.manifest.max_tokens == 128
    question, context = "Who wrote it?", "Ada wrote it. " * 200
    encoder = TextPairEncoder(exported.encoder.tokenizer, PairEncoder(exported.manifest, window_tokens=128))
    first, *_, last = encoder.windows(question, context)
    assert len(first.input_ids) == len(last.input_ids) == 128
    arrays = encoder.pairs.batch([first, last])
    with torch.inference_mode():
        expected = exported.network(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    for runtime in RUNTIMES:
        starts, _ = open_runner(exported.folder / MODEL_FILE, runtime, threads=1)(arrays)
        np.testing.assert_allclose(starts, expected.start_logits.numpy(), atol=2e-4)


def test_offsets_are_code_points_of_the_text(exported: Exported) -> None:
    text = " Ada flew 👩‍🚀 to the 🌙 and had cafe\u0301 au lait, naïve. "
    tokens = exported.encoder.tokenizer.encode_text(text)
    pieces = [text[start:end] for start, end in zip(tokens.starts, tokens.ends, strict=True)]
    assert max(tokens.ends) <= len(text)
    assert list(tokens.starts) == sorted(tokens.starts)
    covered = {place for s, e in zip(tokens.starts, tokens.ends, strict=True) for place in range(s, e)}
    unseen = "".join(char for place, char in enumerate(text) if place not in covered and not char.isspace())
    # no characters may be lost except accents and joiners, which BERT's normalization removes
    assert set(unseen) <= {"\u0301", "\u200d"}, (unseen, pieces)
    moon = text.index("🌙")
    assert any(start <= moon < end for start, end in zip(tokens.starts, tokens.ends, strict=True))


def test_token_types_have_an_effect_if_the_network_has_them(exported: Exported) -> None:
    typed = {"bert", "minilm", "electra", "albert"}
    assert ("token_type_ids" in exported.manifest.inputs) == (exported.family in typed)
    if exported.family not in typed:
        return
    (window,) = exported.encoder.windows(*PAIRS[0])
    arrays = exported.encoder.pairs.batch([window])
    assert arrays["token_type_ids"].any()
    run = open_runner(exported.folder / MODEL_FILE, "onnxruntime", threads=1)
    zeros = {**arrays, "token_type_ids": np.zeros_like(arrays["token_type_ids"])}
    assert np.abs(run(arrays)[0] - run(zeros)[0]).max() > 1e-3


def test_a_checkpoint_without_a_pad_token_in_its_config_is_padded(tmp_path: Path) -> None:
    folder = FAMILIES["bert"].save(tmp_path / "checkpoint", pad_token_id=None)
    config = (folder / "tokenizer_config.json").read_text().replace('"pad_token": "[PAD]", ', "")
    assert "PAD" not in config
    (folder / "tokenizer_config.json").write_text(config)
    loaded = load_checkpoint(str(folder))
    assert 0 <= loaded.pad_id < 200
    manifest = export(str(folder), tmp_path / "reader", ExportOptions(runtimes=("openvino",), threads=1))
    assert manifest.pad_id == loaded.pad_id
