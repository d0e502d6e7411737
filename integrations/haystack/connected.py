"""The base class of the document store and the reader, with the connections to the service."""

from __future__ import annotations

from typing import Any, Self

from haystack import default_from_dict
from haystack.utils import Secret, deserialize_secrets_inplace

from qa_cluster.integrations.service.connection import ServiceConnection


class Connected:
    """Base class of a component that uses a service. The component has the same arguments as `ServiceConnection`.

    Here, `api_key` is a Secret of Haystack. None: requests are sent without a key.
    """

    def _connect_to(
        self, base_url: str, api_key: Secret | None, tls_ca: str, timeout: float, attempts: int | None
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.tls_ca = tls_ca
        self.timeout = timeout
        self.attempts = attempts
        self._connection: ServiceConnection | None = None

    @property
    def connection(self) -> ServiceConnection:
        """The connections to the service, which are opened at the first use. Call `close` and `aclose` of this object
        to close them."""
        if self._connection is None:
            self._connection = ServiceConnection(
                self.base_url,
                api_key=(self.api_key.resolve_value() if self.api_key is not None else None) or "",
                tls_ca=self.tls_ca,
                timeout=self.timeout,
                attempts=self.attempts,
            )
        return self._connection

    def _service(self) -> dict[str, Any]:
        """Return the arguments for the connection as a dictionary, for `to_dict`.

        The dictionary has the name of the key's environment variable instead of the key.
        """
        return {
            "base_url": self.base_url,
            "api_key": self.api_key.to_dict() if self.api_key is not None else None,
            "tls_ca": self.tls_ca,
            "timeout": self.timeout,
            "attempts": self.attempts,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Create a component from the result of `to_dict`."""
        deserialize_secrets_inplace(data["init_parameters"], keys=["api_key"])
        made: Self = default_from_dict(cls, data)
        return made
