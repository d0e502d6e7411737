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

from . import batches, inference, models
from .results import BOOLEAN, INTEGER, RESULTS, STRING, list_of, object_of
from .schemas import (
    Field,
    ask_fields,
    collection_fields,
    collection_removal_parameters,
    count_parameters,
    document_fields,
    document_parameters,
    feedback_fields,
    field_values_parameters,
    guidance_parameters,
    list_parameters,
    metadata_fields,
    metadata_parameters,
    pin_fields,
    pin_removal_parameters,
    pipeline_parameters,
    removal_parameters,
    search_fields,
    synonyms_fields,
    update_parameters,
    upload_parameters,
    write_parameters,
)

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
    summary: str, ok: Mapping[str, tuple[str, str | None]], problems: Sequence[str], **more: Any
) -> dict[str, Any]:
    """Return an operation. `ok` maps a status to its description and the name of its schema."""
    responses: dict[str, Any] = {}
    for status, (text, schema) in ok.items():
        responses[status] = {"description": text}
        if schema is not None:
            responses[status]["content"] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    others = {*problems, *_ANY_REQUEST, *(("401", "429") if problems else ())}
    for status in sorted(others - set(ok)):
        responses[status] = {"description": _STATUS_TEXT[status], **({} if status == "304" else {"content": _PROBLEM})}
    return {"summary": summary, "responses": responses, **({} if problems else {"security": []}), **more}


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
_COLLECTION_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {**STRING, "minLength": 1, "maxLength": MAX_COLLECTION_CHARS, "pattern": COLLECTION_PATTERN},
}
_FIELD_NAME = {
    "name": "field",
    "in": "path",
    "required": True,
    "schema": {**STRING, "minLength": 1, "maxLength": MAX_NAME_BYTES},
}
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "schema": {**STRING, "examples": ["respond-async"]},
    "description": "respond-async: answer later; GET on the Location of the response returns the result",
}
_RESULT_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {**STRING, "minLength": 1},
    "description": "the id in the response with status 202",
}
_STATE = {
    "/livez": {
        "get": _operation("Check whether the process is running", {"200": ("the process is running", "Alive")}, [])
    },
    "/readyz": {
        "get": _operation(
            "Check whether every shard can answer",
            {
                "200": ("every shard can answer", "Readiness"),
                "503": ("some shards cannot answer; missing lists the reasons", "Readiness"),
            },
            [],
        )
    },
    "/metrics": {"get": _operation("Get the metrics for Prometheus", {"200": ("the metrics", None)}, ["503"])},
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
    """Return the whole OpenAPI description."""
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
    """Return the paths for questions and searches."""
    ask = ask_fields(limits, coverage)
    search = search_fields(limits, "q", coverage)
    posted = search_fields(limits, coverage=coverage)
    asked = {
        "200": ("the answers; answerable is false if the documents contain no answer", "Result"),
        "202": ("the question is stored and will be answered (Prefer: respond-async); see Location", "Submission"),
    }
    polled = {
        "200": asked["200"],
        "202": ("the question has no result yet; see Retry-After", "Submission"),
    }
    found = {"200": ("the matching sentences, best first; the list may be empty", "Search")}
    problems = ["400", "404", "413", "422", "503", "504"]
    return {
        "/qa": {
            "get": _operation("Ask a question", asked, ["304", *problems], parameters=[*_parameters(ask), _PREFER]),
            "post": _operation(
                "Ask a question", asked, [*problems, "415"], parameters=[_PREFER], requestBody=_body(ask)
            ),
        },
        "/qa/results/{id}": {
            "parameters": [_RESULT_ID],
            "get": _operation(
                "Get the result of a submitted question; the error of the question is a result, too",
                polled,
                ["404", "413", "422", "500", "502", "503", "504"],
            ),
            "delete": _operation(
                "Delete the result of a submitted question, or cancel the question",
                {"204": ("deleted", None)},
                ["404", "503", "504"],
            ),
        },
        "/search": {
            "get": _operation("Find sentences", found, problems, parameters=_parameters(search)),
            "post": _operation("Find sentences", found, [*problems, "415"], requestBody=_body(posted)),
        },
    }


def _documents(limits: AskLimits, max_body_bytes: int, upload_timeout_ms: int) -> dict[str, Any]:
    """Return the paths for the list of documents and for one document."""
    document_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    version = {"type": "string", "pattern": '^"[0-9A-Za-z]+"$'}
    if_match = {
        "name": "If-Match",
        "in": "header",
        "schema": version,
        "description": "the version that the document must have now",
    }
    return {
        "/documents": {
            "get": _operation(
                "List the documents",
                {"200": ("a page of documents; a page before the last one may be short or empty", "Documents")},
                ["400", "404", "413", "422", "503", "504"],
                parameters=_parameters(list_parameters()),
            ),
            "patch": _operation(
                "Change the metadata of all documents that match a prefix or filter, without their texts",
                {"200": ("the numbers of documents", "Update")},
                ["400", "404", "413", "415", "422", "503", "504"],
                parameters=_parameters(update_parameters(limits)),
                requestBody=_body(metadata_fields()),
            ),
            "delete": _operation(
                "Delete all documents that match a prefix or filter",
                {"200": ("the number of deleted documents", "Removal")},
                ["400", "404", "413", "422", "503", "504"],
                parameters=_parameters(removal_parameters(limits)),
            ),
        },
        "/documents/count": {
            "get": _operation(
                "Count the documents",
                {"200": ("the counts", "DocumentCounts")},
                ["400", "404", "413", "422", "503", "504"],
                parameters=_parameters(count_parameters()),
            )
        },
        "/documents/upload": {
            "post": _operation(
                "Store the text of files",
                {"200": ("the result for each file; at least one file was stored", "Upload")},
                ["400", "404", "413", "415", "422", "503", "504"],
                parameters=_parameters(upload_parameters(limits, upload_timeout_ms)),
                requestBody=_FILES,
            )
        },
        "/documents/{id}": {
            "parameters": [document_id],
            "put": _operation(
                "Write a document",
                {"200": ("the document existed and is stored", "Write"), "201": ("the document is new", "Write")},
                ["400", "404", "412", "413", "415", "422", "503", "504"],
                parameters=[*_parameters(write_parameters(limits)), if_match],
                requestBody=_body(document_fields(max_body_bytes)),
            ),
            "get": _operation(
                "Read a document",
                {"200": ("the document", "Document")},
                ["304", "404", "413", "422", "503", "504"],
                parameters=_parameters(document_parameters()),
            ),
            "patch": _operation(
                "Change the metadata of a document, without its text",
                {"200": ("the new version", "Write")},
                ["400", "404", "412", "413", "415", "422", "503", "504"],
                parameters=[*_parameters(metadata_parameters(limits)), if_match],
                requestBody=_body(metadata_fields()),
            ),
            "delete": _operation(
                "Delete a document",
                {"204": ("deleted", None)},
                ["404", "412", "413", "422", "503", "504"],
                parameters=[*_parameters(document_parameters()), if_match],
            ),
        },
    }


def _collections(limits: AskLimits) -> dict[str, Any]:
    return {
        "/collections": {
            "get": _operation(
                "List the collections",
                {"200": ("all collections, the default collection first", "Collections")},
                ["422", "503", "504"],
            ),
            "post": _operation(
                "Create a collection",
                {"200": ("the collection already existed", "Created"), "201": ("the collection is new", "Created")},
                ["400", "409", "413", "415", "422", "503", "504"],
                requestBody=_body(collection_fields()),
            ),
        },
        "/collections/{name}": {
            "parameters": [_COLLECTION_NAME],
            "get": _operation(
                "Count the documents and sentences of a collection",
                {"200": ("the counts", "Collection")},
                ["404", "422", "503", "504"],
            ),
            "delete": _operation(
                "Delete a collection with all its documents",
                {"200": ("the number of deleted documents; if not complete, repeat the request", "Removal")},
                ["404", "422", "503", "504"],
                parameters=_parameters(collection_removal_parameters(limits)),
            ),
        },
        "/collections/{name}/fields": {
            "parameters": [_COLLECTION_NAME],
            "get": _operation(
                "List the metadata fields of a collection",
                {"200": ("the fields, the most frequent first", "Fields")},
                ["404", "413", "422", "503", "504"],
            ),
        },
        "/collections/{name}/fields/{field}": {
            "parameters": [_COLLECTION_NAME, _FIELD_NAME],
            "get": _operation(
                "Count the values of a metadata field",
                {"200": ("the values, the most frequent first", "FieldValues")},
                ["400", "404", "413", "422", "503", "504"],
                parameters=_parameters(field_values_parameters()),
            ),
        },
    }


def _guidance() -> dict[str, Any]:
    """Return the paths for pins, synonyms, feedback and unanswered questions."""
    problems, writing = ["400", "404", "413", "422", "503", "504"], ["400", "404", "413", "415", "422", "503", "504"]
    of = _parameters(guidance_parameters())
    return {
        "/pins": {
            "get": _operation(
                "List the pins", {"200": ("the pins, ordered by question", "Pins")}, problems, parameters=of
            ),
            "put": _operation(
                "Pin an answer to a question",
                {"200": ("the pin replaces an earlier one", "Pin"), "201": ("the pin is new", "Pin")},
                writing,
                requestBody=_body(pin_fields()),
            ),
            "delete": _operation(
                "Delete a pin", {"204": ("deleted", None)}, problems, parameters=_parameters(pin_removal_parameters())
            ),
        },
        "/synonyms": {
            "get": _operation("Get the synonyms", {"200": ("the synonyms", "Synonyms")}, problems, parameters=of),
            "put": _operation(
                "Replace the synonyms",
                {"200": ("the synonyms", "Synonyms")},
                writing,
                requestBody=_body(synonyms_fields()),
            ),
            "delete": _operation("Delete the synonyms", {"204": ("deleted", None)}, problems, parameters=of),
        },
        "/feedback": {
            "get": _operation(
                "List the feedback",
                {"200": ("the feedback, the oldest first", "FeedbackList")},
                problems,
                parameters=of,
            ),
            "post": _operation(
                "Say whether an answer is right",
                {"201": ("the id of the entry", "FeedbackId")},
                writing,
                requestBody=_body(feedback_fields()),
            ),
        },
        "/unanswered": {
            "get": _operation(
                "List the questions without a sure answer",
                {"200": ("the questions, the most frequent first", "Unanswered")},
                problems,
                parameters=of,
            )
        },
    }


def _models(limits: AskLimits, pipeline: PipelineLimits) -> dict[str, Any]:
    """Return the paths for the models, and for reading contexts with a model."""
    return {
        "/models": {
            "get": _operation(
                "List the models", {"200": ("the models, the default model first", "Models")}, ["503", "504"]
            )
        },
        "/models/{id}": {
            "parameters": [models.model_id()],
            "post": _operation(
                "Find answers in the given contexts (Hugging Face's question-answering task)",
                {"200": ("the answers", "PipelineResult")},
                ["400", "404", "413", "415", "422", "503", "504"],
                parameters=_parameters(pipeline_parameters(limits)),
                requestBody=models.request_body(pipeline),
            ),
        },
    }


def _batches() -> dict[str, Any]:
    """Return the paths for files and batches, with OpenAI's interface."""

    def operation(summary: str, schema: str | None, *more: str, **parts: Any) -> dict[str, Any]:
        problems = ["400", "401", "429", "503", "504", *more]
        return batches.with_openai_errors(_operation(summary, {"200": ("success", schema)}, problems, **parts))

    def path_id(pattern: str) -> list[dict[str, Any]]:
        return [{"name": "id", "in": "path", "required": True, "schema": {**STRING, "pattern": pattern}}]

    file_id, batch_id = path_id("^file-[0-9a-f]{24}$"), path_id("^batch_[0-9a-f]{24}$")
    content = operation("Read the contents of a file", None, "404")
    content["responses"]["200"]["content"] = {"application/jsonl": {"schema": STRING}}
    return {
        "/v1/files": {
            "post": operation("Upload a file of requests", "BatchFile", "413", "415", requestBody=batches.UPLOAD),
            "get": operation(
                "List the files", "BatchFiles", "413", parameters=_parameters(batches.file_list_parameters())
            ),
        },
        "/v1/files/{id}": {
            "parameters": file_id,
            "get": operation("Show a file", "BatchFile", "404"),
            "delete": operation("Delete a file", "BatchFileDeleted", "404", "409"),
        },
        "/v1/files/{id}/content": {"parameters": file_id, "get": content},
        "/v1/batches": {
            "post": operation(
                "Create a batch", "Batch", "404", "413", "415", requestBody=_body(batches.batch_fields())
            ),
            "get": operation(
                "List the batches, the newest first",
                "Batches",
                "404",
                "413",
                parameters=_parameters(batches.batch_list_parameters()),
            ),
        },
        "/v1/batches/{id}": {"parameters": batch_id, "get": operation("Show a batch", "Batch", "404")},
        "/v1/batches/{id}/cancel": {
            "parameters": batch_id,
            "post": operation("Cancel a batch", "Batch", "404", "409"),
        },
    }


def docs_page(description: dict[str, Any]) -> str:
    """Return the description as one HTML page."""
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
    """Return a default value as a request would write it."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)
