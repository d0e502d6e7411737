"""Checks the `Host` of a request, as protection against DNS rebinding.

A malicious web page can make its host name resolve to this machine, and then use the service with the rights of the
user who opened the page. The browser sends this name as `Host`, so the service accepts only known names. It accepts
every IP address, because DNS rebinding cannot change an address.
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
    """The accepted hosts: IP addresses, ``localhost`` and names that end with ``.localhost``, and the names in `names`.

    If `names` contains ``*``, every host is accepted.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = {LOOPBACK, *(name.strip().lower() for name in names)} - {""}
        self._any = ANY in self._names
        self._known: set[bytes] = set()

    def knows(self, scope: Scope) -> bool:
        """Return whether the caller can skip `check`.

        This is the case if all hosts are accepted, or if `check` has accepted the same `Host` before.
        """
        return self._any or all(name != b"host" or value in self._known for name, value in scope["headers"])

    def check(self, scope: Scope) -> None:
        """Raise HttpProblem if the `Host` of the request is not accepted. A request without `Host` is accepted."""
        if self._any:
            return
        for name, value in scope["headers"]:
            if name == b"host" and value not in self._known:
                self._learn(value)

    def _learn(self, value: bytes) -> None:
        text = value.decode("latin-1").lower()
        if not self._is_accepted(_without_port(text)):
            raise HttpProblem(
                "misdirected",
                f"the service does not accept requests for host {text[:100]!r}: add it to the setting http_hosts",
                headers=[(b"connection", b"close")],
            )
        if len(self._known) < MAX_KNOWN:
            self._known.add(value)

    def _is_accepted(self, host: str) -> bool:
        host = host.removesuffix(".")
        return host in self._names or host.endswith(f".{LOOPBACK}") or _is_address(host)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener on this address or name.

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
