"""Formats the values of spreadsheet cells as the sheet shows them. Dates are written as in ISO 8601."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

MAX_FORMAT = 200
# Parts of a number format: literal text, a currency symbol, a space or a repeated character, a condition or colour, the
# separator of sections.
_PARTS = re.compile(r'"([^"]*+)"|\\(.)|\[\$([^\[\]-]*+)[^\[\]]*+\]|([_*].)|(\[[^\[\]]*+\])|(;)')
_PLACES = re.compile(r"[#0?][#0?,]*(?:\.[#0?]*,*)?")
# Formats with these characters (dates, fractions, powers, the general format) are ignored: the value itself is clearer.
_OTHER = re.compile(r"[A-Za-z/@]")
_QUOTED = "\ue000"


def shown(value: Any, number_format: str) -> str:
    """Return the value of a cell as text: a number in its format, a date or a time as in ISO 8601.

    >>> shown(0.0725, "0.0%"), shown(1234.5, '#,##0.00 "kg"'), shown(-3, "0;(0)"), shown(7, "00000")
    ('7.3%', '1,234.50 kg', '(3)', '00007')
    """
    if value is None or isinstance(value, str):
        text = value or ""
    elif isinstance(value, bool):
        text = str(value).upper()
    elif isinstance(value, int | float):
        text = _number(value, number_format)
    elif isinstance(value, datetime.datetime):
        is_date = value.time() == datetime.time() and "h" not in number_format.lower()
        text = value.date().isoformat() if is_date else _without_seconds(value.isoformat(" ", "seconds"))
    elif isinstance(value, datetime.time):
        text = _without_seconds(value.isoformat("seconds"))
    elif isinstance(value, datetime.timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        text = f"{minutes // 60}:{minutes % 60:02}" + (f":{seconds:02}" if seconds else "")
    else:
        text = str(value)
    return text


def _without_seconds(text: str) -> str:
    return text.removesuffix(":00") if text.count(":") == 2 else text


@dataclass(frozen=True, slots=True)
class _Format:
    """A section of a number format: the text around the digits, and how the digits are written.

    Attributes:
        before, after: the text before and after the digits.
        scale: the power of ten by which the value is multiplied, such as 2 for percent.
        least_digits: the least number of digits before the decimal point.
        decimals: the largest number of decimals.
        needed_decimals: the number of decimals that are written even if they are zeros.
        grouped: whether commas separate the thousands.
        has_digits: whether the section writes the number. If not, `before` is the whole text.
    """

    before: str
    after: str = ""
    scale: int = 0
    least_digits: int = 0
    decimals: int = 0
    needed_decimals: int = 0
    grouped: bool = False
    has_digits: bool = False


def _number(value: float, number_format: str) -> str:
    sections = _sections(number_format if len(number_format) <= MAX_FORMAT else "General")
    index = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0
    section = sections[index]
    if section is not None and not section.has_digits and number_format:
        return section.before
    if section is None or not section.has_digits:
        return f"{value:.11g}" if isinstance(value, float) else str(value)
    try:
        exact = Decimal(repr(value)).scaleb(section.scale)
        rounded = exact.quantize(Decimal(1).scaleb(-section.decimals), ROUND_HALF_UP)
    except InvalidOperation:  # infinite, or with more digits than a decimal has
        return str(value)
    whole, _, decimals = f"{abs(rounded):f}".partition(".")
    needed = decimals[: section.needed_decimals]
    decimals = needed + decimals[section.needed_decimals :].rstrip("0")
    whole = whole.zfill(section.least_digits)
    if section.grouped:
        whole = f"{int(whole):,}" if not whole.startswith("0") else whole
    sign = "-" if rounded < 0 and index == 0 else ""
    return f"{sign}{section.before}{whole}{'.' if decimals else ''}{decimals}{section.after}"


@lru_cache(maxsize=256)
def _sections(number_format: str) -> tuple[_Format | None, ...]:
    """Return the sections of a number format: for positive numbers, for negative numbers, for zero, and for text.

    A format may have only the first one, two or three of these sections. None means that a section is ignored, as the
    general format is: the value is written without a format.
    """
    literals: list[str] = []

    def taken(found: re.Match[str]) -> str:
        if found[6]:
            return found[0]
        if found[5] or found[4]:
            return ""
        literals.append(found[1] or found[2] or found[3] or "")
        return _QUOTED

    bare = _PARTS.sub(taken, number_format.replace(_QUOTED, ""))
    sections = []
    for text in bare.split(";"):
        own, literals = literals[: text.count(_QUOTED)], literals[text.count(_QUOTED) :]
        sections.append(_section(text, own))
    return tuple(sections)


def _section(text: str, literals: list[str]) -> _Format | None:
    found = _PLACES.search(text)
    if _OTHER.search(text) or (found is not None and _PLACES.search(text, found.end())):
        return None
    if found is None:
        return _Format(_filled(text, literals))
    bare = found[0].rstrip(",")
    digits, _, decimals = bare.partition(".")

    count = text[: found.start()].count(_QUOTED)
    return _Format(
        before=_filled(text[: found.start()], literals[:count]),
        after=_filled(text[found.end() :], literals[count:]).rstrip(),
        scale=2 * text.count("%") - 3 * (len(found[0]) - len(bare)),
        least_digits=digits.count("0"),
        decimals=len(decimals),
        needed_decimals=decimals.count("0"),
        grouped="," in digits,
        has_digits=True,
    )


def _filled(text: str, literals: list[str]) -> str:
    """Return `text`, a part of a number format, with each `_QUOTED` replaced by the next of `literals`."""
    parts = text.split(_QUOTED)
    return "".join(part + literal for part, literal in zip(parts, [*literals, ""], strict=True))
