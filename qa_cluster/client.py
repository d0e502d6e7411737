"""The public names for programs that ask: clients, results and errors.

>>> from qa_cluster.client import Client
"""

from qa_cluster.cluster_client import AsyncClusterClient, ClusterClient, ClusterStatus
from qa_cluster.document_store import VersionConflict
from qa_cluster.errors import (
    ClusterError,
    DeadlineExceeded,
    InferenceFailed,
    InputTooLong,
    InvalidInput,
    ModelError,
    NotFound,
    NoWorker,
    QAError,
    QueueFull,
    WorkerLost,
)
from qa_cluster.loaded_readers import LoadedModel
from qa_cluster.questions import AskOptions
from qa_cluster.rest_client import AsyncClient, Client
from qa_cluster.types import Answer, AskResult, Document, WriteResult

__all__ = [
    "Answer",
    "AskOptions",
    "AskResult",
    "AsyncClient",
    "AsyncClusterClient",
    "Client",
    "ClusterClient",
    "ClusterError",
    "ClusterStatus",
    "DeadlineExceeded",
    "Document",
    "InferenceFailed",
    "InputTooLong",
    "InvalidInput",
    "LoadedModel",
    "ModelError",
    "NoWorker",
    "NotFound",
    "QAError",
    "QueueFull",
    "VersionConflict",
    "WorkerLost",
    "WriteResult",
]
