"""The service's certificate, and its renewal while the service runs.

SIGHUP makes the service read certificate and key again. Connections that are open stay as they are, and new ones get
the new certificate from the handshake after it on: the context that listens only hands each handshake over to the
newest one, so files that cannot be used, or that do not belong together, change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from types import FrameType

from qa_cluster.errors import ConfigError
from qa_cluster.security.tls import service_context

_log = logging.getLogger(__name__)


class Certificate:
    """Certificate and key of the service; ConfigError if they cannot be used."""

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._newest = service_context(cert, key)
        self.context = service_context(cert, key)
        self.context.sni_callback = self._hand_over
        self.renewals = 0

    def _hand_over(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in every handshake, whether or not the client names a host."""
        handshake.context = self._newest

    def renew(self) -> bool:
        """Read both files again; if they cannot be used, the log says why and what was read before stays."""
        try:
            self._newest = service_context(self._cert, self._key)
        except ConfigError as error:
            _log.error("the certificate was not renewed: %s; the service goes on with the one that it has", error)
            return False
        self.renewals += 1
        _log.info("the certificate was read again from %s", self._cert)
        return True

    def renew_at_hangup(self) -> None:
        """Let SIGHUP renew it, from the event loop where one runs. Without this the signal ends the process."""

        def explain_closed(number: int, frame: FrameType | None) -> None:
            try:
                asyncio.get_running_loop().call_soon_threadsafe(self.renew)
            except RuntimeError:  # the service is just starting or ending
                self.renew()

        signal.signal(signal.SIGHUP, explain_closed)
