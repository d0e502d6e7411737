"""Stores executions for the commands about them, such as `RG.DUMPEXECUTIONS` and `RG.GETEXECUTION`.

The history has the running executions of pipelines, and a limited number of finished executions.

As in RedisGears, the run of a waiting client is removed at its end, because the client gets its results.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from functools import partial

from ...shard.failures import GearsError
from ..host.executions import Execution

MAX_EXECUTIONS = 1000
MAX_EXECUTIONS_PER_REGISTRATION = 100
MISSING_EXECUTION = "execution does not exist"


class ExecutionHistory:
    """All running executions, and the last finished executions within the limits of RedisGears' settings.

    Attributes:
        max_executions: the limit of executions without a registration (`MaxExecutions`).
        max_per_registration: the limit of executions of each registration (`MaxExecutionsPerRegistration`).
    """

    def __init__(self) -> None:
        self.max_executions = MAX_EXECUTIONS
        self.max_per_registration = MAX_EXECUTIONS_PER_REGISTRATION
        self._executions: OrderedDict[str, Execution] = OrderedDict()
        self._registered: dict[str, OrderedDict[str, Execution]] = {}

    def add(self, execution: Execution) -> None:
        """Add an execution of a script or of another shard; drop the oldest finished executions above the limit."""
        self._executions[execution.id] = execution
        _shorten(self._executions, self.max_executions)

    def add_until_end(self, execution: Execution) -> None:
        """Add an execution, and remove it when it ends."""
        execution.leave_list = partial(self._leave, execution.id)
        self.add(execution)

    def _leave(self, execution_id: str) -> None:
        self._executions.pop(execution_id, None)

    def add_registered(self, registration_id: str, execution: Execution) -> None:
        """Add an execution of a registration; drop the registration's oldest finished executions above the limit."""
        executions = self._registered.setdefault(registration_id, OrderedDict())
        executions[execution.id] = execution
        _shorten(executions, self.max_per_registration)

    def abort_pending(self, registration_id: str, reason: str) -> None:
        """Abort the executions of a registration that have not begun. They end with the error `reason`."""
        for execution in self._registered.get(registration_id, {}).values():
            if execution.pending:
                execution.abort(reason)

    def forget_registration(self, registration_id: str) -> None:
        """Drop the history of a removed registration. Its running executions stay until they end."""
        for execution in self._registered.pop(registration_id, {}).values():
            if not execution.finished:
                self.add_until_end(execution)

    def all(self) -> list[Execution]:
        """Return all stored executions: first those without a registration, then those of each registration."""
        listed = itertools.chain.from_iterable(executions.values() for executions in self._registered.values())
        return [*self._executions.values(), *listed]

    def get(self, execution_id: str) -> Execution | None:
        """Return the execution with this id; None if it is unknown on this shard."""
        stores = (self._executions, *self._registered.values())
        return next((store[execution_id] for store in stores if execution_id in store), None)

    def drop(self, execution_id: str) -> bool:
        """Drop a finished execution; return False if the execution is unknown on this shard.

        Raise GearsError if the execution has not finished.
        """
        execution = self.get(execution_id)
        if execution is None:
            return False
        if not execution.finished:
            raise GearsError("can not drop a not yet finished execution, abort it first.")
        for executions in (self._executions, *self._registered.values()):
            executions.pop(execution_id, None)
        return True

    def abort(self, execution_id: str) -> bool:
        """Stop an execution; return False if the execution is unknown on this shard.

        A finished execution stays as it is, and the result is True.
        """
        execution = self.get(execution_id)
        if execution is not None:
            execution.abort()
        return execution is not None


def _shorten(executions: OrderedDict[str, Execution], limit: int) -> None:
    """Drop the oldest finished executions until at most `limit` executions remain. Running executions stay."""
    while len(executions) > limit:
        first = next(iter(executions))
        if executions[first].finished:  # the usual case, in which no search is necessary
            del executions[first]
            continue
        oldest = next((name for name, execution in executions.items() if execution.finished), None)
        if oldest is None:
            return
        del executions[oldest]
