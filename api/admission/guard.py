"""Who may do what: finds the API key of a request and checks that it is valid and has the scope of the route.

While the cluster has never had a key, everybody may do everything, unless the service listens where strangers can reach
it (`keys_required`). From the first key on, every route but the open ones needs one. The check of the scope comes
before anything is read of the request; the collection is known only after that, so each route calls `http.permit` with
it.

What the guard knows of the keys is as current as a cached answer: see `qa_cluster.access.store`.
"""

from __future__ import annotations

from time import time

from qa_cluster.access.records import ADMIN, ASK, ApiKey, find
from qa_cluster.access.store import KeyList
from qa_cluster.errors import QAError

from ..http.error_map import HttpProblem
from ..http.messages import EVERYBODY, Scope
from ..service.lifespan import ServiceState
from .resources import METRICS, Resource

_REALM = 'Bearer realm="qa-cluster"'
_HOW = "send one as `Authorization: Bearer qac_..` (`qa-cluster keys create` makes one)"


class Guard:
    """Admits requests. `keys_required`: also while the cluster has no key."""

    def __init__(self, state: ServiceState, *, keys_required: bool) -> None:
        self._state = state
        self._required = keys_required

    def at_hand(self, scope: Scope) -> ApiKey | None:
        """The key of a question, if nothing has to be awaited to be sure of it and nothing to be counted; else None."""
        engine = self._state.engine_or_none
        known = None if engine is None else engine.api_keys.at_hand()
        if known is None:
            return None
        if not known.closed:
            return None if self._required else EVERYBODY
        text = _token(scope)
        key = None if text is None else find(known.keys, text)
        if key is None or key.limits.counted or ASK not in key.scopes or key.state(time()) != "valid":
            return None
        return key

    async def admit(self, scope: Scope, resource: Resource) -> ApiKey:
        """The key of a request about `resource`, or HttpProblem: 401 without a valid one, 403 if it has not the scope.

        QAError (503) if nobody can tell.
        """
        if resource.is_open:
            return EVERYBODY
        known = await self._known(resource)
        if not known.closed and not self._required:
            return EVERYBODY
        key = _valid_key(scope, known)
        needed = resource.scopes(scope["method"])
        if not set(needed) & set(key.scopes):
            words = " or ".join(needed)
            raise HttpProblem(
                "forbidden",
                f"key {key.id} has scope {', '.join(key.scopes)}, and {scope['method']} of this route needs {words}",
                headers=_challenge("insufficient_scope", " ".join(needed)),
            )
        if resource is METRICS and key.collections:
            raise HttpProblem(
                "forbidden",
                f"key {key.id} is for some collections only, and the metrics are about all of them",
                headers=_challenge("insufficient_scope", ADMIN),
            )
        return key

    async def _known(self, resource: Resource) -> KeyList:
        engine = self._state.engine_or_none
        if engine is None:
            if resource is METRICS and not self._required:
                return KeyList()  # there is nothing of the shards to see yet
            engine = self._state.engine
        try:
            return await engine.api_keys.current()
        except QAError:
            if resource is not METRICS:
                raise
            return engine.api_keys.last  # a monitor must be able to see that the cluster is gone


def _token(scope: Scope) -> bytes | None:
    """What stands after ``Bearer`` in the only `Authorization` header; None if there is no such thing."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) != 1 or found[0][:7].lower() != b"bearer ":
        return None
    text: bytes = found[0][7:].strip()
    return text


def _valid_key(scope: Scope, known: KeyList) -> ApiKey:
    if not known.closed or not any(name == b"authorization" for name, _ in scope["headers"]):
        why = "this service needs an API key" if known.closed else "the cluster has no API key yet"
        raise HttpProblem("unauthorized", f"{why}: {_HOW}", headers=[(b"www-authenticate", _REALM.encode())])
    text = _token(scope)
    if text is None:
        raise _refused(f"the Authorization header is not one `Bearer` with a key: {_HOW}")
    key = find(known.keys, text)
    if key is None:
        raise _refused("there is no such key: compare it with the one that `qa-cluster keys create` has printed")
    state = key.state(time())
    if state != "valid":
        raise _refused(f"key {key.id} ({state}) is not valid any more: ask whoever has made it for another")
    return key


def _refused(why: str) -> HttpProblem:
    return HttpProblem("unauthorized", why, headers=_challenge("invalid_token"))


def _challenge(error: str, scopes: str = "") -> list[tuple[bytes, bytes]]:
    more = f', scope="{scopes}"' if scopes else ""
    return [(b"www-authenticate", f'{_REALM}, error="{error}"{more}'.encode())]
