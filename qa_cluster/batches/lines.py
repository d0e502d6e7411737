"""Reads the lines of a batch's input file part by part and checks them by OpenAI's rules.

Parts are the pieces in which the cluster stores a file (`records.PART_BYTES`). The whole file is never in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from qa_cluster.errors import InvalidInput

MAX_LINE_BYTES = 1024 * 1024
MAX_CUSTOM_ID = 512
MAX_ERRORS = 100
UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A non-blank line of an input file.

    Attributes:
        number: the number of the line. The first line that `read_lines` reads has the number 1.
        text: the line; empty if it is longer than `MAX_LINE_BYTES`.
        end: the offset in the file after the line, in bytes.
    """

    number: int
    text: bytes
    end: int


@dataclass(frozen=True, slots=True)
class LineRequest:
    """The request that a line contains.

    Attributes:
        custom_id: the client's name of the request, which the line of its result repeats.
        body: the body of the request to the endpoint of the batch.
    """

    custom_id: str
    body: dict[str, Any]


async def read_lines(parts: AsyncIterator[bytes], skip: int = 0, offset: int = 0) -> AsyncIterator[InputLine]:
    """Yield the lines of a file that are not blank.

    Args:
        parts: the contents of the file, starting with the part that has the first wanted line.
        skip: the number of bytes in the first part before the first wanted line.
        offset: the offset of the first part in the file, in bytes.
    """
    rest, number, start = b"", 0, offset + skip
    too_long, may_have_mark = False, start == 0
    async for part in parts:
        data, skip = part[skip:], 0
        pieces = data.split(b"\n")
        for piece in pieces[:-1]:
            number += 1
            end = start + len(rest) + len(piece) + 1  # `start` includes the discarded part of a long line
            text = (rest + piece).removeprefix(UTF8_MARK if may_have_mark else b"")
            line = _line(number, text, end, too_long=too_long)
            rest, too_long, start, may_have_mark = b"", False, end, False
            if line is not None:
                yield line
        rest += pieces[-1]
        if too_long or len(rest) > MAX_LINE_BYTES:
            start, rest, too_long = start + len(rest), b"", True
    text = rest.removeprefix(UTF8_MARK if may_have_mark else b"")
    line = _line(number + 1, text, start + len(rest), too_long=too_long)
    if line is not None:
        yield line


def _line(number: int, text: bytes, end: int, *, too_long: bool) -> InputLine | None:
    if too_long or len(text) > MAX_LINE_BYTES:
        return InputLine(number, b"", end)
    return InputLine(number, text, end) if text.strip() else None


class LineError(InvalidInput):
    """A line is not a valid request of the batch.

    Attributes:
        code: the error code of OpenAI's interface.
        param: the name of the wrong field of the line; None if the error concerns no single field.
    """

    def __init__(self, code: str, text: str, param: str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.param = param

    def to_dict(self, number: int) -> dict[str, Any]:
        """Return the error in the form in which a batch lists it; `number` is the number of the line."""
        return {"code": self.code, "line": number, "message": str(self), "param": self.param}


def read_request(line: InputLine, endpoint: str) -> LineRequest:
    """Return the request in a line; raise LineError if it is not a valid request to `endpoint`."""
    if not line.text:
        raise LineError("line_too_long", f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        value = orjson.loads(line.text)
    except orjson.JSONDecodeError as error:
        raise LineError("invalid_json_line", f"the line is not valid JSON: {error}"[:300]) from error
    if not isinstance(value, dict):
        raise LineError("invalid_json_line", "the line must be a JSON object")
    for name in ("custom_id", "method", "url", "body"):
        if name not in value:
            raise LineError("missing_required_parameter", f"the line has no {name}", name)
    custom_id = value["custom_id"]
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        raise LineError(
            "invalid_custom_id", f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters", "custom_id"
        )
    if value["method"] != "POST":
        raise LineError("invalid_method", f"method must be POST, got {value['method']!r}"[:200], "method")
    if value["url"] != endpoint:
        raise LineError(
            "mismatched_url", f"url must be the endpoint of the batch, {endpoint}, got {value['url']!r}"[:200], "url"
        )
    if not isinstance(value["body"], dict):
        raise LineError("invalid_body", "body must be a JSON object", "body")
    return LineRequest(custom_id, value["body"])


class LineCheck:
    """Checks all lines of a file and collects the first `MAX_ERRORS` errors.

    Attributes:
        total: the number of lines that were checked.
        errors: the errors, in the form in which a batch lists them.
    """

    def __init__(self, endpoint: str, most_lines: int) -> None:
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._seen: set[str] = set()
        self.total = 0
        self.errors: list[dict[str, Any]] = []

    @property
    def ended(self) -> bool:
        """Whether the check can stop before the end of the file.

        The check can stop if it has found `MAX_ERRORS` errors or too many lines.
        """
        return len(self.errors) >= MAX_ERRORS or self.total > self._most_lines

    def add(self, line: InputLine) -> None:
        """Check the next line of the file. If the line is not valid, add its error to `errors`."""
        self.total += 1
        try:
            if self.total > self._most_lines:
                raise LineError(
                    "too_many_requests", f"a batch may have {self._most_lines} requests at most (batch_lines_max)"
                )
            request = read_request(line, self._endpoint)
            if request.custom_id in self._seen:
                raise LineError(
                    "duplicate_custom_id", f"an earlier line has the custom_id {request.custom_id[:100]!r}", "custom_id"
                )
            self._seen.add(request.custom_id)
        except LineError as error:
            self.errors.append(error.to_dict(line.number))

    def end(self) -> None:
        """Add an error if the file has no request."""
        if not self.total:
            self.errors.append(LineError("empty_file", "the input file has no request").to_dict(1))
