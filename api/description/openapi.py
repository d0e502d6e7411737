"""Builds the OpenAPI description of the service from the tables that validate requests, and a page that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from qa_cluster.asking.questions import AskLimits
from qa_cluster.config import Settings
from qa_cluster.huggingface.request import PipelineLimits
from qa_cluster.keys import COLLECTION_PATTERN, MAX_COLLECTION_CHARS
from qa_cluster.options.questions import PARTIAL
from qa_cluster.ranking.filters import MAX_NAME_BYTES

from . import batches, inference, models, schemas
from .results import BOOLEAN, INTEGER, RESULTS, STRING, json_of, list_of, object_of, path_parameter
from .schemas import Field

_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_STATUS_TEXT = {
    "304": "not modified",
    "400": "malformed JSON, query string or request",
    "401": "the request needs a valid API key",
    "403": "the API key lacks the scope or does not allow the collection, or the request is from another origin's page",
    "404": "the document, collection, model or result does not exist, or, with cache=only, the answer is not cached",
    "408": "the request did not arrive in time",
    "409": "the collection is being deleted, or the state of the batch or file does not allow the request",
    "412": "the version of the document is not the version that the request requires",
    "413": "the question, a name or the body is too long, or the answer exceeds answer_max_bytes",
    "415": "the body has the wrong media type",
    "421": "the service does not accept requests for this host",
    "422": "a field is not valid",
    "429": "a limit of the API key is reached; see Retry-After, RateLimit-Policy and RateLimit",
    "431": "the head of the request is too long",
    "500": "the question failed",
    "502": "a shard sent an invalid response",
    "503": "the service is at its capacity, or a shard is down or not ready; see Retry-After",
    "504": "the request was not answered in time",
}


# Statuses that any request can get, because of the limits of connections or the checks of host and origin.
_ANY_REQUEST = ("400", "403", "408", "421", "431", "503")


_MODEL = object_of(
    {
        "object": {"const": "qa.model"},
        "name": {**STRING, "description": "id@revision"},
        "id": STRING,
        "revision": STRING,
        "default": {**BOOLEAN, "description": "whether this model answers questions that name no model"},
        "precision": STRING,
        "bytes": {**INTEGER, "description": "size of the ONNX file"},
        "context_tokens": {
            **INTEGER,
            "description": "maximum tokens of a sentence with its neighbours; 0: each sentence is read alone",
        },
        "warm": {**INTEGER, "description": "number of shards on which the model is ready"},
        "shards": INTEGER,
        "kind": {"enum": ["reader", "encoder"], "description": "an encoder makes vectors and answers no question"},
    }
)
_MODELS = list_of(_MODEL)
_SUBMISSION = object_of(
    {
        "object": {"const": "qa.submission"},
        "id": STRING,
        "state": {"const": "pending"},
        "expires": {**INTEGER, "description": "when the question expires, in seconds since 1970"},
        "detail": {**STRING, "description": "the last error, after which the question is retried; empty: no error"},
    }
)
_ALIVE = object_of({"alive": BOOLEAN})
_READINESS = object_of(
    {
        "ready": BOOLEAN,
        "detail": STRING,
        "cache_tracking": {**BOOLEAN, "description": "whether every shard reports its changes to the service"},
        "shards": {
            "type": "array",
            "items": object_of(
                {
                    "shard": STRING,
                    "address": STRING,
                    "ready": BOOLEAN,
                    "model": {**STRING, "description": "revision of the default model"},
                    "missing": {"type": "array", "items": STRING},
                }
            ),
        },
    },
    ["ready", "detail", "shards"],
)
_PROBLEM_SCHEMA = object_of(
    {
        "type": STRING,
        "title": STRING,
        "status": INTEGER,
        "detail": STRING,
        "instance": STRING,
        "code": {**STRING, "description": "error code for programs; VALIDATION for every 422"},
        "request_id": STRING,
        "errors": {
            "type": "array",
            "description": "each invalid field, with its pointer or parameter",
            "items": object_of(
                {
                    "pointer": {**STRING, "description": "a JSON pointer into the body"},
                    "parameter": {**STRING, "description": "the name of a parameter in the query string or the path"},
                    "detail": STRING,
                },
                ["detail"],
            ),
        },
    },
    ["type", "title", "status", "detail", "instance", "code", "request_id"],
)


# The statuses of the errors of a request with a query string, of a request that names only an object, and of a request
# with a body.
_QUERY = ("400", "404", "413", "422", "503", "504")
_OBJECT = ("404", "413", "422", "503", "504")
_BODY = (*_QUERY, "415")


def _parameters(fields: Sequence[Field]) -> list[dict[str, Any]]:
    return [{"name": field.name, "in": "query", "required": field.required, **_typed(field)} for field in fields]


def _typed(field: Field) -> dict[str, Any]:
    """Return the type of a query parameter. A parameter of the kind object contains JSON."""
    schema = field.schema()
    return {"content": {"application/json": {"schema": schema}}} if field.kind == "object" else {"schema": schema}


def _body(fields: Sequence[Field]) -> dict[str, Any]:
    """Return the description of a JSON object as body. A null field has the same meaning as a missing field."""
    schema = object_of({field.name: field.schema(null=not field.required) for field in fields})
    schema["required"] = [field.name for field in fields if field.required]
    return {"required": True, "content": {"application/json": {"schema": {**schema, "additionalProperties": False}}}}


def _operation(
    summary: str,
    ok: tuple[str, str | None],
    problems: Sequence[str] = (),
    *,
    status: str = "200",
    also: Mapping[str, tuple[str, str]] | None = None,
    query: Sequence[Field] = (),
    headers: Sequence[dict[str, Any]] = (),
    body: Sequence[Field] | dict[str, Any] = (),
) -> dict[str, Any]:
    """Return the description of an operation.

    Args:
        summary: what the operation does.
        ok: the description of the successful response, and the name of its schema; None if it has no body.
        problems: the statuses of the errors of the operation. If it is empty, the operation needs no API key. The
            statuses that any request can get are added.
        status: the status of the successful response.
        also: other successful statuses, each with its description and the name of its schema.
        query: the parameters in the query string.
        headers: the descriptions of the headers of the request.
        body: the fields of the JSON body, or the description of the body; empty if the request has no body.
    """
    responses: dict[str, Any] = {}
    for found, (text, name) in {status: ok, **(also or {})}.items():
        responses[found] = {"description": text}
        if name is not None:
            responses[found]["content"] = json_of(name)
    for error in sorted({*problems, *_ANY_REQUEST, *(("401", "429") if problems else ())} - responses.keys()):
        responses[error] = {"description": _STATUS_TEXT[error], **({} if error == "304" else {"content": _PROBLEM})}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if not problems:
        operation["security"] = []
    if query or headers:
        operation["parameters"] = [*_parameters(query), *headers]
    if body:
        operation["requestBody"] = body if isinstance(body, dict) else _body(body)
    return operation


_SCHEMAS = {
    **RESULTS,
    **inference.SCHEMAS,
    "Models": _MODELS,
    "Alive": _ALIVE,
    "Submission": _SUBMISSION,
    "Readiness": _READINESS,
    "PipelineAnswer": models.ANSWER,
    "PipelineResult": models.RESULT,
    "Problem": _PROBLEM_SCHEMA,
    **batches.SCHEMAS,
}
_FILES = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": object_of(
                {
                    "file": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "contentMediaType": "application/octet-stream"},
                        "description": "the files, each with its name; fields may have any name",
                    }
                }
            )
        }
    },
}
_KEY = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "qac_<id>_<secret>",
    "description": "an API key (`qa-cluster keys create`); required once the cluster has a key",
}
_COLLECTION_NAME = path_parameter("name", minLength=1, maxLength=MAX_COLLECTION_CHARS, pattern=COLLECTION_PATTERN)
_FIELD_NAME = path_parameter("field", minLength=1, maxLength=MAX_NAME_BYTES)
_RESULT_ID = path_parameter("id", "the id in the response with status 202", minLength=1)
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "schema": {**STRING, "examples": ["respond-async"]},
    "description": "respond-async: answer later; GET on the Location of the response returns the result",
}
_STATE = {
    "/livez": {"get": _operation("Check whether the process is running", ("the process is running", "Alive"))},
    "/readyz": {
        "get": _operation(
            "Check whether every shard can answer",
            ("every shard can answer", "Readiness"),
            also={"503": ("some shards cannot answer; missing lists the reasons", "Readiness")},
        )
    },
    "/metrics": {"get": _operation("Get the metrics for Prometheus", ("the metrics", None), ("503",))},
}
_STATE["/readyz"]["get"]["responses"]["503"]["content"] |= _PROBLEM
_STATE["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": STRING}}


def describe(
    version: str,
    limits: AskLimits,
    max_body_bytes: int,
    pipeline: PipelineLimits,
    *,
    coverage: str = PARTIAL,
    upload_timeout_ms: int = Settings.upload_timeout_ms,
) -> dict[str, Any]:
    """Return the whole OpenAPI description of the service.

    `coverage` is the default of the field `coverage`. `upload_timeout_ms` is the default time limit of an upload. The
    other arguments are the version of the service and the limits of requests.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "qa-cluster",
            "version": version,
            "description": "Question answering inside a Redis or Valkey Cluster.",
        },
        "paths": {
            **_questions(limits, coverage),
            **_documents(limits, max_body_bytes, upload_timeout_ms),
            **_collections(limits),
            **_guidance(),
            **_models(limits, pipeline),
            **_batches(),
            **inference.with_errors(inference.inference_paths(limits, pipeline), _STATUS_TEXT, _ANY_REQUEST, _PROBLEM),
            **_STATE,
        },
        "components": {"schemas": _SCHEMAS, "securitySchemes": {"key": _KEY}},
        # A request needs a key, or no key while the cluster has no keys.
        "security": [{"key": []}, {}],
    }


