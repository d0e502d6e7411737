"""Holds the shard's TorchScripts in this worker: compiles them off the event loop, calls them on device threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...inference.backends.choose import torch_missing
from ...inference.loading import LoadedByRef
from ...inference.model_store import ModelStore
from ...inference.served import WaitLimit
from ...inference.tensors import Array
from ...shard.failures import GearsError
from ...shard.memory import check_fits
from ..host.script_host import ScriptHost
from .script_call import TorchScriptCall

if TYPE_CHECKING:
    from .torch_scripts import TorchScript


class ScriptStore:
    """Compiled TorchScripts by reference; they share devices and loading thread with `models`, which they can run."""

    def __init__(self, host: ScriptHost, models: ModelStore) -> None:
        self._host = host
        self._models = models
        self._devices = models.devices
        self._scripts: LoadedByRef[TorchScript] = LoadedByRef(self._fetch, models.loader)

    def reference(self, key: str) -> int:
        """The reference of the script at `key`; GearsError if the key has no script."""
        try:
            return int(self._host.execute("QA.SCRIPTREF", key)[0])
        except GearsError as error:
            raise GearsError(f"given key do not contain RedisAI script: {key} ({error})") from error

    async def load(self, ref: int, device: str, source: str, entry_points: Sequence[str]) -> TorchScript:
        """Compile a script that is being stored."""
        return await self._scripts.load(ref, partial(self._compile, device, source, entry_points))

    async def run(self, ref: int, call: TorchScriptCall, limit: WaitLimit | None = None) -> tuple[list[Array], int]:
        """Call a function of a script; return its outputs and the microseconds it took."""
        script = await self._scripts.get(ref)
        return await self._devices.of(script.device).call(self._bound(script, call), limit)

    def run_blocking(self, ref: int, call: TorchScriptCall) -> list[Array]:
        """Like `run`, for a thread that may wait."""
        script = self._scripts.get_blocking(ref)
        return self._devices.of(script.device).call_blocking(self._bound(script, call))

    def _bound(self, script: TorchScript, call: TorchScriptCall) -> Callable[[], list[Array]]:
        return partial(script.call, call, self._host, self._models.get_blocking)

    def drop(self, ref: int) -> None:
        """Drop a script that the shard no longer has."""
        self._scripts.drop(ref)

    def _fetch(self, ref: int) -> TorchScript:
        device, source, *names = self._host.links.link().execute("QA.SCRIPT", ref)
        return self._compile(device.decode(), source.decode(), [name.decode() for name in names])

    def _compile(self, device: str, source: str, entry_points: Sequence[str]) -> TorchScript:
        check_fits("script", len(source))
        self._devices.of(device)
        try:
            from .torch_scripts import TorchScript
        except ImportError as error:
            raise torch_missing(error) from error
        return TorchScript(device.upper(), source, entry_points)
