"""The shard that started this worker: its address, its id and the `qa.*` settings."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qa_cluster.errors import ConfigError, ProtocolError
from qa_cluster.security.tls import OwnServer, explain_failure

PROTOCOL_VERSION = 9
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Start:
    """The module's first line on the control socket.

    Attributes:
        worker: the number of this worker, from 1, in the order in which the server has started its workers.
        token: the secret with which the worker proves that the module has started it.
        socket_path: the path of the server's unix socket; empty if the server has no such socket.
        host, port: the address of the server; `port` is 0 if the server has no port without TLS.
        tls: the server's settings for TLS; None if the worker does not need TLS.
    """

    worker: int
    token: str = field(repr=False)
    socket_path: str
    host: str
    port: int
    tls: OwnServer | None = None

    @classmethod
    def parse(cls, line: bytes) -> Start:
        """Read the JSON line. Raise ProtocolError if it is malformed or has a different protocol version."""
        try:
            value = json.loads(line)
            version = value["protocol"]
            if version != PROTOCOL_VERSION:
                raise ProtocolError(f"module speaks version {version}, worker speaks {PROTOCOL_VERSION}")
            tls = OwnServer(**value["tls"]) if "tls" in value else None
            return cls(int(value["worker"]), value["token"], value["socket"], value["host"], int(value["port"]), tls)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"malformed start line on the control socket: {type(error).__name__}") from error

    @property
    def speaks_tls(self) -> bool:
        """Whether connections to the shard use TLS: the server has neither a unix socket nor a plain port."""
        return self.tls is not None and not self.socket_path and not self.port

    def tls_context(self) -> ssl.SSLContext:
        """Create a TLS context. Do not cache it, because the server's files may be replaced.

        Raises ConfigError with the name of an unusable file.
        """
        if self.tls is None:
            raise ConfigError("the start line has no port for TLS")
        return self.tls.context()

    def connect_plain(self) -> socket.socket:
        """Open a blocking connection to the shard, without the TLS handshake."""
        if self.socket_path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(self.socket_path)
            return connection
        port = self.tls.port if self.tls is not None and self.speaks_tls else self.port
        connection = socket.create_connection((self.host, port), timeout=_CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def check(self) -> None:
        """If the shard uses TLS, connect once.

        Raises ConfigError or ProtocolError with the problem of the certificates.
        """
        if not self.speaks_tls:
            return
        connection = self.connect()
        try:
            # With TLS 1.3, the server may refuse the worker's certificate after the handshake. Any reply shows that the
            # server has accepted it.
            connection.sendall(b"PING\r\n")
            connection.recv(1)
        except OSError as error:
            raise refused_by_tls(error) from error
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        """Open a blocking connection to the shard. Raise ProtocolError with the reason if TLS refuses it."""
        connection = self.connect_plain()
        if not self.speaks_tls:
            return connection
        try:
            return self.tls_context().wrap_socket(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLError):
                raise refused_by_tls(error) from error
            raise


def refused_by_tls(error: BaseException) -> ProtocolError:
    """Return the error of a failed TLS connection to the worker's own server."""
    return ProtocolError(f"the worker cannot connect to its own server by TLS: {explain_failure(error) or error}")


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The reply of `QA.HELLO`.

    Attributes:
        worker: the number of this worker, as in `Start`.
        shard_id: the node id of the shard; zeros outside a cluster.
        cluster: whether the server runs in cluster mode.
        settings: all values of the reply except `secret`, by name, including the `qa.*` settings.
        secret: a key that is derived from the key that the servers of the cluster share (`qa.bus-key-file`). Without a
            shared key, it is empty.
    """

    worker: int
    shard_id: str
    cluster: bool
    settings: Mapping[str, str]
    secret: bytes = field(default=b"", repr=False)

    @classmethod
    def parse(cls, reply: Sequence[bytes | int]) -> ShardInfo:
        """Parse the flat array of names and values."""
        if not isinstance(reply, list) or len(reply) % 2:
            raise ProtocolError("the reply to QA.HELLO is not a list of names and values")
        texts = [item.decode() if isinstance(item, bytes) else str(item) for item in reply]
        values = dict(zip(texts[::2], texts[1::2], strict=True))
        try:
            secret = bytes.fromhex(values.pop("secret", ""))
            return cls(int(values["worker"]), values["shard_id"], values["cluster"] == "1", values, secret)
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the reply to QA.HELLO lacks a value or has an invalid value: {error}") from error

    def text(self, name: str) -> str:
        """Return a setting. Raise ConfigError if the module has not sent it (`config_reply_pairs` in the module)."""
        if name not in self.settings:
            raise ConfigError(
                f"the module does not send the setting {name}: restart the server with the worker's module"
            )
        return self.settings[name]

    def number(self, name: str) -> int:
        """Return a numeric setting. Raise ConfigError if it is missing or not a whole number."""
        text = self.text(name)
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"setting {name} is not a whole number: {text!r}") from error
