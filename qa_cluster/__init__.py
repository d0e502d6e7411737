"""qa-cluster: question answering inside a Redis or Valkey Cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qa_cluster.huggingface.batch_reader import BatchReader
    from qa_cluster.huggingface.pipeline import pipeline

_FOLDER = Path(__file__).parent
# An installed package has the folders gears, models, api, cluster and integrations inside this folder. In a checkout,
# these folders are next to this folder. Python must then import `qa_cluster.gears` and the others from the checkout,
# because an installed package may have a different version.
if not (_FOLDER / "cluster").is_dir() and (_FOLDER.parent / "cluster" / "cli.py").is_file():
    __path__.append(str(_FOLDER.parent))

__version__ = "0.1.0"
__all__ = ["BatchReader", "__version__", "pipeline"]


def __getattr__(name: str) -> Any:
    # A late import: only programs that use the pipeline load numpy, tokenizers and their dependencies.
    if name == "pipeline":
        from qa_cluster.huggingface.pipeline import pipeline

        return pipeline
    if name == "BatchReader":
        from qa_cluster.huggingface.batch_reader import BatchReader

        return BatchReader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
