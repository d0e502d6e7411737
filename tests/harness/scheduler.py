"""Lets pytest-xdist distribute tests as `distribution.py` says, and finish a run after one of its processes crashed."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.harness.distribution import scope_of


class ByFileAndServer(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes the tests in the order of their collection.

    If a process crashes, the test that it ran has failed, and other processes run its remaining tests. With
    pytest-xdist 3.8, the run would never end: the finished files of the crashed process would be distributed again, and
    a process with one test waits for a second (pytest-xdist issues 1327 and 1378).
    """

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Removes a process; returns the test that it ran when it crashed."""
        groups = self.assigned_work.pop(node)
        crashed = next((test for tests in groups.values() for test, done in tests.items() if not done), None)
        if crashed is None:
            return None
        groups[scope_of(crashed)][crashed] = True
        self.workqueue.update({name: tests for name, tests in groups.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        # A process starts its last known test only when it knows that no other test follows.
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
