"""The worker's facts about the shard that started it: its address, its id and the `qa.*` settings."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qa_cluster.errors import ConfigError, ProtocolError

PROTOCOL_VERSION = 6
STANDALONE_ID = "0" * 40


@dataclass(frozen=True, slots=True)
class Start:
    """The line that the module sends on the control socket at the start."""

    worker: int
    token: str = field(repr=False)
    socket_path: str
    host: str
    port: int

    @classmethod
    def parse(cls, line: bytes) -> Start:
        """Read the JSON line; ProtocolError if it has another version or is malformed."""
        try:
            value = json.loads(line)
            version = value["protocol"]
            if version != PROTOCOL_VERSION:
                raise ProtocolError(f"module speaks version {version}, worker speaks {PROTOCOL_VERSION}")
            return cls(int(value["worker"]), value["token"], value["socket"], value["host"], int(value["port"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"malformed start line on the control socket: {type(error).__name__}") from error

    def connect(self) -> socket.socket:
        """A blocking connection to the shard."""
        if self.socket_path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(self.socket_path)
            return connection
        connection = socket.create_connection((self.host, self.port), timeout=10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The reply of `QA.HELLO`; `secret` is made from the key that the servers share, empty if there is none."""

    worker: int
    shard_id: str
    cluster: bool
    settings: Mapping[str, str]
    secret: bytes = field(default=b"", repr=False)

    @classmethod
    def parse(cls, reply: Sequence[bytes | int]) -> ShardInfo:
        """Read the flat array of names and values."""
        if not isinstance(reply, list) or len(reply) % 2:
            raise ProtocolError("QA.HELLO did not answer an even array")
        texts = [item.decode() if isinstance(item, bytes) else str(item) for item in reply]
        values = dict(zip(texts[::2], texts[1::2], strict=True))
        try:
            secret = bytes.fromhex(values.pop("secret", ""))
            return cls(int(values["worker"]), values["shard_id"], values["cluster"] == "1", values, secret)
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"QA.HELLO lacks or garbles {error}") from error

    def number(self, name: str, default: int) -> int:
        """A setting that is a whole number; `default` if the module does not have it."""
        text = self.settings.get(name)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"setting {name} is not a whole number: {text!r}") from error
