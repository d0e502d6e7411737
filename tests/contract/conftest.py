"""Server programs for the contract tests."""

from tests.harness.servers import server_binary

__all__ = ["server_binary"]
