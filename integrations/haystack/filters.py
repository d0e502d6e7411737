"""Converts Haystack's filters into filters for the service.

The service uses the same filter format. This module removes three differences:
- The service rejects a field that no document has. In Haystack, such a field is null.
- The service rejects an order comparison with null. In Haystack, such a comparison is false for every document.
- The service accepts any sequence for ``in``. Haystack accepts only lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LOGIC = ("AND", "OR", "NOT")
_ORDERING = (">", ">=", "<", "<=")
_MEMBERSHIP = ("in", "not in")
_COMPARISONS = ("==", "!=", *_ORDERING, *_MEMBERSHIP)
# Fields of a Haystack document that the index of qa-cluster does not have.
_NOT_INDEXED = ("content", "blob", "embedding", "sparse_embedding", "score")

Filters = dict[str, Any]


class FilterProblem(ValueError):
    """A filter does not have Haystack's form."""


def service_filters(filters: Mapping[str, Any] | None) -> Filters | None:
    """Return the filter for the service. If `filters` is empty, return None, which selects all documents.

    Raises:
        FilterProblem: the filter does not have Haystack's form; the message names the fault.

    >>> service_filters({"field": "meta.year", "operator": ">", "value": None})["operator"]
    'AND'
    """
    if not filters:
        return None
    fields: set[str] = set()
    checked = _checked(filters, fields)
    # The service accepts a field that no document has if the filter also compares this field with null.
    return _all([checked, *(_anything(field) for field in sorted(fields))])


def every_document() -> Filters:
    """Return a filter that matches every document, for routes of the service that require a filter."""
    return _anything("meta.qa_cluster_no_such_field")


def _checked(node: object, fields: set[str]) -> Filters:
    if not isinstance(node, Mapping):
        raise FilterProblem(f"a filter must be a dictionary, got {type(node).__name__}")
    operator = node.get("operator")
    if "field" not in node:
        if operator not in _LOGIC:
            known = ", ".join(_LOGIC)
            raise FilterProblem(f"the operator of a condition without a field must be one of {known}, got {operator!r}")
        conditions = node.get("conditions")
        if not isinstance(conditions, list) or not conditions:
            raise FilterProblem(f"conditions of {operator} must be a non-empty list, got {conditions!r}")
        return {"operator": operator, "conditions": [_checked(each, fields) for each in conditions]}
    field = node["field"]
    if field in _NOT_INDEXED:
        raise FilterProblem(f"field {field!r} cannot be filtered: use id, or metadata (meta.name)")
    for name in ("operator", "value"):
        if name not in node:
            raise FilterProblem(f"the condition on {field!r} has no {name}")
    if operator not in _COMPARISONS:
        raise FilterProblem(f"the operator of {field!r} must be one of {', '.join(_COMPARISONS)}, got {operator!r}")
    value = node["value"]
    if operator in _MEMBERSHIP and not isinstance(value, list):
        raise FilterProblem(f"the value of {operator!r} must be a list, got {type(value).__name__}")
    if operator in _ORDERING and value is None:
        return _nothing(field)
    if field != "id":
        fields.add(field)
    return {"field": field, "operator": operator, "value": value}


def _anything(field: str) -> Filters:
    return {"operator": "OR", "conditions": [_null(field, "=="), _null(field, "!=")]}


def _nothing(field: str) -> Filters:
    return _all([_null(field, "=="), _null(field, "!=")])


def _null(field: str, operator: str) -> Filters:
    return {"field": field, "operator": operator, "value": None}


def _all(conditions: list[Filters]) -> Filters:
    return conditions[0] if len(conditions) == 1 else {"operator": "AND", "conditions": conditions}
