"""Reads the content of a page: pieces of text with their positions and fonts.

See chapters 7 to 9 of https://opensource.adobe.com/dc-acrobat-sdk-docs/pdfstandards/PDF32000_2008.pdf.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .fonts import PdfFont

MAX_FORMS = 2000
MAX_FORM_DEPTH = 12
MAX_STATES = 1000
# The smallest gaps between words and between cells, in units of the font size.
WORD_GAP = 0.12
CELL_GAP = 1.0

_SPACE = rb"\x00\t\n\x0c\r "
_TOKEN = re.compile(
    rb"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?=[\x00\t\n\x0c\r \[\]()<>/%]|\Z))"
    rb"|\((?P<string>(?:[^()\\]++|\\.)*+)\)"
    rb"|<(?P<hex>[0-9A-Fa-f\x00\t\n\x0c\r ]*+)>"
    rb"|/(?P<name>[^" + _SPACE + rb"()<>\[\]{}/%]*+)"
    rb"|(?P<bracket><<|>>|[\[\]])"
    rb"|(?P<nested>\()"
    rb"|%[^\r\n]*+"
    rb"|(?P<operator>[^" + _SPACE + rb"()<>\[\]{}/%]++)"
    rb"|[{}<>)]",
    re.DOTALL,
)
_ESCAPED = re.compile(rb"\\([0-7]{1,3}|\r\n|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f", b"\n": b"", b"\r": b"", b"\r\n": b""}
_IMAGE_END = re.compile(rb"[\x00\t\n\x0c\r ]EI(?=[\x00\t\n\x0c\r ]|\Z)")
_PARENTHESIS = re.compile(rb"[()]|\\.", re.DOTALL)

Matrix = tuple[float, float, float, float, float, float]
IDENTITY: Matrix = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)


@dataclass(slots=True)
class Piece:
    """A piece of text on a baseline.

    Attributes:
        x, end, y: its start, its end and its baseline, in coordinates turned to the direction of the text.
        size: the font size on the page.
        turn: the direction of the text in counterclockwise quarter turns.
    """

    text: str
    x: float
    end: float
    y: float
    size: float
    font: PdfFont
    turn: int = 0


def product(first: Matrix, second: Matrix) -> Matrix:
    """Return the matrix that applies `first`, then `second`."""
    a, b, c, d, e, f = first
    g, h, i, j, k, l = second  # noqa: E741
    return a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l


def tokens_of(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the kind and the value of each token of a content stream.

    The kinds are number, string, name, bracket and operator. The value of a number is a float; all other values are
    bytes.
    """
    place, scan = 0, _TOKEN.search
    while (found := scan(data, place)) is not None:
        kind, place = found.lastgroup, found.end()
        if kind == "number":
            yield kind, float(found[0])
        elif kind == "operator":
            yield kind, found[0]
            if found[0] == b"ID":  # the data of a picture
                end = _IMAGE_END.search(data, place)
                place = len(data) if end is None else end.end()
        elif kind == "string":
            yield kind, _unescaped(found["string"])
        elif kind == "hex":
            digits = b"".join(found["hex"].translate(None, b"\0").split())
            yield "string", bytes.fromhex((digits + b"0" * (len(digits) % 2)).decode())
        elif kind == "nested":
            end_of_string = _closed(data, place)
            yield "string", _unescaped(data[place : end_of_string - 1])
            place = end_of_string
        elif kind is not None:
            yield kind, found[kind]


def _closed(data: bytes, place: int) -> int:
    """Return the position after the closing parenthesis of a string that contains balanced parentheses.

    `place` is the position after its opening parenthesis. If the closing parenthesis is missing, the end of the data
    counts as this parenthesis.
    """
    depth = 1
    for found in _PARENTHESIS.finditer(data, place):
        depth += (found[0] == b"(") - (found[0] == b")")
        if depth == 0:
            return found.end()
    return len(data) + 1


def _unescaped(data: bytes) -> bytes:
    return _ESCAPED.sub(_character, data) if b"\\" in data else data


def _character(found: re.Match[bytes]) -> bytes:
    code = found[1]
    if code[:1] in b"01234567" and code.isdigit():
        return bytes([int(code, 8) & 255])
    return _ESCAPES.get(code, code)


@dataclass(slots=True)
class _State:
    """The part of the graphics state that concerns text."""

    matrix: Matrix
    font: PdfFont | None = None
    size: float = 1.0
    between_characters: float = 0.0
    between_words: float = 0.0
    stretch: float = 1.0
    leading: float = 0.0
    rise: float = 0.0


