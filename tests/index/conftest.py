"""Indexes and watches are closed at the end of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .native_index import NativeIndex, library, made


@pytest.fixture(autouse=True)
def _no_memory_is_left() -> Iterator[None]:
    yield
    for one in made[::-1]:
        one.close()
    assert library().shim_held() == 0


@pytest.fixture
def index() -> NativeIndex:
    return NativeIndex(5)
