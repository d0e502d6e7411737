"""The shard's TorchScripts: compiles them off the event loop, and calls their functions on device threads.

Each script runs in a separate process. If `qa.model-processes` is 0, scripts run in the worker.
"""

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
from .isolated_script import IsolatedScript
from .script_caller import ShardCaller, TorchScriptCall

if TYPE_CHECKING:
    from .torch_scripts import TorchScript

    AnyScript = TorchScript | IsolatedScript


class ScriptStore:
    """Compiled TorchScripts by reference: the module's number for a stored script, which changes with its bytes.
    Scripts use the devices and the loader thread of `models`, and can run its models.
    """

    def __init__(self, host: ScriptHost, models: ModelStore) -> None:
        self._host = host
        self._models = models
        self._devices = models.foreign_devices
        self._scripts: LoadedByRef[AnyScript] = LoadedByRef(self._fetch, models.foreign_loader, _close)

    def reference(self, key: str) -> int:
        """Return the reference of the script at `key`. Raise GearsError if the key has no script."""
        try:
            return int(self._host.execute("QA.SCRIPTREF", key)[0])
        except GearsError as error:
            raise GearsError(f"given key do not contain RedisAI script: {key} ({error})") from error

    async def load(self, ref: int, device: str, source: str, entry_points: Sequence[str]) -> AnyScript:
        """Compile a script before the module stores it in a key, and keep the compiled script under `ref`."""
        return await self._scripts.load(ref, partial(self._compile, ref, device, source, entry_points))

    async def run(self, ref: int, call: TorchScriptCall, limit: WaitLimit | None = None) -> tuple[list[Array], int]:
        """Call a function of a script; return its outputs and its duration in microseconds.

        `limit` decides whether the call may still start; None: the call may start at any time.
        """
        script = await self._scripts.get(ref)
        isolated = isinstance(script, IsolatedScript)
        return await self._devices.of(script.device).call(self._bound(script, call), limit, isolated=isolated)

    def run_blocking(self, ref: int, call: TorchScriptCall) -> list[Array]:
        """Like `run`, for a thread that may wait. Return only the outputs."""
        script = self._scripts.get_blocking(ref)
        return self._devices.of(script.device).call_blocking(self._bound(script, call))

    def _bound(self, script: AnyScript, call: TorchScriptCall) -> Callable[[], list[Array]]:
        return partial(script.call, call, ShardCaller(self._host, self._models.get_blocking, call.user))

    def drop(self, ref: int) -> None:
        """Drop a script that the shard does not have any more."""
        self._scripts.drop(ref)

    def _fetch(self, ref: int) -> AnyScript:
        device, source, *names = self._host.links.link().execute("QA.SCRIPT", ref)
        return self._compile(ref, device.decode(), source.decode(), [name.decode() for name in names])

    def _compile(self, ref: int, device: str, source: str, entry_points: Sequence[str]) -> AnyScript:
        check_fits("script", len(source))
        self._devices.of(device)
        isolated = self._models.isolated
        if isolated is not None:
            script = IsolatedScript(
                isolated,
                ref,
                device=device.upper(),
                source=source,
                entry_points=entry_points,
                limits=self._models.limits(),
            )
            script.open()
            return script
        try:
            from .torch_scripts import TorchScript
        except ImportError as error:
            raise torch_missing(error) from error
        return TorchScript(device.upper(), source, entry_points)


def _close(script: AnyScript) -> None:
    if isinstance(script, IsolatedScript):
        script.close()