class PageContent:
    """Collects the pieces of text of pages.

    Fonts are cached, because many pages share them.

    Attributes:
        artifacts: the number of characters that the file marks as running heads, running feet and ornaments.
    """

    def __init__(self) -> None:
        self.artifacts = 0
        self._fonts: dict[Any, PdfFont | None] = {}

    def pieces(self, page: Any) -> list[Piece]:
        """Return the pieces of text of a page, a page object of pypdf, in the order in which they are drawn."""
        content = page.get_contents()
        reader = _Reader(self._font_of)
        if content is not None:
            reader.read(content.get_data(), _resources(page), IDENTITY)
        for data, resources, matrix in _fields(page):
            reader.read(data, resources, matrix)
        self.artifacts += reader.artifacts
        return reader.pieces

    def _font_of(self, resources: Any, name: str) -> PdfFont | None:
        fonts = _object(resources.get("/Font")) if resources is not None else None
        if fonts is None or name not in fonts:
            return None
        raw = fonts.raw_get(name)
        key = (raw.idnum, raw.generation) if hasattr(raw, "idnum") else id(raw)
        if key not in self._fonts:
            try:
                self._fonts[key] = PdfFont(_object(raw))
            except Exception:  # a damaged font loses only its own text
                self._fonts[key] = None
        return self._fonts[key]


def _fields(page: Any) -> Iterator[tuple[bytes, Any, Matrix]]:
    """Yield the drawings that show the values of form fields and the text of text boxes.

    A drawing has a content stream, its resources, and the matrix that places it on the page. Hidden drawings are left
    out.
    """
    for found in _object(page.get("/Annots")) or ():
        note = _object(found)
        if note is None or note.get("/Subtype") not in ("/Widget", "/FreeText"):
            continue
        flags = note.get("/F", 0)
        drawn, area = _object((_object(note.get("/AP")) or {}).get("/N")), _object(note.get("/Rect"))
        if drawn is None or not hasattr(drawn, "get_data") or area is None or (isinstance(flags, int) and flags & 2):
            continue
        box = [float(number) for number in drawn.get("/BBox", [0, 0, 0, 0])]
        matrix = product(_matrix(drawn), (1, 0, 0, 1, float(area[0]) - box[0], float(area[1]) - box[1]))
        yield drawn.get_data(), _resources(drawn), matrix


def _object(value: Any) -> Any:
    return value.get_object() if hasattr(value, "get_object") else value


def _resources(owner: Any) -> Any:
    found: Any = None
    for _ in range(50):
        if owner is None or (found := _object(owner.get("/Resources"))) is not None:
            break
        owner = _object(owner.get("/Parent"))
    return found


def _matrix(form: Any) -> Matrix:
    numbers = tuple(float(number) for number in form.get("/Matrix", IDENTITY))
    return numbers if len(numbers) == 6 else IDENTITY