def _questions(limits: AskLimits, coverage: str) -> dict[str, Any]:
    """Return the paths for questions and searches. `coverage` is the default of the field `coverage`."""
    ask = schemas.ask_fields(limits, coverage)
    search, posted = (schemas.search_fields(limits, name, coverage) for name in ("q", "query"))
    said = "the answers; answerable is false if the documents contain no answer"
    stored = ("the question is stored and will be answered (Prefer: respond-async); see Location", "Submission")
    found = "the matching sentences, best first; the list may be empty"
    return {
        "/qa": {
            "get": _operation(
                "Ask a question", (said, "Result"), ("304", *_QUERY), also={"202": stored}, query=ask, headers=[_PREFER]
            ),
            "post": _operation(
                "Ask a question", (said, "Result"), _BODY, also={"202": stored}, headers=[_PREFER], body=ask
            ),
        },
        "/qa/results/{id}": {
            "parameters": [_RESULT_ID],
            "get": _operation(
                "Get the result of a submitted question; the error of the question is a result, too",
                (said, "Result"),
                (*_OBJECT, "500", "502"),
                also={"202": ("the question has no result yet; see Retry-After", "Submission")},
            ),
            "delete": _operation(
                "Delete the result of a submitted question, or cancel the question",
                ("deleted", None),
                ("404", "503", "504"),
                status="204",
            ),
        },
        "/search": {
            "get": _operation("Find sentences", (found, "Search"), _QUERY, query=search),
            "post": _operation("Find sentences", (found, "Search"), _BODY, body=posted),
        },
    }


