"""The public names for client programs: clients, results and errors.

>>> from qa_cluster.client import Client
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .clients.async_rest_client import AsyncClient
from .clients.rest_calls import UploadArguments
from .clients.rest_client import Client
from .clients.retry_policy import RetryPolicy
from .errors import (
    AccessDenied,
    ClusterError,
    CollectionBusy,
    DeadlineExceeded,
    InferenceFailed,
    InputTooLong,
    InvalidInput,
    LimitReached,
    ModelError,
    NotFound,
    NoWorker,
    QAError,
    QueueFull,
    VersionConflict,
    WorkerLost,
)
from .options.questions import AskOptions, SearchOptions
from .types import (
    Answer,
    AskResult,
    CollectionEntry,
    Document,
    DocumentCounts,
    DocumentEntry,
    DocumentPage,
    Feedback,
    FeedbackEntry,
    Hit,
    LoadedModel,
    Pin,
    Removal,
    SearchResult,
    Source,
    Synonyms,
    UnansweredQuestion,
    UploadedFile,
    WriteResult,
)

if TYPE_CHECKING:
    from .access.records import ApiKey, KeyLimits
    from .clients.async_cluster_client import AsyncClusterClient, ClusterStatus
    from .clients.cluster_client import ClusterClient

# The names that need the whole distribution, with their modules. A module is imported when a program first uses its
# name, so a program that only uses REST does not load it.
_OF_CLUSTER_CLIENTS = {
    "ApiKey": "access.records",
    "AsyncClusterClient": "clients.async_cluster_client",
    "ClusterClient": "clients.cluster_client",
    "ClusterStatus": "clients.async_cluster_client",
    "KeyLimits": "access.records",
}

__all__ = [
    "AccessDenied",
    "Answer",
    "ApiKey",
    "AskOptions",
    "AskResult",
    "AsyncClient",
    "AsyncClusterClient",
    "Client",
    "ClusterClient",
    "ClusterError",
    "ClusterStatus",
    "CollectionBusy",
    "CollectionEntry",
    "DeadlineExceeded",
    "Document",
    "DocumentCounts",
    "DocumentEntry",
    "DocumentPage",
    "Feedback",
    "FeedbackEntry",
    "Hit",
    "InferenceFailed",
    "InputTooLong",
    "InvalidInput",
    "KeyLimits",
    "LimitReached",
    "LoadedModel",
    "ModelError",
    "NoWorker",
    "NotFound",
    "Pin",
    "QAError",
    "QueueFull",
    "Removal",
    "RetryPolicy",
    "SearchOptions",
    "SearchResult",
    "Source",
    "Synonyms",
    "UnansweredQuestion",
    "UploadArguments",
    "UploadedFile",
    "VersionConflict",
    "WorkerLost",
    "WriteResult",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_CLUSTER_CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"qa_cluster.{_OF_CLUSTER_CLIENTS[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs the distribution qa-cluster, and {error.name} is missing. If qa-cluster-client is installed,"
            " uninstall it and install qa-cluster"
        ) from error