class _Reader:
    """Executes the operators of a content stream that place text."""

    def __init__(self, font_of: Callable[[Any, str], PdfFont | None]) -> None:
        self.pieces: list[Piece] = []
        self.artifacts = 0
        self._font_of = font_of
        self._forms = 0
        self._open: list[int] = []  # the identities of the forms that are being read
        self._marks: list[bool] = []  # for each open piece of marked content: is it an artifact?
        self._text = self._line = IDENTITY
        self._state = _State(IDENTITY)
        self._resources: Any = None

    def read(self, data: bytes, resources: Any, matrix: Matrix) -> None:
        """Read a content stream of a page, or of a form that the page places, and add its pieces of text.

        Args:
            data: the content stream.
            resources: the dictionary with the fonts and forms that the stream names; None if it is missing.
            matrix: converts the coordinates of the stream to coordinates of the page.
        """
        before = self._state, self._resources, self._marks, self._text, self._line
        self._state, self._resources, self._marks = _State(matrix), resources, []
        operands: list[Any] = []
        array: list[Any] | None = None
        operators, states = self._operators(), list[_State]()
        for kind, value in tokens_of(data):
            if kind == "operator":
                if (run := operators.get(value)) is not None:
                    # An operator with invalid operands is ignored.
                    with contextlib.suppress(IndexError, TypeError, ValueError, AttributeError, OverflowError):
                        run(operands)
                elif value in (b"q", b"Q"):
                    self._save_or_restore(value, states)
                operands, array = [], None
            elif value == b"[" and kind == "bracket":
                array = []
            elif value == b"]" and kind == "bracket":
                operands.append(array or [])
                array = None
            elif kind != "bracket":
                (operands if array is None else array).append(value)
        self._state, self._resources, self._marks, self._text, self._line = before

    def _save_or_restore(self, operator: bytes, states: list[_State]) -> None:
        if operator == b"q" and len(states) < MAX_STATES:
            states.append(replace(self._state))
        elif operator == b"Q" and states:
            self._state = states.pop()

    def _operators(self) -> dict[bytes, Callable[[list[Any]], None]]:
        return {
            b"cm": self._concatenate, b"BT": self._begin, b"Tf": self._set_font, b"Td": self._move,
            b"TD": self._move_with_leading, b"Tm": self._set_matrix, b"T*": self._next_line, b"Tj": self._show,
            b"TJ": self._show_array, b"'": self._show_next, b'"': self._show_spaced, b"Do": self._form,
            b"Tc": lambda given: setattr(self._state, "between_characters", float(given[0])),
            b"Tw": lambda given: setattr(self._state, "between_words", float(given[0])),
            b"Tz": lambda given: setattr(self._state, "stretch", float(given[0]) / 100),
            b"TL": lambda given: setattr(self._state, "leading", float(given[0])),
            b"Ts": lambda given: setattr(self._state, "rise", float(given[0])),
            b"BMC": self._mark, b"BDC": self._mark, b"EMC": self._end_mark,
        }  # fmt: skip

    def _mark(self, operands: list[Any]) -> None:
        if len(self._marks) < MAX_STATES:
            self._marks.append(operands[:1] == [b"Artifact"])

    def _end_mark(self, operands: list[Any]) -> None:
        if self._marks:
            self._marks.pop()

    def _concatenate(self, operands: list[Any]) -> None:
        a, b, c, d, e, f = map(float, operands[-6:])
        self._state.matrix = product((a, b, c, d, e, f), self._state.matrix)

    def _begin(self, operands: list[Any]) -> None:
        self._text = self._line = IDENTITY

    def _set_font(self, operands: list[Any]) -> None:
        self._state.font = self._font_of(self._resources, "/" + operands[0].decode("latin-1"))
        self._state.size = float(operands[1])

    def _set_matrix(self, operands: list[Any]) -> None:
        a, b, c, d, e, f = map(float, operands[-6:])
        self._text = self._line = (a, b, c, d, e, f)

    def _move(self, operands: list[Any]) -> None:
        x, y = float(operands[0]), float(operands[1])
        a, b, c, d, e, f = self._line
        self._text = self._line = (a, b, c, d, x * a + y * c + e, x * b + y * d + f)

    def _move_with_leading(self, operands: list[Any]) -> None:
        self._state.leading = -float(operands[1])
        self._move(operands)

    def _next_line(self, operands: list[Any]) -> None:
        self._move([0.0, -self._state.leading])

    def _show(self, operands: list[Any]) -> None:
        self._show_array([operands[-1:]])

    def _show_next(self, operands: list[Any]) -> None:
        self._next_line([])
        self._show(operands)

    def _show_spaced(self, operands: list[Any]) -> None:
        self._state.between_words, self._state.between_characters = float(operands[0]), float(operands[1])
        self._show_next(operands)

    def _show_array(self, operands: list[Any]) -> None:
        """Show strings. A number between strings moves the next string."""
        state = self._state
        font, size = state.font, state.size
        if font is None:
            return
        parts: list[str] = []
        begun = place = 0.0  # in units of the text's own space
        gap = abs(size) * WORD_GAP * state.stretch
        for value in operands[-1]:
            if isinstance(value, float):
                step = -value / 1000 * size * state.stretch
                if step > gap and parts:
                    if step > gap / WORD_GAP * CELL_GAP:
                        self._add("".join(parts), begun, place)
                        parts, begun = [], place + step
                    elif parts[-1][-1:] != " ":
                        parts.append(" ")
                place += step
                if not parts:
                    begun = place
                continue
            text, width, count = font.decode(value)
            width = width * size + count * state.between_characters
            if state.between_words:
                width += value.count(b" ") * state.between_words
            place += width * state.stretch
            parts.append(text)
        if parts:
            self._add("".join(parts), begun, place)
        a, b, c, d, e, f = self._text
        self._text = (a, b, c, d, e + place * a, f + place * b)

    def _add(self, text: str, begun: float, end: float) -> None:
        """Add a piece between two positions on the baseline, which count from the current position of the text.

        Spaces at the start and the end of `text` do not count for its width.
        """
        stripped = text.strip()
        if not stripped:
            return
        if any(self._marks):
            self.artifacts += len(stripped)
            return
        state = self._state
        a, b, c, d, e, f = product(self._text, state.matrix)
        e, f = e + state.rise * c, f + state.rise * d
        size = abs(state.size) * math.hypot(c, d)
        if not (0.1 < size < 2000 and math.isfinite(e) and math.isfinite(f)):
            return
        if len(stripped) != len(text):
            each = (end - begun) / len(text)
            begun, end = begun + (len(text) - len(text.lstrip())) * each, end - (len(text) - len(text.rstrip())) * each
        x, y, last_x, last_y = e + begun * a, f + begun * b, e + end * a, f + end * b
        if abs(a) >= abs(b):
            turn, place = (0, (x, last_x, y)) if a >= 0 else (2, (-x, -last_x, -y))
        else:
            turn, place = (1, (y, last_y, -x)) if b > 0 else (3, (-y, -last_y, x))
        assert state.font is not None
        self.pieces.append(Piece(stripped, place[0], max(place[0], place[1]), place[2], size, state.font, turn))

    def _form(self, operands: list[Any]) -> None:
        """Read a form: a content stream that the page places."""
        found = _object((self._resources or {}).get("/XObject"))
        name = "/" + operands[0].decode("latin-1")
        form = _object(found[name]) if found is not None and name in found else None
        if form is None or form.get("/Subtype") != "/Form" or any(self._marks):
            return
        if self._forms >= MAX_FORMS or len(self._open) >= MAX_FORM_DEPTH or id(form) in self._open:
            return
        self._forms += 1
        self._open.append(id(form))
        try:
            matrix = product(_matrix(form), self._state.matrix)
            self.read(form.get_data(), _object(form.get("/Resources")) or self._resources, matrix)
        finally:
            self._open.pop()
