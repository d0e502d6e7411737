"""Server programs for the contract tests."""

from tests.servers import server_binary

__all__ = ["server_binary"]
