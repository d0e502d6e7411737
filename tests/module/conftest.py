"""Fixtures of the module's tests."""

from __future__ import annotations

from tests.harness.servers import server, server_binary, shared_binary
from tests.module.ai import ai, ai_server, shared_ai, shared_ai_server
from tests.module.registrations import shared

__all__ = ["ai", "ai_server", "server", "server_binary", "shared", "shared_ai", "shared_ai_server", "shared_binary"]
