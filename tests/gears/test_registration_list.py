"""What a shard changes when another shard has other registrations."""

from __future__ import annotations

import itertools

import pytest

from qa_cluster.gears.scripts.registrations.registration_list import RegistrationEntry, RegistrationList


def listed(*rows: str) -> RegistrationList:
    """The list from rows of "session id" or "session id order"."""
    return RegistrationList(
        tuple(RegistrationEntry(row.split()[0], row.split()[1], int((row + " 0").split()[2])) for row in rows)
    )


def test_a_digest_does_not_depend_on_the_order() -> None:
    assert listed("s a-1", "t a-2").digest == listed("t a-2", "s a-1").digest
    different = [listed(), listed("s a-1"), listed("s a-2"), listed("t a-1"), listed("s a-1 3")]
    assert len({one.digest for one in different}) == len(different)
    assert (
        RegistrationList((RegistrationEntry("s a", "b"),)).digest
        != RegistrationList((RegistrationEntry("s", "a b"),)).digest
    )


@pytest.mark.parametrize(
    ("here", "there", "unregistered", "sessions"),
    [
        (["s a-1"], ["s a-1"], [], []),
        (["s a-1"], [], [], ["s"]),
        ([], ["s a-1"], [], []),
        (["s a-1"], [], ["a-1"], []),
        (["s a-1", "s a-2"], [], ["a-1"], ["s"]),
        (["s a-1", "s a-2"], ["s a-2"], ["a-1"], []),
        (["s a-3"], ["s a-2"], [], ["s"]),
        (["s a-2"], ["s a-3"], [], []),
        (["s a-10"], ["s b-9"], [], ["s"]),
        (["s a-3", "s a-4"], ["s a-4"], [], ["s"]),
        (["s a-4"], ["s a-3", "s a-4"], [], []),
        (["s a-4"], ["s a-3", "s b-5"], [], []),
        (["s b-4"], ["s a-4"], [], ["s"]),
        (["s x"], ["s y"], [], []),
        (["s a-1", "t a-2"], ["s a-1"], [], ["t"]),
    ],
)
def test_sessions_that_the_other_shard_must_install(
    here: list[str], there: list[str], unregistered: list[str], sessions: list[str]
) -> None:
    assert listed(*here).sessions_ahead_of(listed(*there), unregistered) == sessions


def test_only_one_of_two_shards_takes_the_others_version() -> None:
    versions = [
        listed(*[f"s {name}" for name in names])
        for count in (1, 2)
        for names in itertools.combinations(["a-1", "a-2", "b-2", "b-3", "x", "y"], count)
    ]
    for one, other in itertools.combinations(versions, 2):
        assert len(one.sessions_ahead_of(other, []) + other.sessions_ahead_of(one, [])) == 1


def test_the_later_order_prevails() -> None:
    one, other = listed("s a-1 7", "s a-2 4", "s a-3"), listed("s a-1 6", "s a-2 5", "t a-9 8")
    assert one.orders_after(other) == {"a-1": 7}
    assert other.orders_after(one) == {"a-2": 5}
    assert one.orders_of("s") == {"a-1": 7, "a-2": 4}