def _documents(limits: AskLimits, max_body_bytes: int, upload_timeout_ms: int) -> dict[str, Any]:
    """Return the paths for the list of documents, for one document, and for uploads.

    `max_body_bytes` is the limit of the body that writes a document. `upload_timeout_ms` is the default time limit of
    an upload.
    """
    if_match = {
        "name": "If-Match",
        "in": "header",
        "schema": {"type": "string", "pattern": '^"[0-9A-Za-z]+"$'},
        "description": "the version that the document must have now",
    }
    return {
        "/documents": {
            "get": _operation(
                "List the documents",
                ("a page of documents; a page before the last one may be short or empty", "Documents"),
                _QUERY,
                query=schemas.LIST_PARAMETERS,
            ),
            "patch": _operation(
                "Change the metadata of all documents that match a prefix or filter, without their texts",
                ("the numbers of changed, unchanged and skipped documents", "Update"),
                _BODY,
                query=schemas.update_parameters(limits),
                body=schemas.METADATA_FIELDS,
            ),
            "delete": _operation(
                "Delete all documents that match a prefix or filter",
                ("the number of deleted documents", "Removal"),
                _QUERY,
                query=schemas.removal_parameters(limits),
            ),
        },
        "/documents/count": {
            "get": _operation(
                "Count the documents", ("the counts", "DocumentCounts"), _QUERY, query=schemas.COUNT_PARAMETERS
            )
        },
        "/documents/upload": {
            "post": _operation(
                "Store the text of files",
                ("the result for each file; at least one file was stored", "Upload"),
                _BODY,
                query=schemas.upload_parameters(limits, upload_timeout_ms),
                body=_FILES,
            )
        },
        "/documents/{id}": {
            "parameters": [path_parameter("id", minLength=1)],
            "put": _operation(
                "Write a document",
                ("the document existed and is stored", "Write"),
                ("412", *_BODY),
                also={"201": ("the document is new", "Write")},
                query=schemas.write_parameters(limits),
                headers=[if_match],
                body=schemas.document_fields(max_body_bytes),
            ),
            "get": _operation(
                "Read a document", ("the document", "Document"), ("304", *_OBJECT), query=schemas.DOCUMENT_PARAMETERS
            ),
            "patch": _operation(
                "Change the metadata of a document, without its text",
                ("the new version", "Write"),
                ("412", *_BODY),
                query=schemas.metadata_parameters(limits),
                headers=[if_match],
                body=schemas.METADATA_FIELDS,
            ),
            "delete": _operation(
                "Delete a document",
                ("deleted", None),
                ("412", *_OBJECT),
                status="204",
                query=schemas.DOCUMENT_PARAMETERS,
                headers=[if_match],
            ),
        },
    }


