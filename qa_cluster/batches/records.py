"""The records of batches and of their files: limits, the stored form, and the form of OpenAI's interface."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson

from qa_cluster.config import Settings
from qa_cluster.errors import InvalidInput

# The owner of files and batches that clients create without an API key.
ANONYMOUS_OWNER = "anonymous"
# Each part of an uploaded file, except the last, has this size. Each part of a result file, except the last, has at
# least this size.
PART_BYTES = 256 * 1024
BATCH, BATCH_OUTPUT = "batch", "batch_output"
QA, SEARCH = "/qa", "/search"
ENDPOINTS = (QA, SEARCH)
VALIDATING, IN_PROGRESS, CANCELLING = "validating", "in_progress", "cancelling"
COMPLETED, FAILED, EXPIRED, CANCELLED = "completed", "failed", "expired", "cancelled"
OPEN = (VALIDATING, IN_PROGRESS, CANCELLING)
STATUSES = (*OPEN, COMPLETED, FAILED, EXPIRED, CANCELLED)
_TIMES = (
    *("in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at"),
    "cancelled_at",
)
MAX_HOURS = 168
MAX_METADATA_FIELDS, MAX_METADATA_NAME, MAX_METADATA_VALUE = 16, 64, 512
_FILE_ID = re.compile(r"file-[0-9a-f]{24}\Z")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{24}\Z")
_OWNER = re.compile(rf"(?:[0-9a-f]{{12}}|{ANONYMOUS_OWNER})\Z")
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h\Z")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of files and batches for each API key.

    Attributes:
        file_bytes: the size of an uploaded file.
        key_bytes: the sum of the sizes of all files of a key.
        lines: the number of requests of a batch; each line of its input file is a request.
        open: the number of unfinished batches of a key.
        concurrency: the number of requests of a key's batches that run at the same time.
        retry_seconds: how long a request is retried while shards are down or at their capacity.
        ttl_seconds: the lifetime of a file, and of an ended batch with its results.
    """

    file_bytes: int = Settings.batch_file_max_bytes
    key_bytes: int = Settings.batch_key_max_bytes
    lines: int = Settings.batch_lines_max
    open: int = Settings.batch_open_max
    concurrency: int = Settings.batch_concurrency
    retry_seconds: float = Settings.batch_retry_s
    ttl_seconds: int = Settings.batch_ttl_s

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that the settings contain."""
        return cls(
            settings.batch_file_max_bytes,
            settings.batch_key_max_bytes,
            settings.batch_lines_max,
            settings.batch_open_max,
            settings.batch_concurrency,
            settings.batch_retry_s,
            settings.batch_ttl_s,
        )


def owner_of(key_id: str) -> str:
    """Return the owner of the files and batches of an API key. `key_id` is empty for a request without an API key."""
    return key_id or ANONYMOUS_OWNER


def is_owner(text: str) -> bool:
    """Return whether a text is the name of an owner: the form of the id of an API key, or `ANONYMOUS_OWNER`."""
    return _OWNER.match(text) is not None


def new_file_id() -> str:
    """Return a random id for a file."""
    return f"file-{secrets.token_hex(12)}"


def new_batch_id() -> str:
    """Return a random id for a batch."""
    return f"batch_{secrets.token_hex(12)}"


def is_file_id(text: object) -> bool:
    """Return whether `text` has the form of an id from `new_file_id`."""
    return isinstance(text, str) and _FILE_ID.match(text) is not None


def is_batch_id(text: object) -> bool:
    """Return whether `text` has the form of an id from `new_batch_id`."""
    return isinstance(text, str) and _BATCH_ID.match(text) is not None


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file: the input or a result of a batch. Times are seconds since 1970.

    Attributes:
        bytes: the size of the file.
        parts: the number of parts in which the cluster stores the file.
        purpose: `BATCH` for an input file, `BATCH_OUTPUT` for a result file.
    """

    id: str
    bytes: int
    parts: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str

    @classmethod
    def from_fields(cls, file_id: str, fields: Mapping[str, str]) -> Self:
        """Create the record from the fields of its hash in the cluster."""
        size, parts, created, expires = (int(fields[name]) for name in ("bytes", "parts", "created_at", "expires_at"))
        return cls(file_id, size, parts, created, expires, fields["filename"], fields["purpose"])

    def fields(self) -> list[str | int]:
        """Return the fields of the record's hash in the cluster. Names and values alternate."""
        values = asdict(self)
        del values["id"]
        return [item for pair in values.items() for item in pair]

    def to_dict(self) -> dict[str, Any]:
        """Return the file in the form of OpenAI's interface."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A client's request to create a batch; `check` validates it.

    Attributes:
        endpoint: one of `ENDPOINTS`.
        completion_window: the time in which the batch may run, in hours, such as ``24h``.
        metadata: names and values of the client, which the service returns with the batch.
    """

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str]

    @property
    def window_seconds(self) -> int:
        """The time in seconds after which the batch expires; 0 if `completion_window` has the wrong form."""
        match = _WINDOW.match(self.completion_window)
        return 3600 * int(match[1]) if match else 0

    def check(self) -> Self:
        """Return the request if it is valid; otherwise InvalidInput names the wrong field."""
        if not is_file_id(self.input_file_id):
            raise InvalidInput(
                f"input_file_id must be the id of a file of POST /v1/files, got {self.input_file_id!r}"[:200],
                place="input_file_id",
            )
        if self.endpoint not in ENDPOINTS:
            raise InvalidInput(
                f"endpoint must be one of {', '.join(ENDPOINTS)}, got {self.endpoint!r}"[:200], place="endpoint"
            )
        if not 0 < self.window_seconds <= MAX_HOURS * 3600:
            raise InvalidInput(
                f"completion_window must be 1h to {MAX_HOURS}h, such as 24h, got {self.completion_window!r}"[:200],
                place="completion_window",
            )
        if len(self.metadata) > MAX_METADATA_FIELDS or any(
            not isinstance(value, str) or len(name) > MAX_METADATA_NAME or len(value) > MAX_METADATA_VALUE
            for name, value in self.metadata.items()
        ):
            raise InvalidInput(
                f"metadata must have at most {MAX_METADATA_FIELDS} fields, names of at most {MAX_METADATA_NAME}"
                f" characters, and strings of at most {MAX_METADATA_VALUE} characters",
                place="metadata",
            )
        return self


