"""Finds the API key of a request, and checks that it is valid and has the scope of the route.

Before the cluster has its first key, every request is allowed, except if other machines can reach the service
(`keys_required`). After that, every route requires a key, except the open routes. The guard checks the scope before the
service reads the request. The collection is known only later, so each route calls `http.messages.permit`, which checks
the collection.

The list of keys is in memory. The service reads the list again after a shard has reported a change of its keys
(`qa_cluster.access.store`).
"""

from __future__ import annotations

from time import time

from qa_cluster.access.records import ADMIN, ASK, ApiKey, find
from qa_cluster.access.store import KeyList
from qa_cluster.errors import QAError

from ..http.error_map import HttpProblem
from ..http.messages import ANONYMOUS, Scope
from ..service.lifespan import ServiceState
from .resources import METRICS, Resource

_REALM = 'Bearer realm="qa-cluster"'
_HOW = "send a key as `Authorization: Bearer qac_..` (`qa-cluster keys create` creates one)"


class Guard:
    """Admits or refuses requests. With `keys_required`, it refuses requests even while the cluster has no key."""

    def __init__(self, state: ServiceState, *, keys_required: bool) -> None:
        self._state = state
        self._required = keys_required

    def at_hand(self, scope: Scope) -> ApiKey | None:
        """Return the API key of a question, or `ANONYMOUS` if the question needs no key. Return None if the question
        has no valid key with the scope `ask`, if the key has limits, or if the check needs a request to a shard.
        """
        engine = self._state.engine_or_none
        known = None if engine is None else engine.api_keys.at_hand()
        if known is None:
            return None
        if not known.closed:
            return None if self._required else ANONYMOUS
        text = _token(scope)
        key = None if text is None else find(known.keys, text)
        if key is None or key.limits.counted or ASK not in key.scopes or key.state(time()) != "valid":
            return None
        return key

    async def admit(self, scope: Scope, resource: Resource) -> ApiKey:
        """Return the key of a request about `resource`, or `ANONYMOUS` if the request needs no key.

        Raises:
            HttpProblem: 401 if the request has no valid key; 403 if the key lacks the scope, or if it allows only some
                collections and the request is for the metrics.
            QAError: 503 if the keys cannot be read. For `/metrics`, the last known keys are used while the cluster is
                down.
        """
        if resource.is_open:
            return ANONYMOUS
        known = await self._known(resource)
        if not known.closed and not self._required:
            return ANONYMOUS
        key = _valid_key(scope, known)
        needed = resource.scopes(scope["method"])
        if not set(needed) & set(key.scopes):
            words = " or ".join(needed)
            raise HttpProblem(
                "forbidden",
                f"key {key.id} has scope {', '.join(key.scopes)}, but {scope['method']} on this route needs {words}",
                headers=_challenge("insufficient_scope", " ".join(needed)),
            )
        if resource is METRICS and key.collections:
            raise HttpProblem(
                "forbidden",
                f"key {key.id} allows only some collections, but the metrics cover all collections",
                headers=_challenge("insufficient_scope", ADMIN),
            )
        return key

    async def _known(self, resource: Resource) -> KeyList:
        engine = self._state.engine_or_none
        if engine is None:
            if resource is METRICS and not self._required:
                return KeyList()  # the service is not connected yet, so its metrics cover no shard
            engine = self._state.engine
        try:
            return await engine.api_keys.current()
        except QAError:
            if resource is not METRICS:
                raise
            return engine.api_keys.last  # monitoring must work while the cluster is down


def _token(scope: Scope) -> bytes | None:
    """Return the text after ``Bearer`` in the `Authorization` header.

    Return None if the request has no `Authorization` header or several, or if the header does not start with
    ``Bearer``.
    """
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
        raise _refused(f"the request needs exactly one Authorization header with `Bearer` and a key: {_HOW}")
    key = find(known.keys, text)
    if key is None:
        raise _refused("the key is unknown: compare it with the key that `qa-cluster keys create` printed")
    state = key.state(time())
    if state != "valid":
        raise _refused(f"key {key.id} is {state}: ask the operator of the service for another key")
    return key


def _refused(why: str) -> HttpProblem:
    return HttpProblem("unauthorized", why, headers=_challenge("invalid_token"))


def _challenge(error: str, scopes: str = "") -> list[tuple[bytes, bytes]]:
    more = f', scope="{scopes}"' if scopes else ""
    return [(b"www-authenticate", f'{_REALM}, error="{error}"{more}'.encode())]
