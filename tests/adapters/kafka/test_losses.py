"""A short form of `make kafka-losses`: 300 questions while a broker, a consumer and a shard are killed."""

from __future__ import annotations

import pytest

from tests.adapters.kafka import losses


@pytest.mark.parametrize("mode", ["once", "least"])
def test_nothing_is_lost(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert losses.main(["--questions", "300", "--rounds", "1", "--mode", mode]) == 0
    printed = capsys.readouterr().out
    assert ", 0 lost, " in printed
    assert mode == "least" or ", 0 answered twice, " in printed
