"""Reads a reader from three files in a folder, and checks them before anything is sent to a shard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, ModelError
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest

MAX_ID_BYTES = 400


@dataclass(frozen=True)
class ReaderFiles:
    """ONNX file, tokenizer and manifest, checked to belong together."""

    model: bytes
    tokenizer: bytes
    manifest_text: str
    manifest: Manifest

    @property
    def tag(self) -> str:
        """The TAG of the stored model."""
        return self.manifest.name


def budget_of(settings: Settings) -> int | None:
    """The context budget in the settings; None means the manifest's."""
    return None if settings.context_tokens < 0 else settings.context_tokens


def read_reader(folder: Path, context_tokens: int | None = None, model_id: str | None = None) -> ReaderFiles:
    """Read the reader in `folder`; ModelError names what is missing, damaged or does not fit together.

    `context_tokens` replaces the manifest's budget for a sentence with its neighbours, `model_id` its id.
    """
    manifest, model, tokenizer = _read(folder)
    _check_onnx(folder / MODEL_FILE, manifest)
    if context_tokens is not None:
        if not 0 <= context_tokens <= manifest.max_tokens:
            raise ConfigError(
                f"context tokens must be from 0 to {manifest.max_tokens}, what {manifest.name} can read at once,"
                f" got {context_tokens}"
            )
        manifest = replace(manifest, context_tokens=context_tokens)
    if model_id is not None:
        manifest = replace(manifest, model_id=model_id)
    name = manifest.model_id
    if not name or not name.isprintable() or "@" in name or len(name.encode()) > MAX_ID_BYTES:
        raise ConfigError(
            f"a reader's id must have 1 to {MAX_ID_BYTES} bytes, without '@' and control characters, got"
            f" {ascii(name)[:100]}: give it another one with --name"
        )
    return ReaderFiles(model, tokenizer, manifest.to_json(), manifest)


def _read(folder: Path) -> tuple[Manifest, bytes, bytes]:
    """The manifest, ONNX file and tokenizer, checked to belong together."""
    from qa_cluster.reading.tokenization import ReaderTokenizer  # late: few commands read the files of a reader

    if not (folder / MANIFEST_FILE).is_file():
        raise ModelError(f"{str(folder)!r} has no {MANIFEST_FILE}: name a folder that `qa-cluster model export` wrote")
    try:
        manifest = Manifest.load(folder / MANIFEST_FILE)
        model = (folder / MODEL_FILE).read_bytes()
        tokenizer = (folder / TOKENIZER_FILE).read_bytes()
        manifest.verify(model, tokenizer)
        ReaderTokenizer(tokenizer)
    except OSError as error:
        raise ModelError(f"cannot read {error.filename!r}: {error.strerror}") from error
    except ModelError as error:
        raise ModelError(f"{error}: copy {str(folder)!r} again, or export it again") from error
    return manifest, model, tokenizer


def _check_onnx(path: Path, manifest: Manifest) -> None:
    """Raise ModelError unless a runtime can read the file: it may have the manifest's hash and still not be a model."""
    inputs, outputs = _ports(path)
    for what, found, wanted in (("input", inputs, manifest.inputs), ("output", outputs, manifest.outputs)):
        if list(found) != list(wanted):  # workers use their order
            raise ModelError(
                f"{str(path)!r} has the {what}s {', '.join(found)}, its manifest names {', '.join(wanted)}"
            )
        for name, shape in found.items():
            if shape != (None, None):
                found_shape = ", ".join("any" if dim is None else str(dim) for dim in shape)
                raise ModelError(
                    f"{str(path)!r} has the {what} {name} of shape [{found_shape}], it must be [any, any]: shards put "
                    "sentences of any length into batches of any size, export it with free dimensions"
                )


_Shapes = dict[str, tuple[int | None, ...]]


def _ports(path: Path) -> tuple[_Shapes, _Shapes]:
    """A model's inputs and outputs by name, with their shapes (None: any), from the runtime that a worker would use."""
    from qa_cluster.reading.lean_openvino import openvino

    try:
        # Other frontends must not try to read it: TensorFlow's accepts text, and prints its complaints.
        if not openvino.frontend.FrontEndManager().load_by_framework("onnx").supported(str(path)):
            raise ModelError("no ONNX file")
        model = openvino.Core().read_model(str(path))

        def shapes(ports: Iterable[Any]) -> _Shapes:
            return {
                port.any_name: tuple(None if dim.is_dynamic else dim.get_length() for dim in port.partial_shape)
                for port in ports
            }

        return shapes(model.inputs), shapes(model.outputs)
    except Exception:  # OpenVINO raises bare RuntimeError; the other runtime may accept the file
        import onnxruntime

        try:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors have no common type of their own
            cause = " ".join(str(error).split())[:300]
            raise ModelError(f"{str(path)!r} cannot be read as an ONNX model, export it again: {cause}") from error

        def declared(ports: Iterable[Any]) -> _Shapes:
            return {port.name: tuple(dim if isinstance(dim, int) else None for dim in port.shape) for port in ports}

        return declared(session.get_inputs()), declared(session.get_outputs())
