"""The resources of the service: their paths, required scopes, and names in the audit log and the metrics.

The service looks up every request once, by its percent-decoded path. `/documents/count` and `/documents/upload` are
exceptions: in percent-encoded spelling or with a different method, they name the documents `count` and `upload`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qa_cluster.access.records import ADMIN, ASK, SCOPES, SEARCH, WRITE

from ..http.error_map import RawHeaders
from ..http.messages import READ, Scope
from ..inference.responses import error_response
from ..routes.batches import BATCHES as BATCHES_PATH
from ..routes.batches import FILES as FILES_PATH
from ..routes.batches import part_of
from ..routes.collections import LIST_PATH as COLLECTIONS_PATH
from ..routes.collections import PREFIX as COLLECTIONS_PREFIX
from ..routes.collections import names_fields
from ..routes.documents import LIST_PATH, PREFIX, counts
from ..routes.inference import INDEX_PATH, LIVE_PATH, READY_PATH, SERVER_PATH
from ..routes.inference import MODELS_PREFIX as INFERENCE_MODELS_PREFIX
from ..routes.inference import PREFIX as INFERENCE_PREFIX
from ..routes.models import PREFIX as MODELS_PREFIX
from ..routes.page import PAGE_PATHS
from ..routes.submissions import PREFIX as RESULTS_PREFIX
from ..routes.uploads import PATH as UPLOAD_PATH
from ..routes.uploads import uploads

# A function that converts status, headers and body of a problem document to the form that a route's clients expect.
ErrorForm = Callable[[int, RawHeaders, bytes], tuple[int, RawHeaders, bytes]]


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """A kind of resource, with the rules for its requests.

    Attributes:
        name: the name in the metrics.
        reads: the scopes for GET and HEAD. A key needs one of these scopes.
        writes: the scopes for all other methods. A key needs one of these scopes.
        changes: for each method that changes the resource, the name of the event in the audit log.
        is_open: whether requests need no key.
        is_file: whether the response is the same for all clients and needs no work.
        error_form: converts a problem document to the errors of this resource. None means that errors are problem
            documents, or OpenAI's errors for paths below `/v1/`.
    """

    name: str
    reads: tuple[str, ...] = SCOPES
    writes: tuple[str, ...] = SCOPES
    changes: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False
    is_file: bool = False
    error_form: ErrorForm | None = None

    def scopes(self, method: str) -> tuple[str, ...]:
        """Return the scopes for this method. A key must have one of them."""
        return self.reads if method in READ else self.writes


QUESTIONS = Resource("/qa", (ASK,), (ASK,))
RESULT = Resource("/qa/results/{id}", (ASK,), (ASK,))
SEARCHES = Resource("/search", (SEARCH,), (SEARCH,))
DOCUMENTS = Resource("/documents", (SEARCH,), (WRITE,), {"PATCH": "documents.update", "DELETE": "documents.delete"})
DOCUMENT = Resource(
    "/documents/{id}",
    (SEARCH,),
    (WRITE,),
    {"PUT": "document.put", "PATCH": "document.update", "DELETE": "document.delete"},
)
UPLOAD = Resource(UPLOAD_PATH.decode(), (WRITE,), (WRITE,), {"POST": "documents.upload"})
COUNT = Resource("/documents/{id}", (ASK, SEARCH), (WRITE,))
COLLECTIONS = Resource("/collections", SCOPES, (ADMIN,), {"POST": "collection.create"})
COLLECTION = Resource("/collections/{name}", SCOPES, (ADMIN,), {"DELETE": "collection.delete"})
FIELDS = Resource("/collections/{name}/fields", (SEARCH,), (ADMIN,))
PINS = Resource("/pins", (WRITE,), (WRITE,), {"PUT": "pin.put", "DELETE": "pin.delete"})
SYNONYMS = Resource("/synonyms", (WRITE,), (WRITE,), {"PUT": "synonyms.put", "DELETE": "synonyms.delete"})
FEEDBACK = Resource("/feedback", (WRITE,), (ASK, SEARCH))
UNANSWERED = Resource("/unanswered", (WRITE,), (WRITE,))
MODELS = Resource("/models", (ASK,), (ASK,))
MODEL = Resource("/models/{id}", (ASK,), (ASK,))
_BATCHES = (ASK, SEARCH)
BATCH_FILES = Resource(FILES_PATH, _BATCHES, _BATCHES, {"POST": "file.create"})
BATCH_FILE = Resource("/v1/files/{id}", _BATCHES, _BATCHES, {"DELETE": "file.delete"})
BATCH_CONTENT = Resource("/v1/files/{id}/content", _BATCHES, _BATCHES)
BATCHES = Resource(BATCHES_PATH, _BATCHES, _BATCHES, {"POST": "batch.create"})
BATCH = Resource("/v1/batches/{id}", _BATCHES, _BATCHES)
BATCH_CANCEL = Resource("/v1/batches/{id}/cancel", _BATCHES, _BATCHES, {"POST": "batch.cancel"})
METRICS = Resource("/metrics", (ADMIN,), (ADMIN,))
INFERENCE_OPEN = {
    path: Resource(path, is_open=True, error_form=error_response) for path in (SERVER_PATH, LIVE_PATH, READY_PATH)
}
INFERENCE_INDEX = Resource(INDEX_PATH, (ASK,), (ASK,), error_form=error_response)
INFERENCE_MODEL = Resource("/v2/models/{id}", (ASK,), (ASK,), error_form=error_response)
INFERENCE_OTHER = Resource("/v2", error_form=error_response)
OTHER = Resource("other")
# Resources that share a route.
FILE_ROUTES = (BATCH_FILES, BATCH_FILE, BATCH_CONTENT)
BATCH_ROUTES = (BATCHES, BATCH, BATCH_CANCEL)
GUIDANCE_ROUTES = (PINS, SYNONYMS, FEEDBACK, UNANSWERED)
INFERENCE_ROUTES = (*INFERENCE_OPEN.values(), INFERENCE_INDEX, INFERENCE_MODEL, INFERENCE_OTHER)

# The page with its files, and the API description.
FILE_PATHS = frozenset({"/openapi.json", "/docs", *PAGE_PATHS})
PROBE_PATHS = frozenset({"/livez", "/readyz", LIVE_PATH, READY_PATH})
OPEN_PATHS = FILE_PATHS | PROBE_PATHS | INFERENCE_OPEN.keys()
# Paths that the service answers even if it is at its limit of concurrent requests (`http_max_requests`).
UNBOUNDED_PATHS = PROBE_PATHS | {METRICS.name}

_BY_PATH = {
    **{each.name: each for each in (QUESTIONS, SEARCHES, MODELS, METRICS, *GUIDANCE_ROUTES)},
    LIST_PATH.decode(): DOCUMENTS,
    COLLECTIONS_PATH: COLLECTIONS,
    FILES_PATH: BATCH_FILES,
    BATCHES_PATH: BATCHES,
    **{path: Resource(path, is_open=True, is_file=path in FILE_PATHS) for path in OPEN_PATHS},
    **INFERENCE_OPEN,
    INDEX_PATH: INFERENCE_INDEX,
}
_BY_PREFIX = (
    (RESULTS_PREFIX, RESULT),
    (PREFIX.decode(), DOCUMENT),
    (COLLECTIONS_PREFIX, COLLECTION),
    (MODELS_PREFIX.decode(), MODEL),
    (INFERENCE_MODELS_PREFIX, INFERENCE_MODEL),
    (INFERENCE_PREFIX, INFERENCE_OTHER),
)
# Resources by the path before the id, and the word after the id.
_BY_WORD = {
    (FILES_PATH, ""): BATCH_FILE,
    (FILES_PATH, "content"): BATCH_CONTENT,
    (BATCHES_PATH, ""): BATCH,
    (BATCHES_PATH, "cancel"): BATCH_CANCEL,
}


def resource_of(scope: Scope) -> Resource:
    """Return the resource of a request; `OTHER` for an unknown path."""
    path: str = scope["path"]
    found = _BY_PATH.get(path)
    if found is not None:
        return found
    for prefix, resource in _BY_PREFIX:
        if path.startswith(prefix):
            if resource is DOCUMENT and uploads(scope):
                return UPLOAD
            if resource is COLLECTION and names_fields(scope):
                return FIELDS
            return COUNT if resource is DOCUMENT and counts(scope) else resource
    item, word = part_of(path)
    return _BY_WORD.get((path[: path.find("/", len("/v1/"))], word), OTHER) if item else OTHER
