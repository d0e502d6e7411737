"""Messages between workers arrive unchanged, and never contain code."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest

from qa_cluster.gears.scripts.registrations.reconciliation import Comparison
from qa_cluster.gears.scripts.registrations.registration_list import RegistrationEntry, RegistrationList
from qa_cluster.gears.scripts.registrations.stored_sessions import Change, StoredSession
from qa_cluster.gears.scripts.runs.part import Packet, PartState
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.gears.shard.messages import Message, MessagePart, decode, encode, encode_part, sent
from qa_cluster.gears.shard.peers import PeerAnswer

pytestmark = pytest.mark.hostile

ODD = "lone \udcff surrogate"


@pytest.mark.parametrize(
    "body",
    [
        *(None, True, -(2**63), 2**64 - 1, 0.5, "", ODD, b"", bytes(range(256)), [], [[1, [b"x"]], "y"]),
        {"a": 1, "b": [2]},
        Change(StoredSession("id", "", ODD, b"payload"), "removed", 3, ("a", "b")),
        Change(None),
        Comparison(
            publishing=False,
            registrations=RegistrationList((RegistrationEntry("s", "i", 7), RegistrationEntry("s", "j"))),
        ),
        Packet("run", 2, None),
        PartState("run", done=True, errors=("one",)),
        PeerAnswer(None, {"readers": [["name", "", b"manifest"]]}),
        PeerAnswer(None, [["name", "", b"manifest"]]),
        PeerAnswer("ERR refused"),
    ],
)
def test_a_message_arrives_as_it_was_sent(body: Any) -> None:
    assert decode(encode(Message("kind", body, 4))) == Message("kind", body, 4)


def test_a_part_arrives_as_it_was_sent() -> None:
    assert decode(encode_part(MessagePart(3, True, b"\0data"))) == MessagePart(3, True, b"\0data")


class Planted:
    """A value whose pickle would run code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("code of a message ran",))


@pytest.mark.parametrize(
    "payload",
    [
        pickle.dumps(Planted()),
        b"",
        b"\xc1",
        msgpack.packb("text"),
        msgpack.packb(["kind", 1]),
        msgpack.packb([1, 1, None]),
        msgpack.packb(["kind", "1", None]),
        msgpack.packb(["kind", 1, msgpack.ExtType(1, msgpack.packb(["os.system", "true"]))]),
        msgpack.packb(["kind", 1, msgpack.ExtType(1, msgpack.packb(["PeerAnswer"]))]),
        msgpack.packb(["kind", 1, msgpack.ExtType(9, b"")]),
        msgpack.packb(msgpack.ExtType(2, msgpack.packb([1]))),
        msgpack.packb(["kind", 1, None]) + b"more",
        b"\x91" * 2000,
    ],
)
def test_invalid_messages_are_refused(payload: bytes) -> None:
    with pytest.raises(GearsError, match="a message cannot be read"):
        decode(payload)


@pytest.mark.parametrize("body", [object(), lambda: None, {1, 2}, 2**64, Planted()])
def test_values_that_are_not_data_are_not_sent(body: Any) -> None:
    with pytest.raises(GearsError, match="a message kind cannot be sent"):
        encode(Message("kind", body))


def test_two_kinds_of_bodies_cannot_share_a_name() -> None:
    @dataclass(frozen=True)
    class Packet:
        text: str

    with pytest.raises(TypeError, match="two kinds of bodies have the name Packet"):
        sent(Packet)
