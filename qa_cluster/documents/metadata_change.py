"""A change of the metadata of documents: fields to set, and fields to remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.errors import InvalidInput

from .metadata_limits import canonical_metadata
from .source_map import FIELD
from .unicode import is_unicode

MAX_REMOVED = 100


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """Fields to set and fields to remove, at the top level of the metadata. `of` checks the change."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    remove: frozenset[str] = frozenset()

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None = None, remove: str | Iterable[str] = ()) -> MetadataChange:
        """Create a change; InvalidInput or InputTooLong if the change is invalid or empty.

        `remove` is the name of one field, or several names (at most `MAX_REMOVED`).

        >>> MetadataChange.of({"status": "final"}, ["draft"]).applied({"draft": True, "year": 2020})
        {'year': 2020, 'status': 'final'}
        """
        given = {} if fields is None else fields
        canonical_metadata(given, "to set")
        names = [remove] if isinstance(remove, str) else list(remove)
        for name in names:
            if not isinstance(name, str) or not is_unicode(name):
                raise InvalidInput(f"remove must be names of fields, got {ascii(name)[:100]}", place="remove")
        if not given and not names:
            raise InvalidInput("a change of metadata needs fields to set (metadata) or to remove", place="metadata")
        if len(names) > MAX_REMOVED:
            raise InvalidInput(f"remove has {len(names)} names, the limit is {MAX_REMOVED}", place="remove")
        if both := sorted(set(names) & set(given)):
            raise InvalidInput(f"the field {both[0][:100]!r} cannot be set and removed at once", place="remove")
        if FIELD in names or FIELD in given:
            raise InvalidInput(
                f"the field {FIELD!r} maps the text to its file: it changes only with the text", place="metadata"
            )
        return cls(dict(given), frozenset(names))

    def applied(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `metadata` to which the change has been applied."""
        kept = {name: value for name, value in metadata.items() if name not in self.remove}
        return {**kept, **self.fields}
