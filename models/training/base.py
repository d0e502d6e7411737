"""Loads the network that a training run starts from, with its tokenizer.

The network is a question-answering checkpoint, or an encoder that gets a new head. torch and transformers belong to the
extra `train` and are imported only when they are needed. Code in a checkpoint is never run.
"""

import platform
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput, ModelError

from ..checkpoints.loading import one_line, quiet_transformers, require_packages
from ..checkpoints.reader_checkpoint import is_reader, write_reader_checkpoint
from ..checkpoints.stored_tokenizer import use_stored
from .settings import TrainingSettings

_EXTRA = ("torch", "transformers", "safetensors")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "data2vec-text")
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")


@dataclass(frozen=True, slots=True)
class BaseNetwork:
    """The network to train, and its tokenizer.

    Attributes:
        new_head: whether the span head (the layer that makes the start and end logits) has random weights, because the
            checkpoint has no such head.
        inputs: the names of the network's inputs.
        max_tokens: the length of the longest input in tokens. The network's positions and the tokenizer limit it.
    """

    network: Any
    tokenizer: Any
    new_head: bool
    inputs: tuple[str, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The device and arithmetic of a run.

    `device` is "cpu" or "cuda". `autocast` is the torch dtype of matrix products; None: float32.
    """

    device: str
    autocast: Any

    @property
    def precision(self) -> str:
        """The name of the arithmetic of matrix products."""
        return "float32" if self.autocast is None else str(self.autocast).removeprefix("torch.")


def require_train_extra() -> None:
    """Raise ModelError, which says what to install, if a package that training needs is missing."""
    require_packages("training", "train", _EXTRA)


def choose_machine(device: str, precision: str) -> Machine:
    """Return the device and arithmetic for the settings `device` and `precision`, each of which can be `auto`. Raises
    InvalidInput if the requested device is not available.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("device cuda: PyTorch finds no GPU on this machine; use --device cpu")
    chosen = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if chosen == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    wanted = precision == "bfloat16" or (precision == "auto" and fast)
    return Machine(chosen, torch.bfloat16 if wanted else None)


def load_base(source: str, settings: TrainingSettings, device: str) -> BaseNetwork:
    """Load a checkpoint or a reader from a local folder, or a checkpoint with a Hugging Face hub id.

    Raises ModelError if the checkpoint or reader cannot be used. Raises InvalidInput if the network reads fewer tokens
    than `settings.max_tokens`.
    """
    if source and is_reader(Path(source)):
        with tempfile.TemporaryDirectory() as checkpoint, quiet_transformers():
            write_reader_checkpoint(Path(source), Path(checkpoint))
            return load_base(checkpoint, settings, device)
    folder = Path(source)
    local = bool(source) and folder.is_dir()
    if not local and (folder.is_file() or _HUB_ID.fullmatch(source) is None):
        raise ModelError(f"no model folder {source!r}; a hub id has the form owner/name")
    config = _config(source, local, settings)
    tokenizer = _tokenizer(source, local)
    network, new_head = _network(source, local, config, settings.seed, device)
    limit = min(_positions(network.config), tokenizer.model_max_length)
    if limit < settings.max_tokens:
        raise InvalidInput(f"max_tokens is {settings.max_tokens}, but {source!r} reads at most {limit} tokens")
    if len(tokenizer) > network.get_input_embeddings().num_embeddings:
        raise ModelError(
            f"the tokenizer of {source!r} has {len(tokenizer)} tokens, but its network has "
            f"{network.get_input_embeddings().num_embeddings}: they do not belong together"
        )
    types = getattr(network.config, "type_vocab_size", 0) > 1  # some networks accept token types but have only one
    inputs = ("input_ids", "attention_mask", *(("token_type_ids",) if types else ()))
    return BaseNetwork(network, tokenizer, new_head, inputs, limit)


def _positions(config: Any) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return sys.maxsize
    # The first position of RoBERTa and similar networks is the id after the pad token's id.
    return positions - config.pad_token_id - 1 if config.model_type in _OFFSET_POSITIONS else positions


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which the result of a run depends, by name."""
    found = {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy", "qa-cluster")}
    return {"python": platform.python_version(), **found}


def _loading(what: str, source: str, local: bool, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # corrupt files raise anything from OSError to safetensors' own types
        where = "" if local else " (neither a local folder nor reachable on the hub)"
        raise ModelError(f"cannot load {what} of {source!r}{where}: {one_line(error)}") from error


def _tokenizer(source: str, local: bool) -> Any:
    from transformers import AutoTokenizer

    if local and not any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{source!r} has no tokenizer: it needs one of {', '.join(_TOKENIZER_FILES)}")
    files = {"local_files_only": local, "trust_remote_code": False}
    tokenizer = _loading("tokenizer", source, local, lambda: AutoTokenizer.from_pretrained(source, **files))
    if not tokenizer.is_fast:
        raise ModelError(f"tokenizer of {source!r} is a {type(tokenizer).__name__}: only fast tokenizers have offsets")
    stored = _loading("tokenizer", source, local, lambda: _stored_tokenizer(source, local))
    if stored is not None:
        _loading("tokenizer", source, local, lambda: use_stored(tokenizer, stored))
    if tokenizer.pad_token_id is None:
        raise ModelError(f"tokenizer of {source!r} has no pad token")
    pair = tokenizer("a", "b", return_special_tokens_mask=True)
    if not pair["special_tokens_mask"][0]:
        first = tokenizer.convert_ids_to_tokens(pair["input_ids"])[0]
        raise ModelError(
            f"tokenizer of {source!r} starts a pair with {first!r}, which is no special token: there is no position "
            "for 'no answer'"
        )
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    return tokenizer


def _stored_tokenizer(source: str, local: bool) -> Path | None:
    from transformers.utils import cached_file

    if local:
        path = Path(source) / _TOKENIZER_FILES[0]
        return path if path.is_file() else None
    found = cached_file(source, _TOKENIZER_FILES[0], _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _config(source: str, local: bool, settings: TrainingSettings) -> Any:
    from transformers import AutoConfig

    files = {"local_files_only": local, "trust_remote_code": False}
    config = _loading("config", source, local, lambda: AutoConfig.from_pretrained(source, **files))
    # the config of an encoder that comes from a classifier has a different number of outputs than a span head
    if config.num_labels != 2:
        config.num_labels = 2
    if settings.attention_dropout is not None:
        for name in _ATTENTION_DROPOUT:
            if hasattr(config, name):
                setattr(config, name, settings.attention_dropout)
    return config


def _network(source: str, local: bool, config: Any, seed: int, device: str) -> tuple[Any, bool]:
    import torch
    from transformers import AutoModelForQuestionAnswering

    torch.manual_seed(seed)  # for the weights of a new head
    with quiet_transformers():  # transformers writes a long warning about a new head
        network, info = _loading(
            "weights",
            source,
            local,
            lambda: AutoModelForQuestionAnswering.from_pretrained(
                source,
                config=config,
                local_files_only=local,
                trust_remote_code=False,
                # The fused kernels of the CPU have no fast backward pass.
                attn_implementation="eager" if device == "cpu" else "sdpa",
                dtype=torch.float32,
                output_loading_info=True,
            ),
        )
    missing = sorted(info["missing_keys"])
    inner = [name for name in missing if name.startswith(f"{network.base_model_prefix}.")]
    if inner:
        raise ModelError(f"weights of {source!r} lack {len(inner)} tensors of the encoder, for example {inner[0]!r}")
    return network, bool(missing)
