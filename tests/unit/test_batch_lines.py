"""Each line of a batch's input has its number and the offset after it, for any division of the file into parts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.batches import lines
from qa_cluster.batches.lines import InputLine, LineCheck, LineError, read_lines, read_request


async def parts(data: bytes, size: int, first: int = 0) -> AsyncIterator[bytes]:
    for start in range(first * size, len(data), size):
        yield data[start : start + size]


async def read(data: bytes, size: int, offset: int = 0) -> list[InputLine]:
    part, skip = divmod(offset, size)
    return [line async for line in read_lines(parts(data, size, part), skip, part * size)]


@given(st.lists(st.binary(max_size=12).filter(lambda text: b"\n" not in text)), st.integers(1, 20), st.booleans())
async def test_reading_can_resume_after_each_line(texts: list[bytes], size: int, ended: bool) -> None:
    data = b"\n".join(texts) + (b"\n" if ended else b"")
    found = await read(data, size)
    wanted = [(number, text) for number, text in enumerate(texts, 1) if text.removeprefix(MARK[number > 1]).strip()]
    assert [(line.number, line.text) for line in found] == [
        (number, text.removeprefix(MARK[number > 1])) for number, text in wanted
    ]
    for index, line in enumerate(found):
        rest = await read(data, size, line.end)
        assert [each.text for each in rest] == [each.text for each in found[index + 1 :]]
        assert [each.end for each in rest] == [each.end for each in found[index + 1 :]]


MARK = (lines.UTF8_MARK, b"")


async def test_a_line_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    data = b"first\n" + b"x" * 50 + b"\nlast"
    for size in (1, 3, 7, 100):
        found = await read(data, size)
        assert [(line.number, line.text, line.end) for line in found] == [
            (1, b"first", 6),
            (2, b"", 57),
            (3, b"last", 61),
        ]
    with pytest.raises(LineError, match="more than 10 bytes"):
        read_request(found[1], "/qa")


def test_a_check_ends_after_the_limits() -> None:
    check = LineCheck("/qa", most_lines=3)
    for number in range(4):
        text = b'{"custom_id": "%d", "method": "POST", "url": "/qa", "body": {}}' % number
        check.add(InputLine(number + 1, text, 0))
    assert check.ended and [error["code"] for error in check.errors] == ["too_many_requests"]
    wrong = LineCheck("/qa", most_lines=1000)
    for number in range(lines.MAX_ERRORS):
        assert not wrong.ended
        wrong.add(InputLine(number + 1, b"{", 0))
    assert wrong.ended
