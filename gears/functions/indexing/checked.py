"""Remembers that all documents of the shard are as they should be, so that a start need not look at each.

A stock client may write or remove a text with one command, of which only an event tells; events that wait are lost with
the server. So after a start someone has to look at every document, unless it is known that nothing was left to be done.
The mark ``checked:{h}`` says that: it stands until any key of a text or of a sentence without a document changes, which
ends it in the same moment (``native/corpus/marks.h``), whoever makes the change and whatever happens next.

It is set in two steps. First it says `CHECKING`; then, when nothing is left to be done, it gets its text, if no key has
changed since the first step. Nothing is left when every document has been looked at once, no event waits or is being
worked on, none was dropped, no work on one has failed, and no partition is on its way. The text names how documents are
made, and the partitions: with others it is worth nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import PARAGRAPHS_PREFIX, SENTENCE_PREFIX, checked_key
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.sentences import SPLITTER_VERSION
from qa_cluster.shard_functions import LOOSE_SENTENCE_KEYS, TEXT_KEYS, missing_functions

LAYOUT = {"layout": "2", "splitter": SPLITTER_VERSION, "analyzer": ANALYZER_VERSION}
"""What the documents of a partition are made with; one that differs is made anew."""
CHECKING = "checking"
PREFIXES = (PARAGRAPHS_PREFIX, SENTENCE_PREFIX)
# While documents are written all the time, so often the first step is tried.
TRY_SECONDS = 2.0
_EVENTS = re.compile(r"^qa_jobs_event:(.*?)\r?$", re.MULTILINE)
_ENDED = ("ok", "overridden", "skipped", "failed", "deadline", "lost", "client_gone", "aborted")
# Of events that end so, or do not even begin, no handler may have heard.
_UNHEARD = ("deadline", "lost", "aborted", "refused")
_FUNCTIONS = (TEXT_KEYS, LOOSE_SENTENCE_KEYS)


class UnusableText(InvalidInput):
    """No question is answered from a text as it is: there is nothing to do about it until it is written again."""


class UnusableLongText(InputTooLong, UnusableText):
    """The same of one that is too long."""


class _Noted(NamedTuple):
    """The text of a mark that stood, `_Checked.unheard` at that moment, and the ids of the registrations."""

    says: str | None
    unheard: tuple[int, int]
    ids: tuple[str, ...]


@dataclass
class _Checked:
    """What this worker knows.

    Attributes:
        sure: every document has been looked at, and nothing has failed since.
        doubts: how often something has failed.
        unheard: what of events had been lost on the server, and how many had failed without a handler, before the look.
        noted: what the mark said when the functions were registered, or the shard became a primary.
        errors: of handlers.
        running: handlers that are at work.
        tried: when a step was last tried.
    """

    sure: bool = False
    doubts: int = 0
    unheard: tuple[int, int] = (-1, -1)
    noted: _Noted | None = None
    errors: int = 0
    running: int = 0
    tried: float = -TRY_SECONDS


def doubt() -> None:
    """Something may be left undone, and nobody will come back to it: only a look at all documents makes sure again."""
    checked = state.of(_Checked)
    checked.sure, checked.noted = False, None
    checked.doubts += 1


@contextmanager
def handling() -> Iterator[None]:
    """While an event is being worked on. An error leaves doubts, unless nothing can be done about the text."""
    checked = state.of(_Checked)
    checked.running += 1
    try:
        yield
    except UnusableText:
        checked.errors += 1
        raise
    except BaseException:
        checked.errors += 1
        doubt()
        raise
    finally:
        checked.running -= 1


def note() -> None:
    """Note what the mark says now: what changes from now on is told to this worker.

    An earlier note is kept while the registrations are the same and nothing has been lost: it has all been told.
    """
    checked, view = state.of(_Checked), slots.current(0)
    before, checked.noted = checked.noted, None
    if view.is_primary and view.tag is not None:
        registrations = _registrations()
        unheard = _unheard(checked, _events(), registrations)
        ids = tuple(str(_pairs(row)["id"]) for row in registrations)
        kept = before is not None and before.says is not None and before[1:] == (unheard, ids)
        checked.noted = before if kept else _Noted(rg.execute("QA.MARK.GET", checked_key(view.tag)), unheard, ids)


def stood(tags: Sequence[str]) -> bool:
    """Whether the mark said at the last `note` that nothing was left to be done. The worker then relies on that."""
    checked = state.of(_Checked)
    if checked.noted is None or checked.noted.says != _text(tags):
        return False
    checked.sure, checked.unheard = True, checked.noted.unheard
    return True


def begin() -> int:
    """Before a look at all documents; `finish` takes the number."""
    checked = state.of(_Checked)
    checked.sure, checked.unheard = False, _unheard(checked, _events(), _registrations())
    return checked.doubts


def finish(number: int) -> None:
    """After a look at all documents, in which nothing has failed; it makes sure unless something else has since."""
    checked = state.of(_Checked)
    checked.sure = checked.doubts == number


def keep(view: View, tags: Sequence[str], *, idle: bool) -> None:
    """Set the mark where it may be set, one step at a time. `idle`: nobody works on documents, and none waits."""
    checked = state.of(_Checked)
    if not view.is_primary:
        checked.sure, checked.noted = False, None
    if not checked.sure or view.tag is None or not idle or checked.running or view.coming or view.leaving:
        return
    with suppress(rg.error):  # the server takes no writes now, or the key's slot has just left
        _step(checked, checked_key(view.tag), _text(tags))


def _step(checked: _Checked, key: str, text: str) -> None:
    says = rg.execute("QA.MARK.GET", key)
    if says == text or (says != CHECKING and time.monotonic() < checked.tried + TRY_SECONDS):
        return
    events, registrations = _events(), _registrations()
    if events["submitted"] != sum(events[name] for name in _ENDED) or missing_functions(registrations, _FUNCTIONS):
        return
    if _unheard(checked, events, registrations) != checked.unheard:
        doubt()
        return
    if says == CHECKING:
        _set(key, text, "IF", CHECKING)
    else:
        checked.tried = time.monotonic()
        _set(key, CHECKING)


def _set(key: str, text: str, *condition: str) -> Any:
    return rg.execute("QA.MARK.SET", key, text, *condition, "PREFIX", len(PREFIXES), *PREFIXES)


def _text(tags: Sequence[str]) -> str:
    own = blake2b(",".join(sorted(tags)).encode(), digest_size=8).hexdigest()
    return " ".join((*LAYOUT.values(), own))


def _events() -> dict[str, int]:
    """How many events there have been since the server's start, by what became of them."""
    found = _EVENTS.search(rg.execute("INFO", "qa"))
    if found is None:
        raise RuntimeError("INFO qa lacks qa_jobs_event: module and worker are of two versions")
    return {name: int(number) for name, _, number in (part.partition("=") for part in found[1].split(","))}


def _registrations() -> list[Any]:
    """What `RG.DUMPREGISTRATIONS` says of the functions that handle texts and sentences."""
    rows: list[Any] = rg.execute("RG.DUMPREGISTRATIONS")
    return [row for row in rows if any(not missing_functions([row], [name]) for name in _FUNCTIONS)]


def _unheard(checked: _Checked, events: Mapping[str, int], registrations: Sequence[Any]) -> tuple[int, int]:
    """See `_Checked.unheard`. Failures that handlers know of are no part of it."""
    failures = sum(int(_pairs(_pairs(row)["RegistrationData"])["numFailures"]) for row in registrations)
    return sum(events[name] for name in _UNHEARD), failures - checked.errors


def _pairs(flat: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
