"""Refuses requests that a browser sends for a page of another origin, if the setting `cors_origins` does not allow it.

Without this check, every web page that the user opens could use a service without API keys on this machine. Browsers
report the origin of a request in `Sec-Fetch-Site`; older browsers use `Origin`. Programs send neither header, so their
requests are accepted. Links to the files of the page are accepted, because these requests start no work.

A browser sends `Sec-Fetch-Site` only over HTTPS and to this machine. Over plain HTTP to another machine, it sends
`Origin` only with requests that can change data or whose response a script may read. Requests for images have no
`Origin`.
"""

from __future__ import annotations

import re

from qa_cluster.errors import ConfigError

from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import Scope

ANY = "*"
METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
REQUEST_HEADERS = b"authorization, content-type, if-match, if-none-match, prefer, traceparent, tracestate, x-request-id"
RESPONSE_HEADERS = (
    b"cache-status, etag, location, preference-applied, ratelimit, ratelimit-policy, retry-after, server-timing,"
    b" x-request-id"
)
PREFLIGHT_SECONDS = 600
_ORIGIN = re.compile(r"(https?)://([a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?/?")
_PORTS = {"http": "80", "https": "443"}
# Values with which a browser reports that this service's own page, or the user, made the request.
_OWN = frozenset({b"same-origin", b"none"})


class Origins:
    """The origins whose pages may use the service: the service's own origin, and the origins in the setting.

    Args:
        setting: origins such as ``https://docs.example``, separated by commas. ``*`` allows every origin. A text that
            is not an origin raises ConfigError.
    """

    def __init__(self, setting: str = "") -> None:
        words = [word.strip() for word in setting.split(",") if word.strip()]
        self._any = ANY in words
        self._allowed = {_checked(word) for word in words if word != ANY}

    def is_plain(self, scope: Scope) -> bool:
        """Return whether the request has no `Origin` header, and no `Sec-Fetch-Site` header for another origin.

        Such a request needs no call of `check`, and its response needs no CORS headers.
        """
        return not any(
            name == b"origin" or (name == b"sec-fetch-site" and value not in _OWN) for name, value in scope["headers"]
        )

    def verdict(self, scope: Scope) -> RawHeaders | None:
        """Return the CORS headers of the response; None if the request must be refused.

        The list of headers is empty for pages of the service's own origin and for programs.
        """
        headers = scope["headers"]
        sites = {value for name, value in headers if name == b"sec-fetch-site"}
        origins = {value for name, value in headers if name == b"origin"}
        if sites and sites <= _OWN:
            return []
        if not sites and all(_authority(origin) in _hosts(scope) for origin in origins):
            return []
        if len(origins) == 1 and self._allows(*origins):
            return [
                (b"access-control-allow-origin", *origins),
                (b"access-control-expose-headers", RESPONSE_HEADERS),
                (b"vary", b"Origin"),
            ]
        return None

    def check(self, scope: Scope, *, is_file: bool = False) -> RawHeaders:
        """Return the CORS headers of the response, as `verdict` does. Raises HttpProblem if the request is refused.

        `is_file` says whether the request is for a file of the page (`Resource.is_file`). GET and HEAD of such a file
        are never refused. The list of headers is then empty for an origin that is not allowed.
        """
        found = self.verdict(scope)
        if found is None and is_file and scope["method"] in ("GET", "HEAD"):
            return []
        if found is None:
            raise HttpProblem(
                "cross-site",
                "a web page of another origin sent this request: to allow it, add the origin of the page to the"
                " setting cors_origins",
            )
        return found

    def _allows(self, origin: bytes) -> bool:
        return self._any or origin.decode("latin-1") in self._allowed


def preflight(scope: Scope) -> RawHeaders | None:
    """Return the headers that answer a preflight request; None for any other request. Call `Origins.check` before this
    function.
    """
    names = {name for name, _ in scope["headers"]}
    if scope["method"] != "OPTIONS" or not {b"origin", b"access-control-request-method"} <= names:
        return None
    return [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", REQUEST_HEADERS),
        (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
    ]


def _checked(word: str) -> str:
    """Return an origin in the form in which browsers send it. Raise ConfigError if the text is not an origin."""
    match = _ORIGIN.fullmatch(word.lower())
    if match is None:
        raise ConfigError(
            f"setting 'cors_origins' has {word!r}, but must have origins such as https://docs.example, separated by"
            " commas, or *"
        )
    scheme, host, port = match.groups()
    return f"{scheme}://{host}" + (f":{port}" if port and port != _PORTS[scheme] else "")


def _authority(origin: bytes) -> str | None:
    """Return the host and port of an origin; None if the text is not an origin."""
    match = _ORIGIN.fullmatch(origin.decode("latin-1").lower())
    if match is None:
        return None
    scheme, host, port = match.groups()
    return f"{host}:{port or _PORTS[scheme]}"


def _hosts(scope: Scope) -> set[str]:
    """Return the host and port of the request.

    Without a port, the result has both default ports, because a proxy may have removed TLS.
    """
    found = set()
    for name, value in scope["headers"]:
        if name == b"host":
            host = value.decode("latin-1").lower()
            has_port = re.search(r":[0-9]+\Z", host) is not None and not host.endswith("]")
            found |= {host} if has_port else {f"{host}:{port}" for port in _PORTS.values()}
    return found
