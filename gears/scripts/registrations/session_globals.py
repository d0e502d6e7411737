"""Makes functions from another shard use their session's globals on this shard.

If a function starts a run, the run's functions are sent to the other shards. On each shard, they must use the globals
of their session, which other functions of the session may have changed. So globals are sent by name, not by value.
Numbers and texts are sent by value. A global that the sender's session lacks is sent with the function.
"""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import cloudpickle

from ...shard.failures import GearsError
from ..runs.plan import ExecutionPlan
from ..runs.sources import KeysOnlySource, PythonSource
from .on_registered import OnRegisteredCalls
from .sessions import Registration, ScriptSession, SessionRegistry, module_name

# Functions and classes are sent by value, because a run may have functions that the session lacks.
_BY_VALUE = (str, bytes, int, float, complex, tuple, frozenset, type, type(None), types.ModuleType, types.FunctionType)


def globals_of(session: ScriptSession) -> dict[str, Any] | None:
    """Return the dictionary of globals that a session's functions share on this shard.

    None: no function of the session is from the session's script.
    """
    name = module_name(session.id)
    for registration in session.registrations.values():
        functions = [registration.on_registered, *(f for step in registration.steps for f in (step.function, step.key))]
        for function in functions:
            for inner in _functions_in(function, set()):
                if inner.__globals__.get("__name__") == name:
                    return inner.__globals__
    return None


def _functions_in(value: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    """Yield `value` if it is a function, and all functions in its closure or in the parts of a `partial`.

    `seen` has the ids of the objects that were already visited.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        yield value
        for content in map(_content, value.__closure__ or ()):
            yield from _functions_in(content, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _functions_in(part, seen)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an unset variable
        return None


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, names: dict[int, str]) -> None:
        super().__init__(file)
        self._names = names

    def persistent_id(self, value: Any) -> str | None:
        return self._names.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, home: dict[str, Any]) -> None:
        super().__init__(file)
        self._home = home

    def persistent_load(self, name: Any) -> Any:
        if name not in self._home:
            raise GearsError(f"ERR the session has no global {name!r} on this shard: set it in onRegistered")
        return self._home[name]


def _rebound(value: Any, *, name: str, home: dict[str, Any], seen: dict[int, Any]) -> Any:
    """Return a copy of the function `value` with the globals `home` if the function is from the module `name`.

    Return any other value itself. The functions in a closure or a `partial` are replaced in the same way. Globals that
    `home` lacks are added to `home`. `seen` has the results for objects that were already visited, by object id.
    """
    if id(value) in seen:
        return seen[id(value)]
    move: Callable[[Any], Any] = functools.partial(_rebound, name=name, home=home, seen=seen)
    if isinstance(value, functools.partial):
        moved = seen[id(value)] = functools.partial(
            move(value.func), *map(move, value.args), **{key: move(part) for key, part in value.keywords.items()}
        )
        return moved
    if not isinstance(value, types.FunctionType):
        return value
    found = seen[id(value)] = _over(value, home) if value.__globals__.get("__name__") == name else value
    for cell in value.__closure__ or ():
        content = _content(cell)
        if isinstance(content, (types.FunctionType, functools.partial)):
            cell.cell_contents = move(content)
    if found is not value:
        for key, known in list(value.__globals__.items()):
            if key not in home:
                home[key] = move(known)
    return found


def _over(function: types.FunctionType, home: dict[str, Any]) -> types.FunctionType:
    if function.__globals__ is home:
        return function
    made = types.FunctionType(
        function.__code__, home, function.__name__, function.__defaults__, cast(Any, function.__closure__)
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    made.__dict__.update(function.__dict__)
    return made


class SharedSessions:
    """The sessions of this shard, for runs over all shards."""

    def __init__(self, sessions: SessionRegistry, on_registered: OnRegisteredCalls) -> None:
        self._sessions = sessions
        self._on_registered = on_registered

    def get(self, session_id: str) -> ScriptSession | None:
        """Return the session with this id; None if it is missing."""
        return self._sessions.get(session_id)

    def registration(self, registration_id: str) -> tuple[ScriptSession, Registration]:
        """Return a registration and its session. Raise GearsError if the registration is missing."""
        return self._sessions.registration(registration_id)

    def pack(self, value: Any, session_id: str | None) -> bytes:
        """Pickle a value with functions of a session, without the values of the session's globals.

        If `session_id` is None or the session has no globals on this shard, pickle the value completely.
        """
        home = self._globals(session_id)
        if home is None:
            packed: bytes = cloudpickle.dumps(value)
            return packed
        file = io.BytesIO()
        named = ((name, known) for name, known in home.items() if not name.startswith("__"))
        _Pickler(file, {id(known): name for name, known in named if not isinstance(known, _BY_VALUE)}).dump(value)
        return file.getvalue()

    def unpack(self, packed: bytes, session_id: str | None) -> Any:
        """Return the value that `pack` has pickled on another shard. Raise GearsError if a global is missing here."""
        return _Unpickler(io.BytesIO(packed), self._globals(session_id) or {}).load()

    def with_local_globals(self, plan: ExecutionPlan, session_id: str | None) -> ExecutionPlan:
        """Return a copy of a plan from another shard, with functions that use the globals of their session on this
        shard. If the session has no globals on this shard, return the plan itself.
        """
        home = self._globals(session_id)
        if home is None or session_id is None:
            return plan
        move = functools.partial(_rebound, name=module_name(session_id), home=home, seen={})
        steps = tuple(replace(step, function=move(step.function), key=move(step.key)) for step in plan.steps)
        source = plan.source
        if isinstance(source, PythonSource):
            source = replace(source, generator=move(source.generator))
        elif isinstance(source, KeysOnlySource):
            source = replace(source, pattern_generator=move(source.pattern_generator))
        return replace(plan, source=source, steps=steps)

    async def until_started(self, registration_id: str) -> None:
        """Wait until the functions of a registration may start on this shard (`OnRegisteredCalls.until_returned`)."""
        await self._on_registered.until_returned(registration_id)

    def _globals(self, session_id: str | None) -> dict[str, Any] | None:
        session = self._sessions.get(session_id) if session_id else None
        return globals_of(session) if session is not None else None
