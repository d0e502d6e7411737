"""Model files outside any shard."""

from __future__ import annotations

from qa_cluster.gears.inference.backends.base import CompiledModel, RuntimeLimits
from qa_cluster.gears.inference.backends.choose import load_model
from qa_cluster.gears.inference.model_file import temporary_model_file


def load_bytes(backend: str, device: str, blob: bytes, limits: RuntimeLimits) -> CompiledModel:
    """Loads the model from these bytes."""
    with temporary_model_file([blob]) as file:
        return load_model(backend, device, file, limits)
