"""The certificate of the service. SIGHUP reloads it while the service runs.

Open connections keep the old certificate; new connections use the new certificate. The listener's SSL context passes
each handshake to the newest SSL context. If the new files are invalid or do not match, the old certificate stays in
use.
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
    """The certificate and key of the service. The constructor raises ConfigError if they are invalid."""

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._newest = service_context(cert, key)
        self.context = service_context(cert, key)
        self.context.sni_callback = self._hand_over

    def _hand_over(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Give a handshake the newest context.

        OpenSSL calls this method in every handshake, even if the client sends no host name. `name` and `context`, the
        listener's context, are not used.
        """
        handshake.context = self._newest

    def renew(self) -> None:
        """Reload both files. If they are invalid, log the reason and keep the current certificate."""
        try:
            self._newest = service_context(self._cert, self._key)
        except ConfigError as error:
            _log.error("the certificate was not reloaded: %s; the service keeps the current certificate", error)
            return
        _log.info("the certificate was reloaded from %s", self._cert)

    def renew_at_hangup(self) -> None:
        """Make SIGHUP reload the certificate, in the event loop if the loop is running."""

        def on_hangup(number: int, frame: FrameType | None) -> None:
            try:
                asyncio.get_running_loop().call_soon_threadsafe(self.renew)
            except RuntimeError:  # no loop is running, because the service is starting or stopping
                self.renew()

        signal.signal(signal.SIGHUP, on_hangup)