def _collections(limits: AskLimits) -> dict[str, Any]:
    problems = ("422", "503", "504")
    return {
        "/collections": {
            "get": _operation(
                "List the collections", ("all collections, the default collection first", "Collections"), problems
            ),
            "post": _operation(
                "Create a collection",
                ("the collection already existed", "Created"),
                ("400", "409", "413", "415", *problems),
                also={"201": ("the collection is new", "Created")},
                body=schemas.COLLECTION_FIELDS,
            ),
        },
        "/collections/{name}": {
            "parameters": [_COLLECTION_NAME],
            "get": _operation(
                "Count the documents and sentences of a collection", ("the counts", "Collection"), ("404", *problems)
            ),
            "delete": _operation(
                "Delete a collection with all its documents",
                ("the number of deleted documents; if not complete, repeat the request", "Removal"),
                ("404", *problems),
                query=schemas.timeout_parameters(limits),
            ),
        },
        "/collections/{name}/fields": {
            "parameters": [_COLLECTION_NAME],
            "get": _operation(
                "List the metadata fields of a collection", ("the fields, the most frequent first", "Fields"), _OBJECT
            ),
        },
        "/collections/{name}/fields/{field}": {
            "parameters": [_COLLECTION_NAME, _FIELD_NAME],
            "get": _operation(
                "Count the values of a metadata field",
                ("the values, the most frequent first", "FieldValues"),
                _QUERY,
                query=schemas.FIELD_VALUES_PARAMETERS,
            ),
        },
    }


def _guidance() -> dict[str, Any]:
    """Return the paths for pins, synonyms, feedback and unanswered questions."""
    of = schemas.GUIDANCE_PARAMETERS
    synonyms = ("the synonyms", "Synonyms")
    return {
        "/pins": {
            "get": _operation("List the pins", ("the pins, ordered by question", "Pins"), _QUERY, query=of),
            "put": _operation(
                "Pin an answer to a question",
                ("the pin replaces an earlier one", "Pin"),
                _BODY,
                also={"201": ("the pin is new", "Pin")},
                body=schemas.PIN_FIELDS,
            ),
            "delete": _operation(
                "Delete a pin", ("deleted", None), _QUERY, status="204", query=schemas.PIN_REMOVAL_PARAMETERS
            ),
        },
        "/synonyms": {
            "get": _operation("Get the synonyms", synonyms, _QUERY, query=of),
            "put": _operation("Replace the synonyms", synonyms, _BODY, body=schemas.SYNONYMS_FIELDS),
            "delete": _operation("Delete the synonyms", ("deleted", None), _QUERY, status="204", query=of),
        },
        "/feedback": {
            "get": _operation(
                "List the feedback", ("the feedback, the oldest first", "FeedbackList"), _QUERY, query=of
            ),
            "post": _operation(
                "Say whether an answer is right",
                ("the id of the entry", "FeedbackId"),
                _BODY,
                status="201",
                body=schemas.FEEDBACK_FIELDS,
            ),
        },
        "/unanswered": {
            "get": _operation(
                "List the questions without a sure answer",
                ("the questions, the most frequent first", "Unanswered"),
                _QUERY,
                query=of,
            )
        },
    }


