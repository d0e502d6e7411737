"""Holds the shard's TorchScripts in this worker: compiles them off the event loop, calls them on device threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ..shard.failures import GearsError
from ..shard.host import Host
from ..shard.memory import check_fits
from .backends.choose import torch_missing
from .devices import Devices
from .loading import LoadedByRef
from .script_call import TorchScriptCall
from .served import ServedModel, WaitLimit
from .tensors import Array

if TYPE_CHECKING:
    from .torch_scripts import TorchScript


class ScriptStore:
    """Compiled TorchScripts by reference; `find_model` returns the models that scripts run."""

    def __init__(
        self, host: Host, devices: Devices, loader: ThreadPoolExecutor, find_model: Callable[[int], ServedModel]
    ) -> None:
        self._host = host
        self._find_model = find_model
        self._devices = devices
        self._scripts: LoadedByRef[TorchScript] = LoadedByRef(self._fetch, loader)

    def reference(self, key: str) -> int:
        """The reference of the script at `key`; GearsError if there is none."""
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
        return partial(script.call, call, self._host, self._find_model)

    def drop(self, ref: int) -> None:
        """Forget a script that the shard no longer has."""
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