@dataclass(frozen=True, slots=True)
class ResultFile:
    """The file of outputs or of errors that a running batch writes. `last` is the size of its last part in bytes."""

    id: str
    bytes: int
    parts: int
    last: int


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The numbers of the stored batches and their requests, for all owners.

    Attributes:
        batches: the number of batches, by status.
        oldest_open: when the oldest open batch was created, in seconds since 1970; None if no batch is open.
        pending: the number of requests of open batches that have no result yet.
        completed, failed: the numbers of successful and of failed requests of all batches.
    """

    batches: Mapping[str, int]
    oldest_open: int | None
    pending: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch. Times are seconds since 1970.

    Attributes:
        times: the time of each change of the status, by OpenAI's names. ``expires_at`` is in the future at first.
        total: the number of requests; 0 until the input file was validated.
        completed, failed: the numbers of successful and of failed requests.
        done: the number of lines whose results are recorded.
        offset: the offset in the input file of the first line that is not done, in bytes.
        output, error: the files of outputs and of errors that the running batch writes.
        output_file_id, error_file_id: the ids of these files after the end of the batch. None: the batch has not ended,
            or the file is empty.
        errors: the errors of the input file or of the whole batch; empty if the batch has no such error.
        keep_until: when the batch and its results expire.
    """

    id: str
    owner: str
    request: BatchRequest
    status: str
    created_at: int
    times: Mapping[str, int]
    total: int
    completed: int
    failed: int
    done: int
    offset: int
    output: ResultFile
    error: ResultFile
    output_file_id: str | None
    error_file_id: str | None
    errors: Sequence[Mapping[str, Any]]
    keep_until: int

    @classmethod
    def from_fields(cls, batch_id: str, owner: str, fields: Mapping[str, str]) -> Self:
        """Create the record from the fields of its hash in the cluster."""

        def result(name: str) -> ResultFile:
            numbers = (int(fields[f"{name}_{what}"]) for what in ("bytes", "parts", "last"))
            return ResultFile(fields[f"{name}_file"], *numbers)

        request = BatchRequest(
            fields["input_file_id"],
            fields["endpoint"],
            fields["completion_window"],
            orjson.loads(fields["metadata"]),
        )
        total, completed, failed, done, offset = (
            int(fields[name]) for name in ("total", "completed", "failed", "done", "offset")
        )
        return cls(
            batch_id,
            owner,
            request,
            fields["status"],
            int(fields["created_at"]),
            {name: int(fields[name]) for name in _TIMES if name in fields},
            total,
            completed,
            failed,
            done,
            offset,
            result("output"),
            result("error"),
            fields.get("output_file_id"),
            fields.get("error_file_id"),
            orjson.loads(fields.get("errors", "[]")),
            int(fields["keep_until"]),
        )

    @property
    def expires_at(self) -> int:
        """The time after which the batch starts no more requests."""
        return self.times["expires_at"]

    @property
    def is_open(self) -> bool:
        """Whether the batch has not ended."""
        return self.status in OPEN

    def to_dict(self) -> dict[str, Any]:
        """Return the batch in the form of OpenAI's interface."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.request.endpoint,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.request.input_file_id,
            "completion_window": self.request.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            **{name: self.times.get(name) for name in _TIMES},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": dict(self.request.metadata) or None,
        }


def new_batch_fields(request: BatchRequest, now: int, ttl_seconds: int) -> list[str | int]:
    """Return the fields of a new batch's hash in the cluster. Names and values alternate.

    `now` is the time of creation, in seconds since 1970. The batch and its results are kept until `ttl_seconds` after
    the batch expires.
    """
    expires = now + request.window_seconds
    values: dict[str, str | int] = {
        "input_file_id": request.input_file_id,
        "endpoint": request.endpoint,
        "completion_window": request.completion_window,
        "metadata": orjson.dumps(dict(request.metadata)).decode(),
        "status": VALIDATING,
        "created_at": now,
        "expires_at": expires,
        "keep_until": expires + ttl_seconds,
        **dict.fromkeys(("total", "completed", "failed", "done", "offset"), 0),
    }
    for name in ("output", "error"):
        values |= {f"{name}_file": new_file_id(), f"{name}_bytes": 0, f"{name}_parts": 0, f"{name}_last": 0}
    return [item for pair in values.items() for item in pair]