def _models(limits: AskLimits, pipeline: PipelineLimits) -> dict[str, Any]:
    """Return the paths for the models, and for reading contexts with a model."""
    return {
        "/models": {
            "get": _operation("List the models", ("the models, the default model first", "Models"), ("503", "504"))
        },
        "/models/{id}": {
            "parameters": [models.MODEL_ID],
            "post": _operation(
                "Find answers in the given contexts (Hugging Face's question-answering task)",
                ("the answers", "PipelineResult"),
                _BODY,
                query=schemas.timeout_parameters(limits),
                body=models.request_body(pipeline),
            ),
        },
    }


def _batches() -> dict[str, Any]:
    """Return the paths for files and batches, with OpenAI's interface."""

    def operation(summary: str, schema: str | None, *more: str, **parts: Any) -> dict[str, Any]:
        problems = ("400", "503", "504", *more)
        return batches.with_openai_errors(_operation(summary, ("success", schema), problems, **parts))

    file_id = [path_parameter("id", pattern="^file-[0-9a-f]{24}$")]
    batch_id = [path_parameter("id", pattern="^batch_[0-9a-f]{24}$")]
    content = operation("Read the contents of a file", None, "404")
    content["responses"]["200"]["content"] = {"application/jsonl": {"schema": STRING}}
    listed = "List the batches, the newest first"
    return {
        "/v1/files": {
            "post": operation("Upload a file of requests", "BatchFile", "413", "415", body=batches.UPLOAD),
            "get": operation("List the files", "BatchFiles", "413", query=batches.FILE_LIST_PARAMETERS),
        },
        "/v1/files/{id}": {
            "parameters": file_id,
            "get": operation("Show a file", "BatchFile", "404"),
            "delete": operation("Delete a file", "BatchFileDeleted", "404", "409"),
        },
        "/v1/files/{id}/content": {"parameters": file_id, "get": content},
        "/v1/batches": {
            "post": operation("Create a batch", "Batch", "404", "413", "415", body=batches.BATCH_FIELDS),
            "get": operation(listed, "Batches", "404", "413", query=batches.BATCH_LIST_PARAMETERS),
        },
        "/v1/batches/{id}": {"parameters": batch_id, "get": operation("Show a batch", "Batch", "404")},
        "/v1/batches/{id}/cancel": {"parameters": batch_id, "post": operation("Cancel a batch", "Batch", "404", "409")},
    }


def docs_page(description: dict[str, Any]) -> str:
    """Return the OpenAPI description of the service as one HTML page."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        "<title>qa-cluster REST API</title><link rel=stylesheet href=/page.css><main class=docs>",
        f"<h1>qa-cluster REST API</h1><p>{escape(description['info']['description'])} ",
        "<a href=/openapi.json>openapi.json</a> · <a href=/>ask</a></p>",
    ]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            parts.append(
                f"<section><h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
            )
            rows = [(p["name"], p["in"], p.get("schema", {})) for p in operation.get("parameters", [])]
            body = operation.get("requestBody")
            if body is not None:
                content, *_ = body["content"].values()
                properties = content["schema"]["properties"]
                for name, schema in properties.items():
                    rows.append((name, "body", schema))
                    rows += [(f"{name}.{inner}", "body", of) for inner, of in schema.get("properties", {}).items()]
            if rows:
                parts.append("<table><tr><th>name<th>in<th>type<th>default<th>meaning</tr>")
                parts += [_row(name, where, schema) for name, where, schema in rows]
                parts.append("</table>")
            answers = ", ".join(
                f"<b>{status}</b> {escape(response['description'])}"
                for status, response in operation["responses"].items()
            )
            parts.append(f"<p class=muted>{answers}</p></section>")
    return "".join([*parts, "</main></html>"])


def _row(name: str, where: str, schema: dict[str, Any]) -> str:
    types = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    types = types or [choice["type"] for choice in schema.get("oneOf", [])]
    kind = " | ".join(one for one in types if one != "null") + _limits(schema)
    if "enum" in schema:
        kind = " | ".join(_shown(choice) for choice in schema["enum"] if choice is not None)
    cells = (name, where, kind, _shown(schema.get("default")), schema.get("description", ""))
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"


def _limits(schema: dict[str, Any]) -> str:
    if "minimum" not in schema:
        return f" up to {schema['maximum']:g}" if "maximum" in schema else ""
    return f" {schema['minimum']:g} to {schema['maximum']:g}" if "maximum" in schema else f" from {schema['minimum']:g}"


def _shown(default: Any) -> str:
    """Return a default value as a request would write it; an empty text if there is no default (None)."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)
