"""Reads the three files of a reader or an encoder from a folder, and checks them before they are sent to a shard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, ModelError
from qa_cluster.reading.bundled import unpacked
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE, AnyManifest, EncoderManifest, load_manifest

MAX_ID_BYTES = 400


@dataclass(frozen=True)
class ReaderFiles:
    """The ONNX file, the tokenizer and the manifest of a reader or an encoder, checked for consistency."""

    model: bytes
    tokenizer: bytes
    manifest_text: str
    manifest: AnyManifest

    @property
    def is_encoder(self) -> bool:
        """Whether the model makes vectors instead of answers."""
        return isinstance(self.manifest, EncoderManifest)

    @property
    def model_file(self) -> str:
        """The name of the ONNX file in the folder of the model."""
        return model_file(self.manifest)

    @property
    def tag(self) -> str:
        """The full name, ``<id>@<revision>``, which is the TAG of the stored model."""
        return self.manifest.name


def model_file(manifest: AnyManifest) -> str:
    """Return the name of the ONNX file that belongs to a manifest."""
    return ENCODER_FILE if isinstance(manifest, EncoderManifest) else MODEL_FILE


def budget_of(settings: Settings) -> int | None:
    """Return the context budget in the settings: the maximum tokens of a sentence with its neighbours.

    None means the budget of the reader's manifest.
    """
    return None if settings.context_tokens < 0 else settings.context_tokens


def read_reader(folder: Path, context_tokens: int | None = None, model_id: str | None = None) -> ReaderFiles:
    """Return the files of the reader or the encoder in `folder`. Raises ModelError, which says what is missing, damaged
    or inconsistent.

    `context_tokens` and `model_id` replace the context budget and the id of the manifest, unless they are None. Raises
    ConfigError if the budget or the id is not allowed. The vectors of an encoder depend on its budget, so this budget
    is never replaced.
    """
    with unpacked(folder) as files:
        manifest, model, tokenizer = _read(files, folder)
        _check_onnx(files / model_file(manifest), manifest)
    if context_tokens is not None and not isinstance(manifest, EncoderManifest):
        if not 0 <= context_tokens <= manifest.max_tokens:
            raise ConfigError(
                f"context tokens must be from 0 to {manifest.max_tokens}, the limit of {manifest.name}, got"
                f" {context_tokens}"
            )
        manifest = replace(manifest, context_tokens=context_tokens)
    if model_id is not None:
        manifest = replace(manifest, model_id=model_id)
    name = manifest.model_id
    if not name or not name.isprintable() or "@" in name or len(name.encode()) > MAX_ID_BYTES:
        raise ConfigError(
            f"the id of a reader must have 1 to {MAX_ID_BYTES} bytes without '@' and control characters, got"
            f" {ascii(name)[:100]}: choose another id with --name"
        )
    return ReaderFiles(model, tokenizer, manifest.to_json(), manifest)


def _read(files: Path, folder: Path) -> tuple[AnyManifest, bytes, bytes]:
    """Return the manifest, the ONNX file and the tokenizer in `files`, which is `folder` or its unpacked copy."""
    from qa_cluster.reading.tokenization import ReaderTokenizer  # few commands need this slow import

    if not (files / MANIFEST_FILE).is_file():
        raise ModelError(f"{str(folder)!r} has no {MANIFEST_FILE}: name a folder from `qa-cluster model export`")
    try:
        manifest = load_manifest(files / MANIFEST_FILE)
        model = (files / model_file(manifest)).read_bytes()
        tokenizer = (files / TOKENIZER_FILE).read_bytes()
        manifest.verify(model, tokenizer)
        ReaderTokenizer(tokenizer)
    except OSError as error:
        raise ModelError(f"cannot read {error.filename!r}: {error.strerror}") from error
    except ModelError as error:
        raise ModelError(f"{error}: copy {str(folder)!r} again, or export it again") from error
    return manifest, model, tokenizer


def _check_onnx(path: Path, manifest: AnyManifest) -> None:
    """Raise ModelError if the ONNX file does not have the inputs and outputs that the manifest names, with the shapes
    that shards need. Even a file with the correct hash can be unusable.
    """
    inputs, outputs = _ports(path)
    for what, found, wanted in (("input", inputs, manifest.inputs), ("output", outputs, manifest.outputs)):
        if list(found) != list(wanted):  # The order counts, because workers pass inputs by their order.
            raise ModelError(
                f"{str(path)!r} has the {what}s {', '.join(found)}, but its manifest names {', '.join(wanted)}: export"
                " it again"
            )
        needed = (None, manifest.dims) if what == "output" and isinstance(manifest, EncoderManifest) else (None, None)
        for name, shape in found.items():
            if shape != needed:
                found_shape = ", ".join("any" if dim is None else str(dim) for dim in shape)
                raise ModelError(
                    f"{str(path)!r} has the {what} {name} of shape [{found_shape}], but must have"
                    f" [any, {needed[1] or 'any'}], because shards run batches of any size and length: export it with"
                    " dynamic dimensions"
                )


_Shapes = dict[str, tuple[int | None, ...]]


def _ports(path: Path) -> tuple[_Shapes, _Shapes]:
    """Return the shapes of the inputs and of the outputs of an ONNX file, by name, as the runtime of a worker reads
    them. In a shape, None stands for a dimension of any size. Raises ModelError if no runtime can read the file.
    """
    from qa_cluster.reading.lean_openvino import openvino

    try:
        # Only the ONNX frontend may read the file, because the TensorFlow frontend accepts any text and prints errors.
        if not openvino.frontend.FrontEndManager().load_by_framework("onnx").supported(str(path)):
            raise ModelError("not an ONNX file")
        model = openvino.Core().read_model(str(path))

        def shapes(ports: Iterable[Any]) -> _Shapes:
            return {
                port.any_name: tuple(None if dim.is_dynamic else dim.get_length() for dim in port.partial_shape)
                for port in ports
            }

        return shapes(model.inputs), shapes(model.outputs)
    except Exception:  # OpenVINO raises RuntimeError; ONNX Runtime may accept the file
        import onnxruntime

        try:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # the errors of ONNX Runtime have no common base class
            cause = " ".join(str(error).split())[:300]
            raise ModelError(f"{str(path)!r} cannot be read as an ONNX model, export it again: {cause}") from error

        def declared(ports: Iterable[Any]) -> _Shapes:
            return {port.name: tuple(dim if isinstance(dim, int) else None for dim in port.shape) for port in ports}

        return declared(session.get_inputs()), declared(session.get_outputs())
