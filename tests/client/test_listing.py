"""Lists of documents, page by page over all partitions while documents are added and removed, and counts."""

from __future__ import annotations

import base64
import re
from collections import Counter
from functools import partial
from typing import Any

import pytest

from qa_cluster import keys
from qa_cluster.asking.document_removal import remove_all
from qa_cluster.asking.engine import Engine
from qa_cluster.client import DeadlineExceeded, DocumentCounts, DocumentEntry, InvalidInput
from qa_cluster.options.documents import MAX_PAGE, DocumentChoice
from qa_cluster.types import Removal
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async


async def fill(engine: Engine, names: list[str]) -> None:
    for name in names:
        await engine.documents.put(name, f"{name} wrote it. It is good.", title=f"T {name}", wait=False)


async def ready(engine: Engine, documents: int) -> None:
    async def all_there() -> bool:
        return (await engine.listing.count()).documents == documents

    await eventually_async(all_there)


async def listed(engine: Engine, limit: int, prefix: str = "") -> list[str]:
    """Read all pages and return the ids; check that no page exceeds the limit."""
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await engine.listing.page(cursor, limit=limit, choice=DocumentChoice(prefix))
        assert len(page.documents) <= limit
        found += [entry.id for entry in page.documents]
        cursor = page.next_cursor
    return found


async def test_every_document_is_listed_once_for_every_page_size(engine: Engine) -> None:
    names = [f"doc {number}" for number in range(40)] + ["a:b_{x}%7B", "東京"]
    await fill(engine, names)
    await ready(engine, len(names))
    assert len({keys.partition_of(name, PARTITIONS) for name in names}) > 6
    for limit in (1, 7, MAX_PAGE):
        assert sorted(await listed(engine, limit)) == sorted(names)
    for limit in (0, MAX_PAGE + 1):
        with pytest.raises(InvalidInput, match="limit must be"):
            await engine.listing.page(limit=limit)


async def test_an_entry_has_the_fields_of_the_record(engine: Engine) -> None:
    written = await engine.documents.put("ä", "Zoë wrote it. It is good.", title="Ü", metadata={"year": 1})
    page = await engine.listing.page()
    assert page.documents == (DocumentEntry("ä", "Ü", written.version, 25, 2, True),)
    assert page.next_cursor is None
    assert await engine.listing.count(waiting=True) == DocumentCounts(1, 2, 0)


async def test_an_unchanged_document_is_listed_once_while_others_change(engine: Engine) -> None:
    staying = [f"stay {number}" for number in range(40)]
    going = [f"go {number}" for number in range(40)]
    await fill(engine, [name for pair in zip(staying, going, strict=True) for name in pair])
    await ready(engine, 80)
    seen: list[str] = []
    cursor: str | None = ""
    turn = 0
    while cursor is not None:
        page = await engine.listing.page(cursor, limit=5)
        seen += [entry.id for entry in page.documents]
        cursor = page.next_cursor
        if turn < 20:  # remove one document, add one, and change one
            await engine.documents.delete(going[turn])
            await engine.documents.put(f"come {turn}", "New. Text.", wait=False)
            await engine.documents.put(going[39 - turn], f"Another {turn}.", wait=False)
        turn += 1
    assert turn > 16
    counts = Counter(seen)
    assert {name: counts[name] for name in staying} == dict.fromkeys(staying, 1)


async def test_the_pages_of_a_prefix_are_complete_and_respect_the_limit(engine: Engine) -> None:
    wanted = [f"news/{number}" for number in range(20)]
    await fill(engine, [*wanted, *(f"other {number}" for number in range(20)), "newsletter", "new{s"])
    await ready(engine, 42)
    for limit in (1, 3, 20):
        assert sorted(await listed(engine, limit, "news/")) == sorted(wanted)
    assert await listed(engine, 10, "new{") == ["new{s"]
    assert await listed(engine, 10, "nothing/") == []


async def test_pending_documents_are_counted_but_not_listed(cluster: ScriptedCluster, engine: Engine) -> None:
    await fill(engine, ["a", "b", "c"])
    await ready(engine, 3)
    cluster.tokenizing = False
    await fill(engine, ["d", "e"])
    await engine.documents.put("a", "Another text.", wait=False)
    assert await engine.listing.count() == DocumentCounts(2, 4, None)
    assert await engine.listing.count(waiting=True) == DocumentCounts(2, 4, 3)
    assert sorted(await listed(engine, 10)) == ["b", "c"]


async def test_documents_from_before_indexes_existed_are_pending(engine: Engine) -> None:
    await fill(engine, ["a", "b"])
    await ready(engine, 2)
    key = keys.document_key("a", keys.partition_of("a", PARTITIONS))
    await engine.shards.execute(key, "HDEL", key, "analyzer")
    layout = keys.layout_key(keys.partition_of("a", PARTITIONS))
    # without this field, the partition has no completed sweep
    await engine.shards.execute(layout, "HDEL", layout, "analyzer")
    assert (await engine.listing.count(waiting=True)).waiting == 1


async def test_a_document_that_is_removed_during_the_request_is_left_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(engine, ["a", "b"])
    await ready(engine, 2)
    rows = engine.listing._rows

    async def late(tag: str, position: int, count: int, choice: DocumentChoice) -> tuple[int, list[tuple[str, int]]]:
        following, found = await rows(tag, position, count, choice)
        if ("a", 2) in found:
            await engine.documents.delete("a")
        return following, found

    monkeypatch.setattr(engine.listing, "_rows", late)
    assert await listed(engine, 10) == ["b"]


