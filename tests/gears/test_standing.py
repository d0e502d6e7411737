"""The changes of a shard when another one has other registrations."""

from __future__ import annotations

import itertools

import pytest

from qa_cluster.gears.scripts.registrations.registration_digest import Entry, Standing


def standing(*rows: str) -> Standing:
    """A standing from rows of "session id" or "session id order"."""
    return Standing(tuple(Entry(row.split()[0], row.split()[1], int((row + " 0").split()[2])) for row in rows))


def test_a_digest_does_not_depend_on_the_order() -> None:
    assert standing("s a-1", "t a-2").digest == standing("t a-2", "s a-1").digest
    different = [standing(), standing("s a-1"), standing("s a-2"), standing("t a-1"), standing("s a-1 3")]
    assert len({one.digest for one in different}) == len(different)
    assert Standing((Entry("s a", "b"),)).digest != Standing((Entry("s", "a b"),)).digest


@pytest.mark.parametrize(
    ("here", "there", "buried", "sessions"),
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
def test_sessions_that_the_other_has_to_take(
    here: list[str], there: list[str], buried: list[str], sessions: list[str]
) -> None:
    assert standing(*here).sessions_ahead_of(standing(*there), buried) == sessions


def test_never_do_both_of_two_shards_take_the_others_version() -> None:
    versions = [
        standing(*[f"s {name}" for name in names])
        for count in (1, 2)
        for names in itertools.combinations(["a-1", "a-2", "b-2", "b-3", "x", "y"], count)
    ]
    for one, other in itertools.combinations(versions, 2):
        assert len(one.sessions_ahead_of(other, []) + other.sessions_ahead_of(one, [])) == 1


def test_the_later_order_holds() -> None:
    one, other = standing("s a-1 7", "s a-2 4", "s a-3"), standing("s a-1 6", "s a-2 5", "t a-9 8")
    assert one.orders_after(other) == {"a-1": 7}
    assert other.orders_after(one) == {"a-2": 5}
    assert one.orders_of("s") == {"a-1": 7, "a-2": 4}
