"""The synchronous clients are the generated ones."""

from __future__ import annotations

import pytest

from tests.contract import sync_clients


def test_the_synchronous_clients_are_generated() -> None:
    stale = [path.name for path, text in sync_clients.generated().items() if path.read_text() != text]
    assert stale == [], "run: python -m tests.contract.sync_clients"


@pytest.mark.parametrize(
    ("make", "source", "expected"),
    [
        (
            sync_clients.rest_client,
            "async def aclose(self) -> AsyncClient:\n    await asyncio.sleep(1)\n",
            "def close(self) -> Client:\n    time.sleep(1)\n",
        ),
        (
            sync_clients.cluster_client,
            "class AsyncClusterClient:\n    async def put(self, id: str, *, wait: bool = True, **more: int) -> int:\n"
            '        """Doc."""\n        return 1\n',
            "    def put(self, id: str, *, wait: bool = True, **more: int) -> int:\n"
            '        """Doc."""\n        return self._run(self._client.put(id, wait=wait, **more))\n',
        ),
    ],
)
def test_a_method_becomes_synchronous(make: object, source: str, expected: str) -> None:
    assert callable(make) and expected in make(source)
