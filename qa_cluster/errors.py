"""The errors that qa-cluster raises, grouped by what the caller can do about them.

::

    QAError
    ├── RequestError            the request is at fault: change it
    │   ├── InvalidInput        ERR        422
    │   ├── InputTooLong        TOOLONG    413
    │   ├── NotFound            NOTFOUND   404
    │   ├── AccessDenied        FORBIDDEN  403  the API key is missing or wrong (401), or lacks the right
    │   ├── VersionConflict     CONFLICT   412  not sent over RESP
    │   └── CollectionBusy      DELETING   409  not sent over RESP
    ├── CapacityError           retry later
    │   ├── QueueFull           OVERLOADED 503
    │   ├── DeadlineExceeded    DEADLINE   504
    │   └── LimitReached        LIMIT      429  a limit of the API key
    ├── WorkerError             the shard's worker is at fault: retry, except after InferenceFailed
    │   ├── NoWorker            NOWORKER   503
    │   ├── WorkerLost          WORKERLOST 503
    │   └── InferenceFailed     INFERENCE  500
    ├── ModelError              MODEL      503  a model, manifest or tokenizer is missing or unusable
    ├── ProtocolError           PROTOCOL   502  module and worker use different protocol versions
    ├── ClusterError            CLUSTER    503  the cluster cannot be reached or lacks something
    │   ├── CannotWrite         CLUSTER    503  a server accepts no writes: disk, memory or replicas
    │   └── MissingRights       CLUSTER    503  the cluster's user lacks rights: an operator must grant them
    └── ConfigError             CONFIG     500  a setting is wrong; raised at start

Each leaf has a code on the wire (RESP), an HTTP status, and a flag that says whether a retry of the same request may
succeed. `from_reply` turns the text of a RESP error back into the class. Other modules define subclasses of these
classes.
"""

from __future__ import annotations

from typing import Self


class ReplyError(Exception):
    """An error reply of a server; `str()` returns its text, which starts with the error code."""

    @property
    def code(self) -> str:
        """The first word of the reply, e.g. ``MOVED``."""
        return str(self).partition(" ")[0]


class QAError(Exception):
    """Base of all errors of this package.

    Attributes:
        resp_code: the first word of the error on the wire, that is, in a RESP error reply.
        http_status: the status of the HTTP response that reports the error.
        retryable: whether a retry of the same request may succeed.
        retry_after_seconds: the seconds to wait before the retry; None if unknown.
    """

    resp_code = "ERR"
    http_status = 500
    retryable = False
    retry_after_seconds: float | None = None

    def resp(self) -> str:
        """Return the error as the line of a RESP error reply: the code, a space and the text."""
        return f"{self.resp_code} {' '.join(str(self).split())}"


class RequestError(QAError):
    """The request is wrong: change it before a retry."""

    http_status = 422


class InvalidInput(RequestError):
    """A value is malformed, out of range or of the wrong type.

    `place` is the path of the wrong field in the request, such as ``top_k`` or ``filters/conditions/0/value``. It is
    empty if the path is unknown or no single field is wrong.
    """

    def __init__(self, *said: object, place: str = "") -> None:
        super().__init__(*said)
        self.place = place


class InputTooLong(RequestError):
    """A text, body or model exceeds a limit."""

    resp_code = "TOOLONG"
    http_status = 413


class NotFound(RequestError):
    """The request names something that does not exist, such as a document or a model."""

    resp_code = "NOTFOUND"
    http_status = 404


class AccessDenied(RequestError):
    """The REST service refuses the request's API key: it is missing, invalid, or lacks the right.

    For an error of a REST client, `http_status` is 401 if the key is missing, unknown, revoked or expired.
    """

    resp_code = "FORBIDDEN"
    http_status = 403


class VersionConflict(RequestError):
    """The stored document does not have the version that the request requires (`if_version`)."""

    resp_code = "CONFLICT"
    http_status = 412


class CollectionBusy(RequestError):
    """The collection is being deleted. It can be created again when the deletion has ended."""

    resp_code = "DELETING"
    http_status = 409


class CapacityError(QAError):
    """The system has no capacity or time for the request now."""

    retryable = True
    http_status = 503
    retry_after_seconds = 1.0


class QueueFull(CapacityError):
    """A bounded queue is full."""

    resp_code = "OVERLOADED"


class DeadlineExceeded(CapacityError):
    """The timeout of the request expired before the answer was ready."""

    resp_code = "DEADLINE"
    http_status = 504


class LimitReached(CapacityError):
    """The API key has reached a limit. The limit allows a request again after `retry_after_seconds`."""

    resp_code = "LIMIT"
    http_status = 429


