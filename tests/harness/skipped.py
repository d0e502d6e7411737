"""Summarizes in one line which tests were skipped, and which packages they need."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# The reason of a skip, the missing thing, and the package that contains it.
NEEDS = (
    (r"redis-server is not installed|no redis server", "redis-server", "Debian package redis-server"),
    (r"built without TLS|no server with TLS", "a server with TLS", "Debian package redis-server"),
    (r"redis-cli", "redis-cli", "Debian package redis-tools"),
    (r"openssl", "openssl", "Debian package openssl"),
    (r"curl", "curl", "Debian package curl"),
    (r"\bnode\b", "node", "Debian package nodejs"),
    (r"no C compiler", "a C compiler", "Debian package gcc"),
    (r"readelf", "readelf", "Debian package binutils"),
    (r"network namespaces|iproute2", "network namespaces", "Debian package iproute2, as root"),
    (r"\bextra is not installed|torch", "PyTorch", "make test-model"),
    (r"onnxruntime-gpu|NVIDIA|GPU", "a GPU", "an NVIDIA GPU"),
    (r"shared/data|QA_TEST_", "data sets", "not in the repository"),
    (r"is Valkey's|Redis 7.0|no partition has a mark", "a feature of the other server", "nothing to install"),
)


def summary(reasons: Iterable[str]) -> str:
    """One line about skipped tests by their reasons; empty if none was skipped."""
    counts: Counter[str] = Counter()
    for reason in reasons:
        known = next((f"{what} ({source})" for pattern, what, source in NEEDS if re.search(pattern, reason)), "")
        counts[known or reason.removeprefix("Skipped: ")] += 1
    parts = [f"{count} test{'s' * (count > 1)} on {what}" for what, count in counts.most_common()]
    return f"skipped: {', '.join(parts)}" if parts else ""