async def fill_years(engine: Engine) -> None:
    for number in range(30):
        text = f"Doc {number} is good. It is fine."
        await engine.documents.put(f"n/{number}", text, metadata={"year": 2000 + number}, wait=False)
    await engine.documents.put("other", "Other. One. Three.", metadata={"year": 2010})
    await ready(engine, 31)


async def test_a_filter_selects_documents_to_list_and_to_count(engine: Engine) -> None:
    await fill_years(engine)
    late = DocumentChoice.of(filter=["year>=2010", "year<2015"])
    assert sorted([entry.id async for entry in engine.listing.all(late)]) == [
        *(f"n/{n}" for n in range(10, 15)),
        "other",
    ]
    long = DocumentChoice.of("n/", {"field": "meta.year", "operator": "in", "value": [2003, 2004, 2010]})
    assert await engine.listing.count(choice=long) == DocumentCounts(3, 6, None)
    assert await engine.listing.count(choice=DocumentChoice("other")) == DocumentCounts(1, 3, None)
    with pytest.raises(InvalidInput, match="without prefix and filter"):
        await engine.listing.count(choice=late, waiting=True)
    page = await engine.listing.page(limit=2, choice=late)
    with pytest.raises(InvalidInput, match="next_cursor"):
        await engine.listing.page(page.next_cursor or "", choice=DocumentChoice.of(filter="year>=2010"))
    with pytest.raises(InvalidInput, match="must look like"):
        DocumentChoice.of(filter="year")


async def test_only_the_selected_documents_are_removed(engine: Engine) -> None:
    await fill_years(engine)
    remove = partial(remove_all, engine.listing, engine.documents)
    with pytest.raises(InvalidInput, match="all documents would be removed"):
        await remove(DocumentChoice(), seconds=10)
    assert await remove(DocumentChoice("n/"), seconds=0) == Removal(0, False)
    assert await remove(DocumentChoice.of("n/", filter="year<2010"), seconds=10) == Removal(10, True)
    assert await remove(DocumentChoice.of("n/", filter="year<2010"), seconds=10) == Removal(0, True)
    assert await remove(DocumentChoice.of("none/"), seconds=10) == Removal(0, True)
    assert sorted([entry.id async for entry in engine.listing.all()]) == sorted(
        [*(f"n/{n}" for n in range(10, 30)), "other"]
    )


async def test_a_removal_whose_time_ends_during_a_delete_reports_what_it_has_removed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_years(engine)
    delete = engine.documents.delete

    async def late_for_one(document_id: str, **options: Any) -> str:
        if document_id == "n/3":
            raise DeadlineExceeded("no reply in time")
        return await delete(document_id, **options)

    monkeypatch.setattr(engine.documents, "delete", late_for_one)
    choice = DocumentChoice.of(filter="year<2005")
    assert await remove_all(engine.listing, engine.documents, choice, seconds=30) == Removal(4, False)


async def test_a_document_that_is_written_during_a_removal_stays(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_years(engine)
    delete = engine.documents.delete

    async def delete_after_a_write(document_id: str, **options: Any) -> str:
        if document_id == "n/3":
            await engine.documents.put("n/3", "It is another one now.", metadata={"year": 2020})
        return await delete(document_id, **options)

    monkeypatch.setattr(engine.documents, "delete", delete_after_a_write)
    choice = DocumentChoice.of(filter="year<2005")
    assert await remove_all(engine.listing, engine.documents, choice, seconds=30) == Removal(4, False)
    assert (await engine.documents.get("n/3")).metadata == {"year": 2020}
    assert await remove_all(engine.listing, engine.documents, choice, seconds=30) == Removal(0, True)


async def test_wrong_cursors_are_refused(engine: Engine) -> None:
    await fill(engine, ["n/a", "n/b", "n/c"])
    await ready(engine, 3)
    cursor = (await engine.listing.page(limit=1)).next_cursor
    assert cursor is not None
    raw = base64.urlsafe_b64decode(cursor)
    changed = base64.urlsafe_b64encode(raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:]).decode()
    for wrong in ("x", "ü", cursor[:-4], cursor + "AAAA", changed, "=" * 24, cursor.replace("=", "!")):
        with pytest.raises(InvalidInput, match="next_cursor"):
            await engine.listing.page(wrong)
    with pytest.raises(InvalidInput, match="next_cursor"):  # a cursor of another list
        await engine.listing.page(cursor, choice=DocumentChoice("n/"))
    engine.partitions.number = 24
    with pytest.raises(InvalidInput, match=f"{PARTITIONS} partitions, but this cluster has 24"):
        await engine.listing.page(cursor)


@pytest.mark.hostile
async def test_counting_pending_documents_reads_no_other_document(cluster: ScriptedCluster, engine: Engine) -> None:
    """The count also reads no document of another collection, which the API key may not see."""
    await engine.collections.create("books")
    await fill(engine, [f"ready {number}" for number in range(50)])
    await ready(engine, 50)
    cluster.tokenizing = False
    books = DocumentChoice(collection="books")
    for number in range(30):
        await engine.documents.put(f"other {number}", "Pending.", wait=False)
    for number in range(3):
        await engine.documents.put(f"book {number}", "Pending.", wait=False, collection="books")
    for node in cluster.nodes:
        await node.commands.execute("CONFIG", "RESETSTAT")
    assert (await engine.listing.count(waiting=True, choice=books)).waiting == 3
    calls: Counter[str] = Counter()
    for node in cluster.nodes:
        text = (await node.commands.execute("INFO", "commandstats")).decode()
        for name, count in re.findall(r"cmdstat_(\w+):calls=(\d+)", text):
            calls[name] += int(count)
    assert (calls["scan"], calls["hmget"], calls["hscan"]) == (0, 3, PARTITIONS)
    assert (await engine.listing.count(waiting=True)).waiting == 30