class WorkerError(QAError):
    """The worker of a shard could not do the job."""

    retryable = True
    http_status = 503
    retry_after_seconds: float | None = 1.0


class NoWorker(WorkerError):
    """The shard has no worker that is ready."""

    resp_code = "NOWORKER"


class WorkerLost(WorkerError):
    """Two workers, one after the other, died during this job."""

    resp_code = "WORKERLOST"


class InferenceFailed(WorkerError):
    """The model or a function raised an error."""

    resp_code = "INFERENCE"
    http_status = 500
    retryable = False
    retry_after_seconds: float | None = None


class ModelError(QAError):
    """A model, manifest or tokenizer is missing, corrupt or of an unsupported kind."""

    resp_code = "MODEL"
    http_status = 503


class ProtocolError(QAError):
    """A peer uses a different version of the protocol, or sends invalid messages."""

    resp_code = "PROTOCOL"
    http_status = 502


class ClusterError(QAError):
    """The cluster cannot be reached, does not serve all slots, or lacks the module, a model or the functions."""

    resp_code = "CLUSTER"
    http_status = 503
    retryable = True
    retry_after_seconds: float | None = 1.0


class CannotWrite(ClusterError):
    """A server responds, but accepts no writes and runs no functions.

    Its disk or its memory is full, or replicas are missing.

    `address` is the address of the server; None if it is unknown.
    """

    address: object = None

    def at(self, address: object) -> Self:
        """Set the address of the server and return the error."""
        self.address = address
        return self


class MissingRights(ClusterError):
    """A server refused a command because the cluster's user lacks rights. The error text names the missing rights."""

    retryable = False
    retry_after_seconds: float | None = None


class ConfigError(QAError):
    """A setting is unknown, of the wrong type or out of range, or names a file that cannot be used."""

    resp_code = "CONFIG"


LEAVES: tuple[type[QAError], ...] = (
    InvalidInput,
    InputTooLong,
    NotFound,
    AccessDenied,
    QueueFull,
    DeadlineExceeded,
    LimitReached,
    NoWorker,
    WorkerLost,
    InferenceFailed,
    ModelError,
    ProtocolError,
    ClusterError,
    ConfigError,
)

_BY_CODE = {leaf.resp_code: leaf for leaf in LEAVES}
# Error codes of a server that accepts no writes, and what an operator can do about each.
_REMEDIES = {
    "MISCONF": "read the server's log and check its `dir`; writes resume as soon as the disk works",
    "NOREPLICAS": "restore its replicas, or lower min-replicas-to-write",
    "OOM": "raise its maxmemory, or add shards",
}
_DISK_FULL = "No space left on device"
# Error codes with which a server reports its own fault. The command itself is valid.
_SERVER_CODES = frozenset({"BUSY", "MISCONF", "NOREPLICAS", "OOM"})
_RIGHTS_CODES = frozenset({"NOAUTH", "NOPERM"})


def remedy(refusal: str) -> str:
    """Return a text that explains why a server refuses writes and what to do.

    `refusal` is the server's error reply. It must start with MISCONF, NOREPLICAS or OOM.

    >>> remedy("MISCONF Errors writing to the AOF file: No space left on device")
    'disk is full (MISCONF): free space on the disk of its `dir`; writes then resume automatically'
    """
    code, _, rest = refusal.partition(" ")
    if code == "MISCONF" and _DISK_FULL in rest:
        return "disk is full (MISCONF): free space on the disk of its `dir`; writes then resume automatically"
    names = {"MISCONF": "saving to disk fails", "NOREPLICAS": "too few replicas", "OOM": "memory is full"}
    return f"{names[code]} ({code}{': ' + rest if rest else ''}): {_REMEDIES[code]}"


def from_reply(text: str) -> QAError:
    """Return the error object for the text of a RESP error reply.

    The text may lack a leading ``ERR``, because redis-py strips it. The class depends on the code:

    - a code of the classes in `LEAVES`: this class, with the text after the code
    - the server accepts no writes: `CannotWrite`, with a text that says what to do
    - the user lacks rights: `MissingRights`, with the whole text of the reply
    - another fault of the server: `ClusterError`, with the whole text of the reply
    - an unknown code, or no text after the code: `InvalidInput`, with the whole text of the reply

    >>> from_reply("OVERLOADED queue is full: 1024 jobs")
    QueueFull('queue is full: 1024 jobs')
    """
    code, _, rest = text.partition(" ")
    if code in _REMEDIES:
        return CannotWrite(f"a shard cannot write: {remedy(text)}")
    if code in _RIGHTS_CODES:
        return MissingRights(text)
    if code in _SERVER_CODES:
        return ClusterError(text)
    leaf = _BY_CODE.get(code)
    return leaf(rest) if leaf is not None and rest else InvalidInput(text)
