"""Exports an encoder checkpoint as the encoder of shards: mean pooling and normalisation are part of the ONNX file.

The file takes token ids and an attention mask, `[batch, length]`, and returns one vector of length 1 for each row. int8
uses the same quantization as readers; the calibration texts are passages and questions without labels. The field
`agreement` of the manifest compares the vectors of the file with the vectors of the network in float32, on texts that
the calibration did not use.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError
from qa_cluster.manifest_fields import Shapes, sha256_hex
from qa_cluster.reading.manifest import MANIFEST_FILE, TOKENIZER_FILE
from qa_cluster.reading.runtimes import RUNTIMES, open_vectors
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import Arrays
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE, VECTOR_OUTPUT, Agreement, EncoderManifest

from ..checkpoints.checkpoint import require_export_extra
from ..checkpoints.encoder_checkpoint import CONTEXT_TOKENS, MAX_QUESTION_TOKENS, load_encoder, special_tokens
from ..quantization.precisions import convert
from .tracing import trace

# The ranking adds `rank_weight * cosine` to the BM25 score of a sentence. As long as the sentence's document has no
# vectors, `missing_cosine` replaces the cosine.
RANK_WEIGHT = 40.0
MISSING_COSINE = 0.35
_INPUTS = ("input_ids", "attention_mask")
_RECORDED = ("torch", "transformers", "onnx", "onnxruntime", "openvino")
# The least accepted cosine between a vector of the exported float32 file and the network's vector in PyTorch.
_SAME = 0.9999
_LENGTHS = (128, 112, 96, 80, 64, 48, 32, 16)
_BATCHES = (1, 8, 4, 2)

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """The options of an export of an encoder.

    Attributes:
        calibration: the texts on which the ranges of int8 are measured.
        held_out: the texts on which the file is compared with the network.
        threads: the number of threads of PyTorch and of the runtimes.
        say: receives a line of text about each step.
    """

    model_id: str
    licence: str
    provenance: str
    calibration: Sequence[str]
    held_out: Sequence[str]
    precision: str = "int8"
    threads: int = 2
    say: Callable[[str], None] = lambda text: None


def export_encoder(checkpoint: Path, out: Path, options: EncoderOptions) -> EncoderManifest:
    """Write `encoder.onnx`, `tokenizer.json` and `manifest.json` of a local checkpoint to the folder `out`. Return the
    manifest.

    Raises ModelError if the checkpoint cannot be exported, or if the vectors of its ONNX file differ from the
    network's.
    """
    require_export_extra()
    network, tokenizer = load_encoder(checkpoint)
    head, tail = special_tokens(tokenizer)
    tokenizer_json = _tokenizer_json(tokenizer)
    encode = _Inputs(ReaderTokenizer(tokenizer_json), head, tail)
    out.mkdir(parents=True, exist_ok=True)
    traced, made = out / "traced.onnx.partial", out / f"{ENCODER_FILE}.partial"
    try:
        options.say("writing ONNX")
        _write_onnx(network, traced)
        expected = _torch_vectors(network, encode, options)
        _require_same(traced, encode, options, expected)
        options.say(f"converting to {options.precision} with {len(options.calibration)} texts")
        _convert(traced, made, options.precision, [encode.arrays([text]) for text in options.calibration])
        found = {runtime: _file_vectors(made, runtime, encode, options) for runtime in RUNTIMES}
        agreement = {runtime: _agreement(vectors, expected) for runtime, vectors in found.items()}
        for runtime, each in agreement.items():
            options.say(f"{runtime}: cosine to float32 on {each.texts} texts: mean {each.mean}, lowest {each.least}")
        manifest = _manifest(network, tokenizer, options, made.read_bytes(), agreement[RUNTIMES[0]])
        (out / TOKENIZER_FILE).write_bytes(tokenizer_json)
        os.replace(made, out / ENCODER_FILE)
        (out / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    finally:
        traced.unlink(missing_ok=True)
        made.unlink(missing_ok=True)
    return manifest


class _Inputs:
    """Makes inputs of the network from texts. A text is cut to `CONTEXT_TOKENS` tokens, which include the special
    tokens `head` before the text and `tail` after it.
    """

    def __init__(self, tokenizer: ReaderTokenizer, head: tuple[int, ...], tail: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._head = head
        self._tail = tail

    def arrays(self, texts: Sequence[str]) -> Arrays:
        """Return the inputs for a batch of texts, padded to the longest of them."""
        space = CONTEXT_TOKENS - len(self._head) - len(self._tail)
        rows = [
            [*self._head, *tokens.ids[:space].tolist(), *self._tail] for tokens in self._tokenizer.encode_texts(texts)
        ]
        longest = max(map(len, rows))
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}


def _tokenizer_json(tokenizer: Any) -> bytes:
    text: str = tokenizer.backend_tokenizer.to_str()
    return text.encode()


def _write_onnx(network: Any, target: Path) -> None:
    """Trace the network with mean pooling and normalisation, and write the ONNX file `target`."""

    def vectors(input_ids: Any, attention_mask: Any) -> Any:
        hidden = network(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
        counted = attention_mask.unsqueeze(-1).float()
        mean = (hidden.last_hidden_state * counted).sum(1) / counted.sum(1)
        return mean / mean.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)

    outputs = {VECTOR_OUTPUT: {0: "batch"}}
    trace(vectors, network, target, inputs=_INPUTS, outputs=outputs, what="the encoder")


def _convert(traced: Path, target: Path, precision: str, examples: Sequence[Arrays]) -> None:
    import onnx

    onnx.save(convert(onnx.load(traced), precision, examples), target)


def _torch_vectors(network: Any, encode: _Inputs, options: EncoderOptions) -> FloatArray:
    import torch

    torch.set_num_threads(options.threads)
    found = []
    with torch.inference_mode():
        for text in options.held_out:
            arrays = {name: torch.from_numpy(array) for name, array in encode.arrays([text]).items()}
            mean = network(**arrays).last_hidden_state.mean(1)[0]
            found.append((mean / mean.norm()).numpy())
    return np.stack(found)


def _file_vectors(file: Path, runtime: str, encode: _Inputs, options: EncoderOptions) -> FloatArray:
    run = open_vectors(file, runtime, threads=options.threads)
    return np.concatenate([run(encode.arrays([text])) for text in options.held_out])


def _require_same(traced: Path, encode: _Inputs, options: EncoderOptions, expected: FloatArray) -> None:
    """Raise ModelError if the vectors of the ONNX file `traced` differ from `expected`, the vectors of the network.

    They can differ, because the tracer records only the operations that the network does for one example input.
    """
    for runtime in RUNTIMES:
        found = _agreement(_file_vectors(traced, runtime, encode, options), expected)
        if found.least < _SAME:
            raise ModelError(f"the ONNX file gives different vectors in {runtime}: the least cosine is {found.least}")


def _agreement(vectors: FloatArray, expected: FloatArray) -> Agreement:
    cosines = (vectors * expected).sum(1) / np.linalg.norm(vectors, axis=1)
    return Agreement(len(cosines), round(float(cosines.mean()), 5), round(min(1.0, float(cosines.min())), 5))


def _manifest(
    network: Any,
    tokenizer: Any,
    options: EncoderOptions,
    model: bytes,
    agreement: Agreement,
) -> EncoderManifest:
    head, tail = special_tokens(tokenizer)
    normalizer = tokenizer.backend_tokenizer.normalizer
    made = EncoderManifest(
        model_id=options.model_id,
        model_sha256=sha256_hex(model),
        model_bytes=len(model),
        tokenizer_sha256=sha256_hex(_tokenizer_json(tokenizer)),
        precision=options.precision,
        family=network.config.model_type,
        inputs=_INPUTS,
        outputs=(VECTOR_OUTPUT,),
        dims=int(network.config.hidden_size),
        max_tokens=int(network.config.max_position_embeddings),
        max_question_tokens=MAX_QUESTION_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        passage_prefix=True,
        pad_id=int(tokenizer.pad_token_id),
        head=head,
        tail=tail,
        lowercase=normalizer is not None and normalizer.normalize_str("QA").islower(),
        rank_weight=RANK_WEIGHT,
        missing_cosine=MISSING_COSINE,
        shapes=Shapes(_LENGTHS, _BATCHES),
        licence=options.licence,
        provenance=options.provenance,
        created=datetime.now(UTC).date().isoformat(),
        exported_with={name: version(name) for name in _RECORDED},
        agreement=agreement,
    )
    return EncoderManifest.from_json(made.to_json())
