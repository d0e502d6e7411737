"""The fields of `/v1/files` and `/v1/batches`, and the OpenAPI description of their responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qa_cluster.batches.records import BATCH, BATCH_OUTPUT, ENDPOINTS, MAX_HOURS
from qa_cluster.batches.store import MAX_FILES

from .results import BOOLEAN, INTEGER, STRING, json_of, object_of
from .schemas import Field

MAX_BATCH_PAGE = 100
_ID_CHARS = 100
_NULL_STRING = {"type": ["string", "null"]}
_NULL_INTEGER = {"type": ["integer", "null"]}
_TIMES = (
    *("in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at"),
    "cancelled_at",
)


# The fields of the body that creates a batch.
BATCH_FIELDS = (
    Field("input_file_id", "string", "id of the file", required=True, minimum=1, maximum=_ID_CHARS),
    Field("endpoint", "string", "the route of all requests", required=True, choices=ENDPOINTS),
    Field(
        "completion_window",
        "string",
        f"time after which the batch expires: 1h to {MAX_HOURS}h, such as 24h",
        required=True,
        minimum=2,
        maximum=4,
    ),
    Field("metadata", "object", "up to 16 names with text values, returned with the batch"),
)
# The query parameters for the list of batches.
BATCH_LIST_PARAMETERS = (
    Field("after", "string", "id of the last batch of the previous page", minimum=1, maximum=_ID_CHARS),
    Field("limit", "integer", "maximum number of batches", default=20, minimum=1, maximum=MAX_BATCH_PAGE),
)
# The query parameters for the list of files.
FILE_LIST_PARAMETERS = (
    Field("after", "string", "id of the last file of the previous page", minimum=1, maximum=_ID_CHARS),
    Field("limit", "integer", "maximum number of files", minimum=1, maximum=10 * MAX_FILES),
    Field("order", "string", "order by creation time", default="desc", choices=("asc", "desc")),
    Field("purpose", "string", "only files with this purpose", choices=(BATCH, BATCH_OUTPUT)),
)
_FILE = object_of(
    {
        "id": STRING,
        "object": {"const": "file"},
        "bytes": INTEGER,
        "created_at": INTEGER,
        "expires_at": INTEGER,
        "filename": STRING,
        "purpose": {"enum": [BATCH, BATCH_OUTPUT]},
        "status": {"const": "processed"},
        "status_details": {"type": "null"},
    }
)
_BATCH = object_of(
    {
        "id": STRING,
        "object": {"const": "batch"},
        "endpoint": {"enum": list(ENDPOINTS)},
        "errors": {"type": ["object", "null"], "description": "the invalid lines of a failed batch"},
        "input_file_id": STRING,
        "completion_window": STRING,
        "status": STRING,
        "output_file_id": _NULL_STRING,
        "error_file_id": _NULL_STRING,
        "created_at": INTEGER,
        **dict.fromkeys(_TIMES, _NULL_INTEGER),
        "request_counts": object_of({"total": INTEGER, "completed": INTEGER, "failed": INTEGER}),
        "metadata": {"type": ["object", "null"]},
    }
)


def _page_of(name: str) -> dict[str, Any]:
    return object_of(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
            "first_id": _NULL_STRING,
            "last_id": _NULL_STRING,
            "has_more": BOOLEAN,
        }
    )


SCHEMAS: Mapping[str, Any] = {
    "BatchFile": _FILE,
    "BatchFiles": _page_of("BatchFile"),
    "BatchFileDeleted": object_of({"id": STRING, "object": {"const": "file"}, "deleted": BOOLEAN}),
    "Batch": _BATCH,
    "Batches": _page_of("Batch"),
    "OpenAIError": object_of(
        {
            "error": object_of(
                {
                    "message": STRING,
                    "type": STRING,
                    "param": _NULL_STRING,
                    "code": _NULL_STRING,
                    "request_id": STRING,
                }
            )
        }
    ),
}
UPLOAD = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": object_of(
                {
                    "file": {
                        "type": "string",
                        "contentMediaType": "application/octet-stream",
                        "description": "lines of JSON, each with custom_id, method, url and body",
                    },
                    "purpose": {"type": "string", "enum": [BATCH], "description": "what the file is for"},
                }
            )
        }
    },
}
_ERROR = json_of("OpenAIError")


def with_openai_errors(operation: dict[str, Any]) -> dict[str, Any]:
    """Add OpenAI's error format to each error response of an operation that has a problem document, and return it.

    The problem document stays in the description, too, because errors of a connection are not for a path below `/v1`
    and are always problem documents.
    """
    for response in operation["responses"].values():
        if "application/problem+json" in response.get("content", {}):
            response["content"] = response["content"] | _ERROR
    return operation
