"""Reads `robots.txt` (RFC 9309), which defines the paths of a site that a program may fetch.

The running time is linear in the lengths of the file and of the path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_ROBOTS_BYTES = 512 * 1024
MAX_RULES = 5000
MAX_DELAY_SECONDS = 10.0


@dataclass(slots=True)
class Robots:
    """The rules of a robots.txt file for one user agent.

    Attributes:
        rules: pairs: a pattern of paths, and whether the paths that match this pattern may be fetched.
        delay: seconds between two requests, at most `MAX_DELAY_SECONDS`.
    """

    rules: list[tuple[str, bool]] = field(default_factory=list)
    delay: float = 0.0

    def allows(self, path: str) -> bool:
        """Return whether a path with its query may be fetched.

        The longest matching pattern decides. For patterns of equal length, `Allow` wins. If no pattern matches, the
        path may be fetched.
        """
        best = max(((len(pattern), allow) for pattern, allow in self.rules if _matches(pattern, path)), default=None)
        return best is None or best[1]


def parse(text: str, agent: str) -> Robots:
    """Return the rules for `agent`, a name in lower case.

    If the file has no rules for `agent`, return the rules for all user agents (``*``). If it has no such rules either,
    everything is allowed.

    >>> rules = parse("User-agent: *\\nDisallow: /private/\\nAllow: /private/open$", "qa-cluster")
    >>> rules.allows("/private/a"), rules.allows("/private/open"), rules.allows("/")
    (False, True, True)
    """
    groups: dict[str, Robots] = {}
    current: list[str] = []
    in_names = False
    for name, value in _lines(text):
        if name == "user-agent":
            current = [*current, value.lower()] if in_names else [value.lower()]
            in_names = True
            continue
        in_names = False
        for each in current if name in ("allow", "disallow", "crawl-delay") else ():
            group = groups.setdefault(each, Robots())
            if name == "crawl-delay":
                group.delay = min(_seconds(value), MAX_DELAY_SECONDS)
            elif value and len(group.rules) < MAX_RULES:
                group.rules.append((value, name == "allow"))
    return groups.get(agent) or groups.get("*") or Robots()


def _lines(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition("#")[0].partition(":")
        if colon:
            yield name.strip().lower(), value.strip()


def _seconds(value: str) -> float:
    try:
        return max(0.0, float(value))
    except ValueError:
        return 0.0


def _matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches the start of a path. In the pattern, ``*`` matches any characters. If the
    pattern ends in ``$``, it must match the whole path.
    """
    is_whole = pattern.endswith("$")
    first, *others = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    if not others:
        return not is_whole or at == len(path)
    for part in others[:-1] if is_whole else others:
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return not is_whole or (path.endswith(others[-1]) and len(path) - len(others[-1]) >= at)
