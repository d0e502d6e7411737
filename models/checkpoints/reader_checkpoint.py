"""Makes a Hugging Face checkpoint from the ONNX file of a BERT reader, so that the reader can be trained further.

An int8 weight becomes its value times its scale, so it keeps its rounding error. This hardly matters, because the
logits of the network are nearly the logits of the file.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.reading.runtimes import open_runner

FAMILY = "bert"
# The least accepted correlation between the logits of the network and the logits of the ONNX file.
_SAME = 0.98
_ROUNDING = ("DequantizeLinear", "QuantizeLinear", "Cast")
_WORDS = "bert.embeddings.word_embeddings.weight"
_SPECIAL_TOKENS = {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}

Array = NDArray[np.float32]


def is_reader(folder: Path) -> bool:
    """Return whether a folder has the files of an exported reader."""
    return all((folder / name).is_file() for name in (MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE))


def write_reader_checkpoint(reader: Path, out: Path) -> None:
    """Write the network and the tokenizer of a reader to the folder `out`.

    Raises ModelError if the reader is not of the family BERT, or if the logits of the network correlate less than 0.98
    with the logits of the ONNX file.
    """
    manifest = Manifest.load(reader / MANIFEST_FILE)
    if manifest.family != FAMILY:
        raise ModelError(
            f"{str(reader)!r} is a reader of the family {manifest.family!r}: only readers of the family {FAMILY!r} can"
            " be trained further; name the checkpoint that it was exported from"
        )
    weights = _Graph(reader / MODEL_FILE).weights()
    network = _best_network(weights, reader / MODEL_FILE)
    out.mkdir(parents=True, exist_ok=True)
    network.save_pretrained(out)
    shutil.copyfile(reader / TOKENIZER_FILE, out / TOKENIZER_FILE)
    stated = {"tokenizer_class": "BertTokenizer", "model_max_length": manifest.max_tokens}
    stated |= {"do_lower_case": manifest.lowercase}
    stated |= {f"{name}_token": token for name, token in _SPECIAL_TOKENS.items()}
    (out / "tokenizer_config.json").write_text(json.dumps(stated, indent=1), encoding="utf-8")


class _Graph:
    """The float values of the weights in an ONNX file."""

    def __init__(self, path: Path) -> None:
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(path).graph
        self._nodes = list(graph.node)
        self._stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self._producers = {output: node for node in self._nodes for output in node.output}

    def weights(self) -> dict[str, Array]:
        """Return the weights by their names in the network of transformers.

        The names come from the nodes that use the weights, not from the stored tensors: if two weights of the network
        are equal, the file has only one tensor for both.
        """
        found: dict[str, Array] = {}
        for node in self._nodes:
            module = node.name.removeprefix("/network/").rpartition("/")[0].replace("/", ".")
            stored = [self._stored[name] for name in node.input if name in self._stored]
            if node.op_type == "MatMul" and (matrix := self._matrix(node.input[1])) is not None:
                found[f"{module}.weight"] = (matrix * self._factors(node.input[0])).T
            elif node.op_type == "Add" and stored and stored[0].ndim == 1:
                found[f"{module}.bias"] = stored[0]
            elif node.op_type == "LayerNormalization":
                found[f"{module}.weight"], found[f"{module}.bias"] = stored
            elif node.op_type == "Gather" and module.endswith("_embeddings") and not node.name.endswith(".scales"):
                scales = self._stored.get(node.input[0].removesuffix(".int8") + ".scales", np.float32(1))
                found[f"{module}.weight"] = stored[0] * scales
        return {name: np.array(values, np.float32, order="C") for name, values in found.items()}

    def _matrix(self, name: str) -> Array | None:
        """Return the float values of the matrix with this name, of the shape [inputs, outputs]. Return None if the
        graph computes the value instead of storing it.
        """
        node = self._producers.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return self._stored.get(name)
        if any(each not in self._stored for each in node.input):
            return None
        codes, scale, *zero = (self._stored[each].astype(np.float32) for each in node.input)
        # The scale is one number for each output, or one number for all outputs.
        values: Array = (codes - (zero[0] if zero else 0)) * scale
        return values

    def _factors(self, name: str) -> Array | float:
        """Return the smoothing factors of a matrix, of the shape [inputs, 1]. `name` is the value that the matrix is
        multiplied with. Return 1.0 if the inputs of the matrix are not smoothed.

        The export has multiplied the inputs of the matrix by these factors, and has divided the rows of the matrix by
        these factors.
        """
        node = self._producers.get(name)
        while node is not None and node.op_type in _ROUNDING:
            name = node.input[0]
            node = self._producers.get(name)
        if node is None or node.op_type != "Mul" or not name.endswith(".smoothed"):
            return 1.0
        factors = next(self._stored[each] for each in node.input if each in self._stored)
        rows: Array = factors.reshape(-1, 1).astype(np.float32)
        return rows


def _best_network(weights: dict[str, Array], model: Path) -> Any:
    """Return the network with these weights whose logits correlate best with the logits of the file.

    The file does not state the number of attention heads, so each possible number is tried. Raises ModelError if the
    best correlation is below `_SAME`.
    """
    import torch

    try:
        vocabulary, width = weights[_WORDS].shape
    except KeyError as error:
        raise ModelError(f"{str(model)!r} has no weights of a BERT that can be trained further: {error}") from error
    ids = np.random.default_rng(0).integers(vocabulary // 2, vocabulary, (2, 24))
    types = np.repeat([[0] * 8 + [1] * 16], 2, axis=0)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
    expected = np.concatenate(open_runner(model, "onnxruntime", threads=1)(inputs)).ravel()

    def tried(heads: int) -> tuple[float, Any]:
        network = _network(weights, heads, str(model))
        with torch.inference_mode():
            output = network(**{name: torch.from_numpy(values) for name, values in inputs.items()})
        logits = torch.cat([output.start_logits, output.end_logits]).numpy().ravel()
        return float(np.corrcoef(logits, expected)[0, 1]), network

    possible = (heads for heads in range(1, width + 1) if width % heads == 0 and width // heads % 8 == 0)
    best, network = max(map(tried, possible), key=lambda each: each[0], default=(0.0, None))
    if best < _SAME:
        raise ModelError(f"{str(model)!r} cannot be trained further: its weights give different logits ({best:.3f})")
    return network


def _network(weights: dict[str, Array], heads: int, model: str) -> Any:
    import torch
    from transformers import BertConfig, BertForQuestionAnswering

    layers = {name.split(".")[3] for name in weights if name.startswith("bert.encoder.layer.")}
    try:
        config = BertConfig(
            vocab_size=len(weights[_WORDS]),
            hidden_size=weights[_WORDS].shape[1],
            num_hidden_layers=len(layers),
            num_attention_heads=heads,
            intermediate_size=len(weights["bert.encoder.layer.0.intermediate.dense.weight"]),
            max_position_embeddings=len(weights["bert.embeddings.position_embeddings.weight"]),
            type_vocab_size=len(weights["bert.embeddings.token_type_embeddings.weight"]),
        )
        network = BertForQuestionAnswering(config)
        network.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    except (KeyError, RuntimeError) as error:
        cause = " ".join(str(error).split())[:300]
        raise ModelError(f"{model!r} does not have the weights of a BERT: {cause}") from error
    return network.eval()
