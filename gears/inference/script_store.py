"""The TorchScripts of the shard in this worker: compiled off the loop, called on the threads of their device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..shard.failures import GearsError
from ..shard.memory import check_fits
from .backends.choose import torch_missing
from .devices import Devices
from .loading import LoadedByRef
from .served import WaitLimit
from .tensors import Array

if TYPE_CHECKING:
    from ..scripting.runtime import Runtime
    from .torch_scripts import TorchScript


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a function of a script, for `user` (empty: with the worker's own rights)."""

    function: str
    tensors: Sequence[Array]
    keys: Sequence[str] = ()
    arguments: Sequence[str] = ()
    user: str = ""
    n_outputs: int | None = None


class ScriptStore:
    """Compiled TorchScripts by reference."""

    def __init__(self, runtime_of: Callable[[], Runtime], devices: Devices, loader: ThreadPoolExecutor) -> None:
        self._runtime_of = runtime_of
        self._devices = devices
        self._scripts: LoadedByRef[TorchScript] = LoadedByRef(self._fetch, loader)

    def reference(self, key: str) -> int:
        """The reference of the script at `key`; GearsError when there is none."""
        try:
            return int(self._runtime_of().execute("QA.SCRIPTREF", key)[0])
        except GearsError as error:
            raise GearsError(f"given key do not contain RedisAI script: {key} ({error})") from error

    async def load(self, ref: int, device: str, source: str, entry_points: Sequence[str]) -> TorchScript:
        """Compile a script that is being stored."""
        return await self._scripts.load(ref, partial(self._compile, device, source, entry_points))

    async def run(self, ref: int, call: ScriptCall, limit: WaitLimit | None = None) -> tuple[list[Array], int]:
        """Call a function of a script; its outputs and the microseconds it took."""
        script = await self._scripts.get(ref)
        return await self._devices.of(script.device).call(partial(script.call, self._runtime_of(), call), limit)

    def run_blocking(self, ref: int, call: ScriptCall) -> list[Array]:
        """As `run`, for a thread that may wait."""
        script = self._scripts.get_blocking(ref)
        return self._devices.of(script.device).call_blocking(partial(script.call, self._runtime_of(), call))

    def drop(self, ref: int) -> None:
        """The shard no longer has it."""
        self._scripts.drop(ref)

    def _fetch(self, ref: int) -> TorchScript:
        device, source, *names = self._runtime_of().links.link().execute("QA.SCRIPT", ref)
        return self._compile(device.decode(), source.decode(), [name.decode() for name in names])

    def _compile(self, device: str, source: str, entry_points: Sequence[str]) -> TorchScript:
        check_fits("script", len(source))
        self._devices.of(device)
        try:
            from .torch_scripts import TorchScript
        except ImportError as error:
            raise torch_missing(error) from error
        return TorchScript(device.upper(), source, entry_points)
