"""Loads a Hugging Face checkpoint for extractive question answering, so that it can be exported.

Checkpoints for other tasks are refused.

torch and transformers belong to the `export` extra and are imported only when a checkpoint is loaded. Code in a
checkpoint is never run. torch's restricted unpickler (`weights_only`) reads pickled weights, and only if the checkpoint
has no safetensors.
"""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from qa_cluster.errors import ModelError
from qa_cluster.reading.manifest import PairLayout
from qa_cluster.reading.runtimes import Logits, Runner
from qa_cluster.reading.windows import Arrays

from .hub import HubId, fetch
from .loading import LOCAL, one_line, require_packages, require_weights, without_bars
from .pair_layout import learn_pair_layout
from .record import knows_titles
from .stored_tokenizer import use_stored

OUTPUTS = ("start_logits", "end_logits")
MAX_TOKENS = 512
_EXTRA = ("torch", "transformers", "onnx", "matplotlib")
_LICENCE = re.compile(r"\A---\n(?:(?!---).*\n)*?license:[ \t]*(?:\n[ \t]*-[ \t]*)?['\"]?([^\s'\"][^\n'\"]*)")
_TOKENIZER_FILE = "tokenizer.json"
_VOCABULARIES = ("vocab.txt", "vocab.json")
_PIECE_MODELS = ("spiece.model", "spm.model", "sentencepiece.bpe.model")
_RELAID = ("deberta",)  # families whose pairs transformers 5 joins differently from transformers 4


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: the network, and the facts that the manifest of its reader needs.

    Attributes:
        name: the name of the folder, or the hub id.
        origin: the name of the folder, or the hub id with the commit.
        family: the architecture (`model_type` in the config), such as `bert`.
        inputs: the names of the network's inputs, in order.
        max_tokens: the length of the longest input in tokens, with special tokens: the smallest of the network's number
            of positions, the limit of the tokenizer, and `MAX_TOKENS`.
        passage_prefix: whether the checkpoint was trained on passages with title and section before them
            (`training.json`).
    """

    network: Any
    name: str
    origin: str
    family: str
    tokenizer_json: str
    inputs: tuple[str, ...]
    max_tokens: int
    pad_id: int
    pair: PairLayout
    lowercase: bool
    licence: str
    passage_prefix: bool = False


def require_export_extra() -> None:
    """Raise ModelError, which says what to install, if a package that the export needs is missing."""
    require_packages("exporting a model", "export", _EXTRA)


def load_checkpoint(source: str) -> Checkpoint:
    """Load the checkpoint in a local folder, or with a hub id, `owner/name` or `owner/name@revision`.

    Raises ModelError if there is no such checkpoint, or if it cannot be used.
    """
    require_export_extra()
    folder, name, origin = _located(source)
    config = _config(folder, source)
    tokenizer = _tokenizer(folder, source, config.model_type)
    network = _network(folder, source)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    _require_embeddings(network, backend, source)
    pair = learn_pair_layout(tokenizer, source)
    return Checkpoint(
        network=network,
        name=name,
        origin=origin,
        family=config.model_type,
        tokenizer_json=backend.to_str(),
        inputs=_inputs(network, config, pair),
        max_tokens=_max_tokens(network, config, tokenizer),
        pad_id=_pad_id(tokenizer, config, pair),
        pair=pair,
        # The normalizer is tried with a text, because the vocabulary does not always show whether the tokenizer
        # lowercases: a small vocabulary may contain no letters.
        lowercase=backend.normalizer is not None and backend.normalizer.normalize_str("QA").islower(),
        licence=_licence(folder),
        passage_prefix=knows_titles(folder),
    )


def _located(source: str) -> tuple[Path, str, str]:
    """Return the folder of a checkpoint, its name, and its origin (see `Checkpoint`). Fetch the checkpoint if `source`
    is a hub id. Raises ModelError if `source` is neither a folder nor a hub id.
    """
    folder = Path(source)
    if source and folder.is_dir():
        name = folder.resolve().name
        return folder, name, name
    wanted = HubId.parse(source)
    if wanted is None or folder.is_file():
        raise ModelError(f"no model folder {source!r}; a hub id has the form owner/name or owner/name@revision")
    snapshot = fetch(wanted)
    return snapshot.folder, wanted.name, f"{wanted.name}@{snapshot.short_commit}"


def _inputs(network: Any, config: Any, pair: PairLayout) -> tuple[str, ...]:
    """Return the names of the network's inputs.

    Token types are one of the inputs if the network accepts them and has at least two types, and if the context has a
    different type than the question. The tokenizer's list of inputs is not used, because for ALBERT and others it lacks
    token types that the training used.
    """
    accepted = inspect.signature(network.forward).parameters
    typed = "token_type_ids" in accepted and pair.context_type == 1 and getattr(config, "type_vocab_size", 0) > 1
    return ("input_ids", "attention_mask", "token_type_ids") if typed else ("input_ids", "attention_mask")


def _pad_id(tokenizer: Any, config: Any, pair: PairLayout) -> int:
    """Return the id of the token that pads batches.

    If neither the tokenizer nor the config names a pad token, return the last special token of a pair. Any token works,
    because padding is masked.
    """
    named = (tokenizer.pad_token_id, getattr(config, "pad_token_id", None))
    return next((int(found) for found in named if found is not None), pair.tail[-1])


def _max_tokens(network: Any, config: Any, tokenizer: Any) -> int:
    """Return the length of the longest input in tokens.

    The first position of RoBERTa and similar networks is the id after the pad id. So with the pad id 1, a table of 514
    positions is enough for 512 tokens.
    """
    limits = [MAX_TOKENS, int(tokenizer.model_max_length)]
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions > 0:
        limits.append(int(positions))
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(len(module.weight) - module.padding_idx - 1)
    return min(limits)


def torch_runner(network: Any, threads: int | None = None) -> Runner:
    """Return a function that runs the network in plain PyTorch and float32. Its logits are the reference for the
    exported file.

    Args:
        threads: the number of PyTorch's threads in this process; None leaves it unchanged.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)

    def run(arrays: Arrays) -> Logits:
        with torch.inference_mode():
            output = network(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        return output.start_logits.numpy(), output.end_logits.numpy()

    return run


def _loading(what: str, source: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    # The message of torch is not shown, because it explains how to run the code in the file.
    except UnpicklingError as error:
        raise ModelError(
            f"cannot load {what} of {source!r}: its pickled file is damaged, or contains objects other than tensors, "
            "which are not read: use a checkpoint with model.safetensors"
        ) from error
    except Exception as error:  # corrupt files raise anything from OSError to safetensors' own types
        raise ModelError(f"cannot load {what} of {source!r}: {one_line(error)}") from error


def _config(folder: Path, source: str) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    stated = _loading("config", source, lambda: json.loads((folder / "config.json").read_text(encoding="utf-8")))
    kind = stated.get("model_type") if isinstance(stated, dict) else None
    if kind not in CONFIG_MAPPING:
        own_code = isinstance(stated, dict) and "auto_map" in stated
        raise ModelError(
            f"{source!r} has the architecture {kind!r}, which transformers {version('transformers')} does not support"
            + ("; the code in the checkpoint is never run" if own_code else "")
        )
    config = _loading("config", source, lambda: AutoConfig.from_pretrained(folder, **LOCAL))
    architectures = config.architectures or []
    if not any(name.endswith("ForQuestionAnswering") for name in architectures):
        raise ModelError(
            f"{source!r} has no question-answering head: its config names "
            f"{', '.join(architectures) or 'no architecture'}, must name a ...ForQuestionAnswering"
        )
    return config


def _network(folder: Path, source: str) -> Any:
    import torch
    from transformers import AutoModelForQuestionAnswering

    with without_bars():
        network, info = _loading(
            "weights",
            source,
            lambda: AutoModelForQuestionAnswering.from_pretrained(
                folder,
                **LOCAL,
                weights_only=True,
                attn_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
            ),
        )
    require_weights(info, source)
    return network.eval()


def _tokenizer(folder: Path, source: str, family: str) -> Any:
    """Load the tokenizer of a checkpoint.

    If the checkpoint has a `tokenizer.json`, the tokenizer works as this file says. Raises ModelError if it cannot be
    loaded, or is not a fast tokenizer.
    """
    from transformers import AutoTokenizer

    stored = folder / _TOKENIZER_FILE
    if not stored.is_file():
        _require_vocabulary(folder, source, family)
    tokenizer = _loading("tokenizer", source, lambda: AutoTokenizer.from_pretrained(folder, **LOCAL))
    if not tokenizer.is_fast:
        raise ModelError(f"tokenizer of {source!r} is a {type(tokenizer).__name__}: only fast tokenizers have offsets")
    if stored.is_file():
        _loading("tokenizer", source, lambda: use_stored(tokenizer, stored))
    return tokenizer


def _require_vocabulary(folder: Path, source: str, family: str) -> None:
    """Raise ModelError if the tokenizer of a checkpoint cannot be built without `tokenizer.json`.

    This is the case if the vocabulary is missing, or if transformers 5 would build a tokenizer from the vocabulary that
    differs from the tokenizer of the training.
    """
    found = [name for name in (*_VOCABULARIES, *_PIECE_MODELS) if (folder / name).is_file()]
    if not found:
        raise ModelError(f"{source!r} has no tokenizer.json and no vocabulary")
    if family in _RELAID or found[0] in _PIECE_MODELS:
        raise ModelError(
            f"{source!r} has no tokenizer.json, and {found[0]} alone does not define the tokenizer: write the file "
            "with transformers 4, AutoTokenizer.from_pretrained(..).save_pretrained(..)"
        )


def _require_embeddings(network: Any, backend: Any, source: str) -> None:
    """Raise ModelError if the tokenizer has a token for which the network has no embedding.

    Such a tokenizer belongs to a different network. A token without an embedding would make runs of the network fail,
    or read wrong memory.
    """
    rows = len(network.get_input_embeddings().weight)
    token, last = max(backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    if last >= rows:
        raise ModelError(
            f"tokenizer of {source!r} does not belong to its weights: token {token!r} has the id {last}, but the "
            f"network has {rows} tokens"
        )


def _licence(folder: Path) -> str:
    card = folder / "README.md"
    found = _LICENCE.search(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else None
    return found.group(1).strip() if found else "not stated"


def parameter_bytes(network: Any) -> int:
    """Return the size of the network's float32 weights in bytes."""
    return sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
