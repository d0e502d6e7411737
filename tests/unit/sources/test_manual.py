"""Manual pages become the words that man(1) would show, without its markup."""

from __future__ import annotations

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.sources.manual import man
from qa_cluster.sources.manual.lines import split_arguments, unescaped
from tests.unit.sources.test_lossless import check, number_of, path_of

MAN = r""".\" a comment
.de Pair
.BI \\$1 " and " \\$2
..
.ds Nm \fBtool\fR
.TH TOOL 1 "May 2020" "" "User Commands"
.SH NAME
tool \- does it
.SH OPTIONS
.PP
The \*(Nm command takes these.
.TP
.BR \-f ", " \-\-force
Force it. Twice
if need be.
.IP
It stays \(aqforced\(aq.
.TP
.I name
.TQ
.B other
Two names.
.IP \(bu 2
one
.IP \(bu 2
two
.Pair left right
.if t .ignored
.ie n in nroff
.el in troff
.nf
  x = 1
    y = 2
.fi
.ig
never seen
..
.TS
tab(@);
lB lB.
Name@Size
T{
a long
name
T}@3
b@4
.TE
"""
MDOC = r""".Dd May 1, 2020
.Dt TOOL 8
.Os
.Sh NAME
.Nm tool
.Nd serves things
.Sh SYNOPSIS
.Nm
.Op Fl dv
.Op Fl p Ar port
.Sh DESCRIPTION
.Nm
reads
.Pa /etc/tool.conf ,
see
.Xr tool.conf 5 .
.Bl -tag -width Ds
.It Fl p Ar port , Fl -port Ns = Ns Ar port
Listens on
.Dq Ar port .
.Pp
The default is 80.
.It Xo
.Fl x
.Ar y
.Xc
Both.
.El
After the
.Pq small
list.
.Bd -literal
a   b
.Ed
"""


def test_a_page_of_man() -> None:
    page = check(
        "tool.1",
        MAN,
        (
            "The tool command takes these.",
            "-f, --force: Force it. Twice if need be.\n\nIt stays 'forced'.",
            "name, other: Two names.",
            "- one\n- two",
            "left and right",
            "in nroff",
            "    x = 1\n      y = 2",
            "a long name, Size: 3\n\nb, Size: 4",
        ),
        ("comment", "never seen", "ignored", "in troff", "\\", ".TP"),
    )
    assert page.title == "tool(1) - does it"


def test_a_tag_is_part_of_the_path_of_the_text_below_it() -> None:
    page = man.read(MAN, "tool.1")
    assert path_of(page, "It stays") == ("OPTIONS", "-f, --force")
    assert path_of(page, "Two names") == ("OPTIONS", "name, other")
    assert path_of(page, "tool - does it") == ("NAME",)


def test_places_are_lines_of_the_source() -> None:
    page = man.read(MAN, "tool.1")
    assert MAN.split("\n")[number_of(page, "It stays") - 1].startswith("It stays")


def test_a_page_of_mdoc() -> None:
    page = check(
        "tool.8",
        MDOC,
        (
            "tool [-dv] [-p port]",
            "tool reads /etc/tool.conf, see tool.conf(5).",
            '-p port, --port=port: Listens on "port".\n\nThe default is 80.',
            "-x y: Both.",
            "After the (small) list.",
            "    a   b",
        ),
    )
    assert page.title == "tool(8) - serves things"
    assert path_of(page, "The default is 80") == ("DESCRIPTION", "-p port, --port=port")
    assert path_of(page, "After the") == ("DESCRIPTION",)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (".Fn acct .", "acct()."),
        ('.Fn acct "const char *file" ,', "acct(const char *file),"),
        (".Fn ( acct )", "(acct())"),
        (".In sys/acct.h .", "<sys/acct.h>."),
        (".Lk https://example.org .", "<https://example.org>."),
        (".Bx 4.4 ,", "4.4BSD,"),
    ],
)
def test_punctuation_after_a_macro_is_not_one_of_its_words(line: str, read: str) -> None:
    page = man.read(f".Dd May 1, 2020\n.Dt A 2\n.Sh NAME\n.Nm a\n.Sh TEXT\nSee\n{line}\n", "a.2")
    assert f"See {read}" in page.text


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\fB\-\-foo\fP", "--foo"),
        (r"\f(CWx\fR\s-1Y\s0", "xY"),
        (r"a\ b\~c", "a\u00a0b\u00a0c"),
        (r"\(co \[u00E9] \[char65] \(:a", "\u00a9 \u00e9 A a\u0308"),
        (r"\e\\", "\\\\"),
        (r"x\&.\|y\^z\%q", "x.yzq"),
        (r"\h'2n'in\v'-1'", "in"),
        ("end\\", "end"),
    ],
)
def test_escapes(written: str, read: str) -> None:
    assert unescaped(written) == read


def test_arguments_in_quotes() -> None:
    assert split_arguments(r'-x "two words" "a ""q""" b\ c') == ["-x", "two words", 'a "q"', r"b\ c"]


@pytest.mark.parametrize(
    "source",
    [
        ".TH A 1\n.de X\n.X\n..\n.X\nfine\n",
        ".TH A 1\n.ds a \\*(bb\n.ds bb \\*a\n\\*a fine\n",
        ".TH A 1\n.if n \\{\n.if n \\{\nfine\n",
        ".TH A 1\nfine\n.TS\nl l.\nT{\nno end\n",
    ],
    ids=["macro", "string", "braces", "table"],
)
def test_a_page_without_end_ends(source: str) -> None:
    assert "fine" in man.read(source, "a.1").text


def test_a_page_that_multiplies_itself_is_refused() -> None:
    doubling = "".join(f".de m{n}\n.m{n + 1}\n.m{n + 1}\n..\n" for n in range(19))
    with pytest.raises(InvalidInput, match="more than 400000 lines"):
        man.read(f".TH A 1\n{doubling}.de m19\nword\n..\n.m0\n", "a.1")


def test_a_page_that_only_points_to_another_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"only refers to 'man1/b\.1'"):
        man.read(".so man1/b.1\n", "a.1")


@pytest.mark.parametrize("page", [".TH A 1\n.SH KEYS\n", ".Dd May 1, 2020\n.Dt A 1\n.Sh KEYS\n"], ids=["man", "mdoc"])
@pytest.mark.parametrize("end", ["", ".TS\nl l.\nDown\tbelow\n.TE\n"], ids=["at the end", "before another"])
def test_a_table_that_is_not_closed_is_read(page: str, end: str) -> None:
    text = man.read(f"{page}Moves:\n.TS\nl l.\nUp\tabove\n{end}", "a").text
    assert ("Up" in text, "above" in text) == (True, True)
    assert ("below" in text) == bool(end)
