"""Tests of the adapters in `integrations/`. Each folder runs in an environment of its own: `make test-adapters`."""

from __future__ import annotations

import os

# The environment of the other tests has none of the packages that an adapter needs.
collect_ignore_glob = [] if os.environ.get("QA_TEST_ADAPTER") else ["*"]
