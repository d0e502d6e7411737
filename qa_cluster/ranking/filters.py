"""Filters, which select documents for a question or a search by their metadata and their ids.

The long form is Haystack's: ``{"field": "meta.year", "operator": ">=", "value": 2020}``. Such conditions are combined
as ``{"operator": "AND", "conditions": [..]}``. The short form is a string: ``year>=2020``, ``lang=en,de``. This module
converts both forms, and the metadata of documents, to the binary form of the index (``docs/inverted-index.md``). Values
have these meanings:

- Numbers, true and false keep their types.
- A string with a date or a time of ISO 8601 is a point in time with a precision of 1 ns. Without a time zone, it is in
  UTC (`moment_of`).
- Any other string is text. An array satisfies a condition if one of its values satisfies it.
- The fields of a nested object are named with dots, such as ``author.name``.
- Null is the value of a field that is missing or null. All other values are not null, including an empty array and a
  value without a binary form. An object is not null if one of its fields is not null.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.keys import encode_id

MAX_FIELDS = 256
MAX_FIELDS_BYTES = 65536
MAX_NAME_BYTES = 255
MAX_TEXT_BYTES = 1024
MAX_NODES = 256
MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_FILTER_BYTES = 65536

_LOGIC = {"AND": b"&", "OR": b"|"}
_COMPARISONS = {"==": b"=", "!=": b"#", "<": b"<", "<=": b"[", ">": b">", ">=": b"]"}
_MEMBERSHIP = {"in": b"i", "not in": b"o"}
# Comparisons with null in the binary form: ``==`` is true if the document lacks the field, ``!=`` if it has the field.
_NULL = {"==": b"z", "!=": b"e"}
EXISTS = "exists"
_ORDERING = frozenset({"<", "<=", ">", ">="})
_TIME = re.compile(
    r"(?:(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)|(?P<basic>\d{8})(?=[Tt])"
    r"|(?P<week_year>\d{4})(?P<dash>-?)W(?P<week>\d\d)(?P=dash)(?P<weekday>[1-7]))"
    r"(?:[Tt ](?P<hour>\d\d)(?::?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r"(?P<zone>[Zz]|(?P<sign>[+\u2212-])(?P<zone_hour>\d\d)(?::?(?P<zone_minute>\d\d))?)?)?",
    re.ASCII,
)
_DAY = 86_400
_NANOSECONDS = 9
# The day number of 1970-01-01 in Python.
_FIRST_DAY = date(1970, 1, 1).toordinal()
# The first match in a short filter is its operator.
_OPERATOR = re.compile(r"(?<![=!<>])(?:==|=|!=|<=|>=|<|>)")


@dataclass(frozen=True, slots=True)
class Filter:
    """A checked filter: its binary form for the index, and its canonical form.

    The canonical form is a part of the names of cached answers. It does not depend on whether a condition was given in
    the short form or in the long form.

    `place` is the field of the request that contains the filter: ``filters`` if the long form is used, otherwise
    ``filter``.
    """

    packed: bytes
    canonical: Any
    place: str = "filters"

    def fields(self) -> dict[str, bool]:
        """Return the fields that the filter uses, each with a flag.

        The flag is true if the filter only requires that the field exists. A field that the filter compares with null
        by ``==`` is left out, because documents may lack this field.

        >>> chosen_by(short=["year>2020", "lang=null,en", "tags!=null"]).fields()
        {'year': False, 'tags': True}
        """
        found: dict[str, bool] = {}
        optional: set[str] = set()
        nodes = [self.canonical]
        while nodes:
            operator, *rest = nodes.pop(0)
            if operator in _LOGIC or operator == "NOT":
                nodes += rest
            elif rest[1] is None and operator == "==":
                optional.add(rest[0])
            elif rest[0]:
                found[rest[0]] = found.get(rest[0], True) and rest[1] is None
        return {name: demanded for name, demanded in found.items() if name not in optional}


def chosen_by(filters: object = None, short: Sequence[str] = (), document_ids: Sequence[str] = ()) -> Filter | None:
    """Combine the options of a request into one filter; None if no option is given.

    Args:
        filters: a filter in the long form.
        short: conditions in the short form; all must hold.
        document_ids: the documents that the filter selects; empty: all documents.

    Raises:
        InvalidInput: an option is invalid. The error names the field and what is wrong.
        InputTooLong: the filter exceeds a limit, which the error names.

    >>> chosen_by(short=["year>=2020"]).canonical
    ['>=', 'year', 2020]
    """
    size = _Size()
    parts: dict[str, _Part] = {}
    if document_ids:
        parts["doc_id"] = lambda depth: size.counted(["in", "", sorted({*document_ids})], depth, "doc_id")
    if filters is not None:
        parts["filters"] = lambda depth: _checked(filters, "filters", size, depth)
    if short:
        conditions = [partial(_short, text, "filter", size) for text in short]
        parts["filter"] = lambda depth: _all(conditions, "filter", depth, size)
    if not parts:
        return None
    where = " and ".join(parts)
    canonical = _all(list(parts.values()), where, 1, size)
    packed = _pack(canonical)
    if len(packed) > MAX_FILTER_BYTES:
        raise InputTooLong(f"{where}: the filter takes {len(packed)} bytes, the limit is {MAX_FILTER_BYTES}")
    return Filter(packed, canonical, "filter" if filters is None else "filters")


def pack_fields(metadata: Mapping[str, Any]) -> bytes:
    """Pack the metadata of a document in the binary form of the index.

    A field that is null is left out. A field whose value has no binary form (a text of more than 1,024 bytes, an array
    of arrays or objects) has no values, like an empty array. These fields are left out: fields beyond 256 fields or
    65,536 bytes, fields nested deeper than 32 levels, and fields with a name of more than 255 bytes.
    """
    parts: list[bytes] = []
    size = 2
    names: set[bytes] = set()
    for name, value in _flat(metadata, ""):
        encoded = name.encode("utf-8", "replace")
        values = [_pack_value(item) for item in (value if isinstance(value, list) else [value]) if _fits(item)]
        packed = bytes([len(encoded)]) + encoded + struct.pack("<H", len(values)) + b"".join(values)
        if encoded in names or len(parts) == MAX_FIELDS or size + len(packed) > MAX_FIELDS_BYTES:
            continue
        names.add(encoded)
        parts.append(packed)
        size += len(packed)
    return struct.pack("<H", len(parts)) + b"".join(parts) if parts else b""


def _flat(metadata: Mapping[str, Any], prefix: str, depth: int = 1) -> Iterator[tuple[str, Any]]:
    for name, value in metadata.items():
        path = prefix + name
        if isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                yield from _flat(value, f"{path}.", depth + 1)
        elif 1 <= len(path.encode("utf-8", "replace")) <= MAX_NAME_BYTES and value is not None:
            yield path, value[: MAX_VALUES + 1] if isinstance(value, list) else value


def _fits(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace")) <= MAX_TEXT_BYTES
    if isinstance(value, int | float):
        return math.isfinite(_number(value))
    return False


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def moment_of(text: str) -> tuple[int, int] | None:
    """Return a time as seconds since 1970 and nanoseconds within the second; None if the text is not a time.

    The accepted forms are from ISO 8601 and RFC 3339: a date or week date, alone or with a time of day, with or without
    hyphens and colons. A time without a time zone is in UTC. Digits of a fraction after the ninth are ignored. A date
    of eight digits needs a time of day, because alone it could be any number.

    >>> moment_of("1970-01-02"), moment_of("19700101T010000.25+01"), moment_of("soon"), moment_of("1970-02-30")
    ((86400, 0), (0, 250000000), None, None)
    """
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        day = _day(found).toordinal() - _FIRST_DAY
    except ValueError:
        return None
    hour, minute, second, zone_hour, zone_minute = (
        int(found[name] or 0) for name in ("hour", "minute", "second", "zone_hour", "zone_minute")
    )
    fraction = int((found["fraction"] or "")[:_NANOSECONDS].ljust(_NANOSECONDS, "0"))
    ends_day = (hour, minute, second, fraction) == (24, 0, 0, 0)
    # A leap second is the first second of the next minute, as in POSIX.
    if not (hour < 24 or ends_day) or minute > 59 or second > 60 or zone_hour > 23 or zone_minute > 59:
        return None
    offset = (zone_hour * 60 + zone_minute) * 60 * (1 if found["sign"] == "+" else -1)
    return day * _DAY + (hour * 60 + minute) * 60 + second - offset, fraction


def _day(found: re.Match[str]) -> date:
    if found["week"]:
        return date.fromisocalendar(int(found["week_year"]), int(found["week"]), int(found["weekday"]))
    if written := found["basic"]:
        return date(int(written[:4]), int(written[4:6]), int(written[6:]))
    return date(int(found["year"]), int(found["month"]), int(found["day"]))


def _pack_value(value: str | float) -> bytes:
    if isinstance(value, bool):
        return b"b" + bytes([value])
    if isinstance(value, int | float):
        return struct.pack("<cd", b"n", _number(value))
    moment = moment_of(value)
    if moment is not None:
        return struct.pack("<cqI", b"m", *moment) if moment[1] else struct.pack("<cq", b"t", moment[0])
    text = value.encode("utf-8", "replace")
    return struct.pack("<cH", b"s", len(text)) + text


# ---- The canonical form ----


@dataclass
class _Size:
    """Counts conditions while a filter is parsed, so that a filter that is too large is refused early."""

    nodes: int = 0

    def counted(self, node: list[Any], depth: int, where: str) -> list[Any]:
        """Count and return the condition `node`; InputTooLong if the filter has too many conditions or is too deep.

        `depth` is the level of the condition; the outermost condition has depth 1. `where` names the option or the part
        of the filter in the error.
        """
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise InputTooLong(f"{where}: a filter may have at most {MAX_NODES} conditions and {MAX_DEPTH} levels")
        return node


# Creates a condition at a given depth. The outermost condition has depth 1.
_Part = Callable[[int], list[Any]]


def _all(parts: Sequence[_Part], where: str, depth: int, size: _Size) -> list[Any]:
    """Return one condition that is true if all given conditions are true.

    `depth` is the level of this condition. `where` names the option or the part of the filter in errors.
    """
    if len(parts) == 1:
        return parts[0](depth)
    return [*size.counted(["AND"], depth, where), *(part(depth + 1) for part in parts)]


# ---- The long form ----


def _checked(node: object, where: str, size: _Size, depth: int) -> list[Any]:
    if not isinstance(node, Mapping):
        raise _invalid(where, f"must be an object with an operator, got {type(node).__name__}")
    operator = node.get("operator")
    if operator in (*_LOGIC, "NOT"):
        _only(node, ("operator", "conditions"), where)
        conditions = node.get("conditions")
        if not isinstance(conditions, Sequence) or isinstance(conditions, str) or not conditions:
            raise _invalid(f"{where}/conditions", f"must be a non-empty list for {operator}")
        joined = size.counted([operator], depth, where)
        inner = [partial(_checked, each, f"{where}/conditions/{i}", size) for i, each in enumerate(conditions)]
        if operator == "NOT":
            return [*joined, _all(inner, where, depth + 1, size)]
        return [*joined, *(part(depth + 1) for part in inner)]
    if operator not in (*_COMPARISONS, *_MEMBERSHIP, EXISTS):
        known = ", ".join((*_COMPARISONS, *_MEMBERSHIP, EXISTS, *_LOGIC, "NOT"))
        raise _invalid(f"{where}/operator", f"must be one of {known}, got {operator!r}")
    _only(node, ("field", "operator", "value"), where)
    field = node.get("field")
    if not isinstance(field, str):
        raise _invalid(f"{where}/field", f"must be a string, got {type(field).__name__}")
    if operator == EXISTS:
        value = node.get("value", True)
        if not isinstance(value, bool):
            raise _invalid(f"{where}/value", f"must be true or false for {EXISTS!r}, got {type(value).__name__}")
        return _condition(field, "!=" if value else "==", None, where, size=size, depth=depth)
    if "value" not in node:
        raise _invalid(f"{where}/value", "is missing")
    return _condition(field, operator, node["value"], where, size=size, depth=depth)


def _only(node: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    for name in node:
        if name not in known:
            raise _invalid(where, f"has an unknown member {name!r}, the known members are {', '.join(known)}")


def _condition(field: str, operator: str, value: Any, where: str, *, size: _Size, depth: int) -> list[Any]:
    name = "" if field == "id" else field.removeprefix("meta.")
    if (not name and field != "id") or not is_unicode(name) or len(name.encode()) > MAX_NAME_BYTES:
        raise _invalid(f"{where}/field", f"must be id or have 1 to {MAX_NAME_BYTES} bytes, got {field[:100]!r}")
    if operator not in _MEMBERSHIP:
        _check_value(name, operator, value, where)
        return size.counted([operator, name, value], depth, where)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _invalid(f"{where}/value", f"must be a list for {operator!r}, got {type(value).__name__}")
    if len(value) > MAX_VALUES:
        raise InputTooLong(f"{where}/value has {len(value)} values, the limit is {MAX_VALUES}")
    for item in value:
        _check_value(name, operator, item, where)
    values = [item for item in value if item is not None]
    if len(values) == len(value):
        return size.counted([operator, name, values], depth, where)
    equal, joined = ("==", "OR") if operator == "in" else ("!=", "AND")
    if not values:
        return size.counted([equal, name, None], depth, where)
    node = size.counted([joined], depth, where)
    return [*node, *(size.counted(each, depth + 1, where) for each in ([equal, name, None], [operator, name, values]))]


def _check_value(name: str, operator: str, value: Any, where: str) -> None:
    where = f"{where}/value"
    if value is None:
        if not name or operator in _ORDERING:
            what = f"must be a number or a date for {operator}" if name else "must be a document's id"
            raise _invalid(where, f"{what}, got null")
        return
    if not isinstance(value, str | int | float):
        raise _invalid(where, f"must be text, a number, true, false or null, got {type(value).__name__}")
    if isinstance(value, str) and not is_unicode(value):
        raise _invalid(where, "contains a lone surrogate: it is not valid Unicode")
    if not _fits(value):
        raise _invalid(where, f"must be a finite number, or a text of at most {MAX_TEXT_BYTES} bytes")
    if not name and (not isinstance(value, str) or not value):
        raise _invalid(where, f"must be a document's id, got {value!r}")
    if operator in _ORDERING and (
        not name or isinstance(value, bool) or (isinstance(value, str) and moment_of(value) is None)
    ):
        raise _invalid(where, f"must be a number or a date (2020-01-31) for {operator}, got {value!r}")


def _invalid(where: str, said: str) -> InvalidInput:
    """Return the error for an invalid filter: `where` names the invalid part, and `said` says what is wrong.

    The `place` of the error is the invalid part of a filter in the long form, or the whole filter in the short form.
    """
    place = where if where.startswith("filters") else where.partition("/")[0]
    return InvalidInput(f"{where} {said}"[:300], place=place)


# ---- The short form ----


def _short(text: str, where: str, size: _Size, depth: int) -> list[Any]:
    """Parse ``name=value``, ``name=one,two`` (either value), ``name!=value``, ``name<value`` and so on.

    A value in double quotes is text and may contain commas. A value without quotes becomes a number, true, false or
    null if it looks like one of these. All other values, and all values of the field ``id``, are text.
    """
    found = _OPERATOR.search(text)
    name = text[: found.start()].strip() if found else ""
    if found is None or not name or "!" in name:
        raise _invalid(where, f"must look like year>=2020 or lang=en, got {text[:100]!r}")
    operator, written = found[0].replace("==", "="), text[found.end() :].strip()
    values = [_short_value(value, is_id=name == "id") for value in _split(written)]
    if len(values) > 1:
        if operator not in ("=", "!="):
            raise _invalid(where, f"must have one value for {operator}, got {text[:100]!r}")
        return _condition(name, "in" if operator == "=" else "not in", values, where, size=size, depth=depth)
    return _condition(name, "==" if operator == "=" else operator, values[0], where, size=size, depth=depth)


_WORDS = {"true": True, "false": False, "null": None}
_QUOTED = re.compile(r'\s*+("(?:[^"\\]|\\.)*+")\s*+(,|\Z)', re.DOTALL)
_UNQUOTED = re.compile(r"([^,]*+)(,|\Z)")
_DECIMAL = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d{1,3})?")


def _split(text: str) -> list[str]:
    values, at, separator = [], 0, ","
    while separator:
        found = _QUOTED.match(text, at) or _UNQUOTED.match(text, at)
        value = found[1].strip() if found else '"'
        if found is None or value.startswith('"') != value.endswith('"') or value == '"':
            raise _invalid("filter", f"has an unclosed quote: {text[:100]!r}")
        values.append(value)
        at, separator = found.end(), found[2]
    return values


def metadata_of(texts: Sequence[str]) -> dict[str, Any]:
    """Parse metadata from texts of the form ``name=value``. Values are parsed as in short filters.

    Several values form an array. InvalidInput if a text is invalid.

    >>> metadata_of(["year=2020", "tags=a,b", 'version="10"'])
    {'year': 2020, 'tags': ['a', 'b'], 'version': '10'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, written = (part.strip() for part in text.partition("="))
        if not equals or not name or not is_unicode(text) or len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidInput(f"metadata must look like year=2020 or lang=en, got {text[:100]!r}")
        if name.startswith("_") or name in found:
            fault = "starts with an underscore, which is reserved" if name.startswith("_") else "is given twice"
            raise InvalidInput(f"metadata name {name!r} {fault}")
        values = [_short_value(value) for value in _split(written)]
        found[name] = values if len(values) > 1 else values[0]
    return found


def _short_value(text: str, *, is_id: bool = False) -> Any:
    if text.startswith('"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    if is_id:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?\d{1,15}", text):
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


# ---- The binary form ----


def _pack(node: Any) -> bytes:
    operator = node[0]
    if operator in _LOGIC:
        return _LOGIC[operator] + struct.pack("<H", len(node) - 1) + b"".join(map(_pack, node[1:]))
    if operator == "NOT":
        return b"!" + _pack(node[1])
    _, name, value = node
    encoded = name.encode()
    if value is None:
        return b"".join((_NULL[operator], bytes([len(encoded)]), encoded))
    head: bytes = (_COMPARISONS | _MEMBERSHIP)[operator] + bytes([len(encoded)]) + encoded
    values = [_pack_value(each) if name else _pack_id(each) for each in (value if operator in _MEMBERSHIP else [value])]
    if operator in _MEMBERSHIP:
        head += struct.pack("<I", len(values))
    return head + b"".join(values)


def _pack_id(document_id: str) -> bytes:
    """Pack an id in the encoding of keys, because the index uses it for document names. An id is never a date."""
    text = encode_id(document_id).encode()
    return struct.pack("<cH", b"s", len(text)) + text
