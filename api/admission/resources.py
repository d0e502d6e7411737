"""What the service has at its paths: who may use it, what the audit log calls its changes, its name in the metrics.

Every request is looked up here once. Only the path decides, as it is after percent-decoding; but for
`/documents/count`, which is a document's id in any other spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qa_cluster.access.records import ADMIN, ASK, SCOPES, SEARCH, WRITE

from ..http.messages import Scope
from ..routes.collections import LIST_PATH as COLLECTIONS_PATH
from ..routes.collections import PREFIX as COLLECTIONS_PREFIX
from ..routes.documents import LIST_PATH, PREFIX, counts
from ..routes.models import PREFIX as MODELS_PREFIX
from ..routes.page import PAGE_PATHS

_READ = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """One kind of thing, with the rules for requests about it.

    Attributes:
        name: what the metrics call it.
        reads, writes: the scopes of which a key must have one for GET and HEAD, and for other methods.
        changes: the audit log's name of what a method does; methods that are not there change nothing.
        is_open: nobody needs a key.
    """

    name: str
    reads: tuple[str, ...] = SCOPES
    writes: tuple[str, ...] = SCOPES
    changes: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False

    def scopes(self, method: str) -> tuple[str, ...]:
        """The scopes of which a key must have one for this method; all of them: any key will do."""
        return self.reads if method in _READ else self.writes


QUESTIONS = Resource("/qa", (ASK,), (ASK,))
SEARCHES = Resource("/search", (SEARCH,), (SEARCH,))
DOCUMENTS = Resource("/documents", (SEARCH,), (WRITE,), {"DELETE": "documents.delete"})
DOCUMENT = Resource("/documents/{id}", (SEARCH,), (WRITE,), {"PUT": "document.put", "DELETE": "document.delete"})
COUNT = Resource("/documents/{id}", (ASK, SEARCH), (WRITE,))
COLLECTIONS = Resource("/collections", SCOPES, (ADMIN,), {"POST": "collection.create"})
COLLECTION = Resource("/collections/{name}", SCOPES, (ADMIN,), {"DELETE": "collection.delete"})
MODELS = Resource("/models", (ASK,), (ASK,))
MODEL = Resource("/models/{id}", (ASK,), (ASK,))
METRICS = Resource("/metrics", (ADMIN,), (ADMIN,))
OTHER = Resource("other")

# Probes, the page with its files, and the description.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/openapi.json", "/docs", *PAGE_PATHS})
# Answered also when the service is full.
UNBOUNDED_PATHS = frozenset({"/livez", "/readyz", METRICS.name})

_BY_PATH = {
    **{each.name: each for each in (QUESTIONS, SEARCHES, MODELS, METRICS)},
    LIST_PATH.decode(): DOCUMENTS,
    COLLECTIONS_PATH: COLLECTIONS,
    **{path: Resource(path, is_open=True) for path in OPEN_PATHS},
}
_BY_PREFIX = ((PREFIX.decode(), DOCUMENT), (COLLECTIONS_PREFIX, COLLECTION), (MODELS_PREFIX.decode(), MODEL))


def resource_of(scope: Scope) -> Resource:
    """What a request is about; `OTHER` where there is nothing."""
    path: str = scope["path"]
    found = _BY_PATH.get(path)
    if found is not None:
        return found
    for prefix, resource in _BY_PREFIX:
        if path.startswith(prefix):
            return COUNT if resource is DOCUMENT and counts(scope) else resource
    return OTHER
