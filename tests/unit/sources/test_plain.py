"""Plain text and changelogs: headings by their form, reflowed paragraphs, lists, code."""

from __future__ import annotations

from qa_cluster.sources import changelog, plain
from tests.unit.sources.test_lossless import check, number_of, path_of

TEXT = """Tool - the manual
=================

Table of Contents

  1. First steps
  2. Questions

1. First steps

This paragraph goes over
several lines and is long enough to say what the margin is, you know,
as well as well-
known words and --long-
option.

    $ tool --run x
    done

* an item that
  goes on
* another

NOTES

Q: Does it work?

A: Yes, it does
   work.

-f   forces the thing to happen, whatever
     stands in its way today
"""


def test_plain_text() -> None:
    found = check(
        "a.txt",
        TEXT,
        (
            "This paragraph goes over several lines and is long enough",
            "well-known words and --long-option.",
            "    $ tool --run x\n    done",
            "- an item that goes on\n- another",
            "Does it work?\n\nYes, it does work.",
            "-f: forces the thing to happen, whatever stands in its way today",
        ),
        ("Table of Contents", "==="),
    )
    assert found.title == "Tool - the manual"
    assert found.text.count("1. First steps") == 1
    assert path_of(found, "This paragraph") == ("1. First steps",)
    assert path_of(found, "Yes, it does") == ("NOTES", "Does it work?")
    assert TEXT.split("\n")[number_of(found, "This") - 1] == "This paragraph goes over"


def test_text_that_is_already_one_line_a_paragraph_stays() -> None:
    text = "Ada wrote the first program in 1843.\n\nZ\u00fcrich lies on a lake. \U0001f642"
    assert plain.read(text + "\n").text == text


def test_a_changelog_of_debian() -> None:
    source = """tool (1.2-3) unstable; urgency=medium

  * Fix the thing
    that broke.
  * Another.

 -- Ada L <ada@e.org>  Mon, 04 Jan 2021 10:00:00 +0100

tool (1.2-2) unstable; urgency=low

  * Old.

 -- Bob <b@e.org>  Sun, 03 Jan 2021 10:00:00 +0100
"""
    found = changelog.read(source)
    assert found.title == "tool changelog"
    assert "- Fix the thing that broke.\n- Another." in found.text
    assert path_of(found, "Fix the thing") == ("tool 1.2-3 (04 Jan 2021)",)
    assert path_of(found, "Old.") == ("tool 1.2-2 (03 Jan 2021)",)


def test_a_changelog_of_gnu() -> None:
    source = """GNU tool NEWS                 -*- outline -*-

* Noteworthy changes in release 1.12 (2022-04-07) [stable]

** Bug fixes

  It no longer fails
  on Mondays.

* Noteworthy changes in release 1.11 (2021-09-03) [stable]

** Changes

  None.
"""
    found = changelog.read(source)
    assert found.title == "GNU tool NEWS"
    assert "It no longer fails on Mondays." in found.text
    release = "Noteworthy changes in release 1.12 (2022-04-07) [stable]"
    assert path_of(found, "It no longer") == (release, "Bug fixes")
    assert path_of(found, "None.")[0].startswith("Noteworthy changes in release 1.11")
