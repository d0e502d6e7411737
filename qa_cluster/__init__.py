"""qa-cluster: question answering inside a Redis or Valkey Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qa_cluster.huggingface.pipeline import pipeline

__version__ = "0.1.0"
__all__ = ["__version__", "pipeline"]


def __getattr__(name: str) -> Any:
    # numpy, tokenizers and what comes with them are loaded only for those who use it
    if name == "pipeline":
        from qa_cluster.huggingface.pipeline import pipeline

        return pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
