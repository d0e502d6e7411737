"""The public names for client programs: clients, results and errors.

>>> from qa_cluster.client import Client
"""

from qa_cluster.access.records import ApiKey, KeyLimits
from qa_cluster.asking.collections import CollectionBusy
from qa_cluster.asking.document_store import VersionConflict
from qa_cluster.asking.loaded_readers import LoadedModel
from qa_cluster.asking.questions import AskOptions, SearchOptions

from .clients.async_cluster_client import AsyncClusterClient, ClusterStatus
from .clients.async_rest_client import AsyncClient
from .clients.cluster_client import ClusterClient
from .clients.rest_calls import UploadArguments
from .clients.rest_client import Client
from .errors import (
    AccessDenied,
    ClusterError,
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
    WorkerLost,
)
from .types import (
    Answer,
    AskResult,
    CollectionEntry,
    Document,
    DocumentCounts,
    DocumentEntry,
    DocumentPage,
    Hit,
    Removal,
    SearchResult,
    Source,
    UploadedFile,
    WriteResult,
)

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
    "QAError",
    "QueueFull",
    "Removal",
    "SearchOptions",
    "SearchResult",
    "Source",
    "UploadArguments",
    "UploadedFile",
    "VersionConflict",
    "WorkerLost",
    "WriteResult",
]
