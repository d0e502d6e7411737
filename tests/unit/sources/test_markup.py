"""RST, Markdown and HTML become their words."""

from __future__ import annotations

import pytest

from qa_cluster.sources import html, rst
from tests.unit.sources.test_lossless import check, number_of, path_of

RST = """
=====
Title
=====

.. _start:

Start
-----

Use :meth:`~app.Flask.run`, :ref:`the page <x>`, :pep:`8` and ``--foo`` or `a link <https://e.org>`_. [1]_

.. currentmodule:: app

.. unknown:: Argument

   It keeps its content.

.. versionadded:: 2.0
   The ``debug`` option.

.. py:method:: run(host, port=80)

   Runs it.

   Really.

.. note:: Mind |version|.

.. code-block:: python
   :linenos:

   def f():
       return CONN_MAX_AGE

- one
- two

  more

term
    Its definition.

====  =====
Name  Value
====  =====
a     1
====  =====

.. include:: /etc/passwd
.. raw:: html

   <b>no</b>

See :ref:`start`.
"""
MARKDOWN = """---
title: Front
---
# Title #

(label)=
Use {meth}`~app.run`, **bold** and [a link](https://e.org "t") with `--foo`.

```{note}
:class: x
Mind *this*.
```

!!! warning "Careful"
    It bites.

| Name | Value |
|------|-------|
| a    | 1     |

## Section

1. one
2. two
   - deep

```console
% ls {x}`y`
```

Apple
:   A fruit.

<nav><a href="x">menu</a></nav>
"""
HTML = """<?xml version="1.0" encoding="UTF-8"?>
<html><head><title>Site &#8212; Page</title><style>p {}</style></head><body>
<div class="navheader"><a href="a">Prev</a></div>
<main><div role="navigation"><p>Where to go from here</p><ul><li><a href="x">Home</a></li></ul></div>
<h1>1. Page<a class="headerlink" href="#p">&para;</a></h1>
<p>An ef&#xfb01;cient &shy;text<br/>with <code>--foo</code>.</p>
<h2>Options</h2>
<dl><dt>-f</dt><dd><p>Forces.</p><p>Twice.</p></dd><dt>-q</dt><dd>Quiet.</dd></dl>
<ul><li>one</li><li><p>two</p><ul><li>deep</li></ul></li></ul>
<table><tr><th>Name</th><th>Size</th></tr><tr><td>a</td><td>3</td></tr></table>
<pre>x = 1
  y</pre>
<div class="admonition note"><p class="admonition-title">Note</p><p>Mind it.</p></div>
<script>evil()</script></main><footer><p>Copyright</p></footer></body></html>"""


def test_rst() -> None:
    found = check(
        "a.rst",
        RST,
        (
            "Use run, the page, PEP 8 and --foo or a link.",
            "Argument\n\nIt keeps its content.",
            "New in version 2.0: The debug option.",
            "run(host, port=80): Runs it.\n\nReally.",
            "Note: Mind version.",
            "    def f():\n        return CONN_MAX_AGE",
            "- one\n- two\n\nmore",
            "term: Its definition.",
            "a, Value: 1",
            "See Start.",
        ),
        ("::", ":meth", "``", "|", "linenos", "root:", "<b>", "currentmodule", "System Message"),
    )
    assert found.title == "Title"
    assert path_of(found, "Really.") == ("Start", "run(host, port=80)")
    assert RST.split("\n")[number_of(found, "Use run") - 1].startswith("Use :meth:")


def test_a_directive_or_role_of_any_name_is_known_the_next_time_too() -> None:
    for _ in range(2):
        assert rst.read(".. a-b:c:: d\n\n   :e:f:`g` stays\n").text == "d\n\ng stays"


def test_markdown() -> None:
    found = check(
        "a.md",
        MARKDOWN,
        (
            "Use run, bold and a link with --foo.",
            "Note:\n\nMind this.",
            "Careful: It bites.",
            "a, Value: 1",
            "1. one\n2. two\n  - deep",
            "    % ls {x}`y`",
            "Apple: A fruit.",
        ),
        ("{meth}", "label", ":class:", "**", "|", "menu"),
    )
    assert found.title == "Front"
    assert path_of(found, "1. one") == ("Section",)
    assert MARKDOWN.split("\n")[number_of(found, "Use run") - 1].startswith("Use {meth}")


def test_html() -> None:
    found = check(
        "a.html",
        HTML,
        (
            "1. Page\n\nAn efficient text with --foo.",
            "-f: Forces.\n\nTwice.\n\n-q: Quiet.",
            "- one\n- two\n  - deep",
            "a, Size: 3",
            "    x = 1\n      y",
            "Note: Mind it.",
        ),
        ("Prev", "Home", "Where to go", "evil", "Copyright", "p {}", "\u00b6", "\u00ad"),
    )
    assert found.title == "Page"
    assert path_of(found, "Twice.") == ("Options", "-f")
    assert HTML.split("\n")[number_of(found, "-q: Quiet") - 1].startswith("<dl>")


@pytest.mark.parametrize("source", ["", "<", "<html>", "\x00<p>", "<p" * 5000, "<div>" * 5000 + "deep"])
def test_broken_html_ends(source: str) -> None:
    try:
        html.read(source)
    except Exception as error:
        assert type(error).__name__ in ("InvalidInput", "RecursionError")
