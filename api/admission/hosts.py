"""Checks for which host a request was meant.

A page of a stranger can have its own name resolved to this machine and then ask the service with the rights of whoever
opened the page (DNS rebinding). The browser sends that name as `Host`; so names must be known. An address cannot be
turned to somebody else's server that way, and is admitted.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

from ..http.error_map import HttpProblem
from ..http.messages import Scope

ANY = "*"
LOOPBACK = "localhost"
MAX_KNOWN = 1000


class Hosts:
    """The hosts by which the service may be asked: addresses, ``localhost``, and names that were given."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = {LOOPBACK, *(name.strip().lower() for name in names)} - {""}
        self._any = ANY in self._names
        self._known: set[bytes] = set()

    def knows(self, scope: Scope) -> bool:
        """Whether a request is for a host that has been admitted before; if not, `check` decides."""
        return self._any or all(name != b"host" or value in self._known for name, value in scope["headers"])

    def check(self, scope: Scope) -> None:
        """Raise HttpProblem if the request is for another host."""
        if self._any:
            return
        for name, value in scope["headers"]:
            if name == b"host" and value not in self._known:
                self._learn(value)

    def _learn(self, value: bytes) -> None:
        text = value.decode("latin-1").lower()
        if not self._is_ours(_without_port(text)):
            raise HttpProblem(
                "misdirected",
                f"the request is for host {text[:100]!r}, which is not this one: name it in the setting http_hosts",
                headers=[(b"connection", b"close")],
            )
        if len(self._known) < MAX_KNOWN:
            self._known.add(value)

    def _is_ours(self, host: str) -> bool:
        host = host.removesuffix(".")
        return host in self._names or host.endswith(f".{LOOPBACK}") or _is_address(host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on this address or name.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("a.example")
    (True, True, False, False)
    """
    if host.lower().removesuffix(".") == LOOPBACK:
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
