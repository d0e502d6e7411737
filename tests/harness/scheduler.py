"""Lets pytest-xdist distribute tests as `distribution.py` says."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.harness.distribution import scope_of


class ByFileAndServer(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes the tests in the order of their collection."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
