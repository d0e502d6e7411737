"""Finds the models at keys, for scripts that name a model by its key."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...shard.failures import GearsError
from ..host.executions import current
from ..host.script_host import ScriptHost

TRUST_SECONDS = 1.0
MAX_KEYS = 1000


@dataclass(frozen=True, slots=True)
class ModelReference:
    """The reference number of a model's bytes (`QA.MODELREF`), and the model's backend, such as ``ONNX``."""

    ref: int
    backend: str


class ModelKeys:
    """Finds the models at keys. A reply of the server about a key is reused for `TRUST_SECONDS`."""

    def __init__(self, host: ScriptHost) -> None:
        self._host = host
        self._known: dict[str, tuple[float, ModelReference]] = {}

    def reference(self, key: str) -> ModelReference:
        """Return the reference of the model at `key`. Raise GearsError if the server returns no model.

        If the running user function has the rights of an ACL user, no earlier reply is reused, so that the server
        checks the user's rights at each call.
        """
        execution = current.get()
        known = self._known.get(key) if execution is None or not execution.user else None
        now = time.monotonic()
        if known is not None and now - known[0] < TRUST_SECONDS:
            return known[1]
        try:
            ref, backend, _device = self._host.execute("QA.MODELREF", key)
        except GearsError as error:
            self._known.pop(key, None)
            raise GearsError(f"given key do not contain RedisAI model: {key} ({error})") from error
        if len(self._known) > MAX_KEYS:
            self._known.clear()
        found = ModelReference(int(ref), backend.decode())
        self._known[key] = (now, found)
        return found

    def drop(self, ref: int) -> None:
        """Forget the keys of the model `ref`, whose bytes the shard does not have any more."""
        self._known = {key: entry for key, entry in self._known.items() if entry[1].ref != ref}
