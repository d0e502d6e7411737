"""Connections to public addresses only, so that neither a page nor a DNS name can lead into a private network.

The check and the connection use the same look-up. So DNS rebinding, in which a name changes its address between two
look-ups, has no effect.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import httpcore
import httpx

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet.

    An IPv4 address inside an IPv6 address must be public, too.

    >>> is_public("93.184.216.34"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1"), is_public("100.64.0.1")
    (True, False, False, False)
    """
    found: _Address = ipaddress.ip_address(address.partition("%")[0])
    return all(each.is_global and not each.is_multicast for each in (found, *_inner(found)))


def _inner(address: _Address) -> list[_Address]:
    """Return the IPv4 addresses that an IPv6 address contains, for example a mapped, 6to4 or NAT64 address."""
    if not isinstance(address, ipaddress.IPv6Address):
        return []
    inner: list[_Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in inner if each is not None]


class _PublicBackend(httpcore.NetworkBackend):
    """Resolves a name once, and connects to the first of its addresses. All addresses must be public."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to a host. Raises ConnectError if the host has no address, or if one of its addresses is
        not public.
        """
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"no address of {host!r} is known: {error}") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        private = [address for address in addresses if not is_public(address)]
        if private or not addresses:
            raise httpcore.ConnectError(
                f"{host!r} has the address {', '.join(private) or '(none)'}, which is not public (--allow-private"
                " fetches from private networks)"
            )
        return self._inner.connect_tcp(addresses[0], port, timeout, local_address, socket_options)


class _PublicTransport(httpx.HTTPTransport):
    """A transport whose connections go to public addresses only, and never through a proxy."""

    def __init__(self) -> None:
        super().__init__(trust_env=False)
        self._pool.close()
        context = httpx.create_ssl_context(trust_env=False)
        self._pool = httpcore.ConnectionPool(ssl_context=context, network_backend=_PublicBackend())


def transport(*, allow_private: bool) -> httpx.BaseTransport:
    """Return the transport for fetching. With `allow_private`, connections may go to every address."""
    return httpx.HTTPTransport(trust_env=False) if allow_private else _PublicTransport()
