"""Loads a Hugging Face extractive question-answering checkpoint for export and refuses what is not one.

torch and transformers belong to the `export` extra and are imported only when a checkpoint is loaded. Remote code in a
checkpoint is never run.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError
from qa_cluster.manifest import PairLayout
from qa_cluster.runtimes import Logits, Runner
from qa_cluster.windows import Arrays

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("start_logits", "end_logits")
MAX_TOKENS = 512
_EXTRA = ("torch", "transformers", "onnx", "nncf")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_LICENCE = re.compile(r"\A---\n(?:.*\n)*?license:\s*(\S.*)\n(?:.*\n)*?---", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: the network and what the manifest must say about it."""

    network: Any
    name: str
    family: str
    tokenizer_json: str
    inputs: tuple[str, ...]
    max_tokens: int
    pad_id: int
    pair: PairLayout
    lowercase: bool
    licence: str


def require_export_extra() -> None:
    """Raise ModelError, saying what to install, unless everything the exporter needs can be imported."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"exporting a model needs {', '.join(missing)}: pip install 'qa-cluster[export]' -c constraints.txt"
        )


def load_checkpoint(source: str) -> Checkpoint:
    """Load a local folder, or else a Hugging Face hub id; ModelError says why it is refused."""
    require_export_extra()
    folder = Path(source)
    local = bool(source) and folder.is_dir()
    if not local and (folder.is_file() or _HUB_ID.fullmatch(source) is None):
        raise ModelError(f"no model folder {source!r}; a hub id has the form owner/name")
    config = _config(source, local)
    network = _network(source, local)
    tokenizer = _tokenizer(source, local)
    accepted = inspect.signature(network.forward).parameters
    inputs = tuple(name for name in INPUTS if name in accepted)
    if tokenizer.pad_token_id is None:
        raise ModelError(f"tokenizer of {source!r} has no pad token")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return Checkpoint(
        network=network,
        name=folder.resolve().name if local else source,
        family=config.model_type,
        tokenizer_json=backend.to_str(),
        inputs=inputs,
        max_tokens=min(int(getattr(config, "max_position_embeddings", MAX_TOKENS)), MAX_TOKENS),
        pad_id=tokenizer.pad_token_id,
        pair=_pair_layout(tokenizer, source),
        lowercase=backend.encode("QA", add_special_tokens=False).ids
        == backend.encode("qa", add_special_tokens=False).ids,
        licence=_licence(folder) if local else "see the model's page on the hub",
    )


def torch_runner(network: Any) -> Runner:
    """Return what runs the checkpoint in plain PyTorch, float32: the reference for the exported file."""
    import torch

    def run(arrays: Arrays) -> Logits:
        with torch.inference_mode():
            output = network(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        return output.start_logits.numpy(), output.end_logits.numpy()

    return run


def _loading(what: str, source: str, local: bool, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # corrupt files surface as anything from OSError to safetensors' own types
        cause = " ".join(str(error).split())[:300]
        where = "" if local else " (neither a local folder nor reachable on the hub)"
        raise ModelError(f"cannot load {what} of {source!r}{where}: {type(error).__name__}: {cause}") from error


def _config(source: str, local: bool) -> Any:
    from transformers import AutoConfig

    config = _loading("config", source, local, lambda: AutoConfig.from_pretrained(source, local_files_only=local))
    architectures = config.architectures or []
    if not any(name.endswith("ForQuestionAnswering") for name in architectures):
        raise ModelError(
            f"{source!r} has no question-answering head: its config names "
            f"{', '.join(architectures) or 'no architecture'}, must name one ...ForQuestionAnswering"
        )
    return config


def _network(source: str, local: bool) -> Any:
    import torch
    from transformers import AutoModelForQuestionAnswering
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        network, info = _loading(
            "weights",
            source,
            local,
            lambda: AutoModelForQuestionAnswering.from_pretrained(
                source,
                local_files_only=local,
                attn_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
            ),
        )
    finally:
        if bars:
            logging.enable_progress_bar()
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise ModelError(f"weights of {source!r} lack {len(missing)} tensors, the first is {missing[0]!r}")
    return network.eval()


def _tokenizer(source: str, local: bool) -> Any:
    from transformers import AutoTokenizer

    if local and not any((Path(source) / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise ModelError(f"{source!r} has no tokenizer.json and no vocab.txt")
    tokenizer = _loading(
        "tokenizer", source, local, lambda: AutoTokenizer.from_pretrained(source, local_files_only=local)
    )
    if not tokenizer.is_fast:
        raise ModelError(f"tokenizer of {source!r} is a {type(tokenizer).__name__}: only fast tokenizers give offsets")
    return tokenizer


def _pair_layout(tokenizer: Any, source: str) -> PairLayout:
    """Learn from the tokenizer how it joins two texts: shards do it themselves, from stored tokens."""
    backend = tokenizer.backend_tokenizer
    question = backend.encode("Who wrote it?", add_special_tokens=False).ids
    context = backend.encode("Ada wrote it.", add_special_tokens=False).ids
    joined = backend.encode("Who wrote it?", "Ada wrote it.")
    asked = _position(joined.ids, question, 0)
    answered = _position(joined.ids, context, asked + len(question)) if asked > 0 else -1
    end = answered + len(context)
    types = joined.type_ids
    if (
        answered <= asked + len(question)
        or end == len(joined.ids)
        or any(types[:answered])
        or len(set(types[answered:])) != 1
        or joined.ids[0] != tokenizer.cls_token_id
    ):
        raise ModelError(
            f"tokenizer of {source!r} does not lay out pairs as [CLS] question [SEP] context [SEP]: {joined.tokens}"
        )
    return PairLayout(
        head=tuple(joined.ids[:asked]),
        middle=tuple(joined.ids[asked + len(question) : answered]),
        tail=tuple(joined.ids[end:]),
        context_type=types[answered],
    )


def _position(ids: list[int], part: list[int], first: int) -> int:
    """Where `part` begins in `ids` from `first` on, -1 if nowhere."""
    return next((i for i in range(first, len(ids) - len(part) + 1) if ids[i : i + len(part)] == part), -1)


def _licence(folder: Path) -> str:
    card = folder / "README.md"
    found = _LICENCE.search(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else None
    return found.group(1).strip() if found else "not stated"


def parameter_bytes(network: Any) -> int:
    """Return how many bytes the network's float32 weights take."""
    return sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
