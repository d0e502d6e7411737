"""No regular expression of the product takes more than linear time on a text from outside.

With a quadratic pattern, one request could block the event loop or the worker. So each pattern of a module or of a
function runs on texts that repeat the pattern's characters. The tests compare the times of each text and of a text that
is four times as long.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from qa_cluster.documents.sentences import split_sentences
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.ranking.filters import chosen_by
from qa_cluster.ranking.terms import analyze
from tests.contract.rooms import FOLDERS, tree_of

SHORTEST = 100
# Shorter times are noise. A quadratic pattern takes longer than this for 32 x SHORTEST characters.
NOISE_SECONDS = 0.002
# A linear pattern takes four times as long for a text four times as long, a quadratic one 16 times.
MOST_GROWTH = 8

# Patterns that run only on texts of the operator.
NOT_FOREIGN = {
    "qa_cluster.security.passwords._IN_ADDRESS": "the arguments of the own process",
}
# These modules need torch or packages of adapters, which are not installed where this test runs.
NOT_IMPORTED = ("qa_cluster.models", ".torch", "__main__", "qa_cluster.integrations")
CHARACTERS = " \t\n\u3000aAvQ0-.,='\"\\()[]{}<>|*_#:`/@;%&!~^+$"
METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
PIECES = ("a   ", "a   a ", "a a", "-*-", "\\[", "a(", "a: ", "version 1", "{#", "](")


def patterns() -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes], set[str]]]:
    """Each pattern of a module with its name and the methods by which the module uses it."""
    seen = set()
    for folder in FOLDERS:
        for name in tree_of(folder).sources:
            if any(part in name for part in NOT_IMPORTED):
                continue
            module = importlib.import_module(name)
            for variable, value in vars(module).items():
                if isinstance(value, re.Pattern) and (value.pattern, value.flags) not in seen:
                    seen.add((value.pattern, value.flags))
                    uses = set(re.findall(rf"\b{variable}\.(\w+)\(", inspect.getsource(module)))
                    yield f"{name}.{variable}", value, uses


def inline_patterns() -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes], set[str]]]:
    """Each pattern in a call such as ``re.sub(pattern, ..)``, with the place and the method of the call."""
    for folder in FOLDERS:
        for name, source in tree_of(folder).sources.items():
            if not any(part in name for part in NOT_IMPORTED):
                for line, pattern, method in inline_in(source):
                    yield f"{name}:{line}", pattern, {method}


def inline_in(source: str) -> Iterator[tuple[int, re.Pattern[str] | re.Pattern[bytes], str]]:
    """The lines, patterns and methods of the calls in a source, except calls on a literal text."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in METHODS:
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "re":
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        names = ("pattern", "repl", "string") if node.func.attr in {"sub", "subn"} else ("pattern", "string")
        given |= dict(zip(names, node.args, strict=False))
        if not isinstance(given["string"], ast.Constant):
            flags = given.get("flags", ast.Constant(0))
            compiled = eval(ast.unparse(flags), {"re": re})
            yield node.lineno, re.compile(_written(given["pattern"]), compiled), node.func.attr


def _written(pattern: ast.expr) -> str | bytes:
    """The text of a pattern in the source, with "x" for each value that is not a literal."""
    if isinstance(pattern, ast.Constant):
        return pattern.value  # type: ignore[return-value]
    parts = pattern.values if isinstance(pattern, ast.JoinedStr) else [pattern]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)


def runner(pattern: re.Pattern[str] | re.Pattern[bytes], uses: set[str]) -> Callable[[str], object]:
    """Returns a function that runs a pattern as its module does: at the start of a text only, or at every position."""
    encoded = isinstance(pattern.pattern, bytes)
    method: Callable[..., object] = pattern.finditer
    if uses and uses <= {"match", "fullmatch"}:
        method = pattern.fullmatch if "fullmatch" in uses else pattern.match

    def run(text: str) -> object:
        found = method(text.encode() if encoded else text)
        return deque(found, maxlen=0) if isinstance(found, Iterator) else found

    return run


def attacks(written: str, length: int) -> Iterator[str]:
    """Texts that repeat characters of a pattern and end with another character."""
    literals = [letter for letter in CHARACTERS if letter in written or letter in " a0"]
    pairs = [pair for letter in literals for pair in (f"{letter} ", f"{letter}a") if len(set(pair)) == 2]
    for pump in (*literals, *PIECES, *pairs):
        yield f"a {(pump * length)[:length]}\x01"
        yield f"a   a {(pump * length)[:length]}"
        yield (pump * length)[:length]


def seconds(run: Callable[[str], object], text: str) -> float:
    """The processor time of this thread for one run."""
    begun = time.thread_time()
    run(text)
    return time.thread_time() - begun


def growth(run: Callable[[str], object], written: str, shortest: int = SHORTEST) -> str:
    """The first attack whose time grows more than linearly; empty if all times are linear."""
    # The first lengths grow slowly: a cubic pattern would not end on a text of 32 times the shortest length.
    for texts in zip(*(attacks(written, times * shortest) for times in (1, 4, 2, 8, 32, 128)), strict=True):
        for short, long in (texts[:2], texts[2:4], texts[4:]):
            once = seconds(run, short)
            if once < NOISE_SECONDS:
                continue
            # a single time may be too long, because other work on the machine makes short times longer
            once, longer = min(once, seconds(run, short)), seconds(run, long)
            for _ in range(2):
                if longer > MOST_GROWTH * once and longer < 250 * NOISE_SECONDS:
                    longer = min(longer, seconds(run, long))
            if longer > MOST_GROWTH * once:
                return f"{short[:12]!r}..: {once * 1000:.1f} ms, {longer * 1000:.1f} ms for a text four times as long"
            break
    return ""


@pytest.mark.hostile
def test_no_pattern_takes_more_than_linear_time() -> None:
    found = {}
    names = set()
    for name, pattern, uses in patterns():
        names.add(name)
        written = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        if name not in NOT_FOREIGN and (attack := growth(runner(pattern, uses), written)):
            found[name] = attack
    assert len(names) > 100
    assert found == {}
    assert set(NOT_FOREIGN) <= names


@pytest.mark.hostile
def test_no_pattern_inside_a_function_takes_more_than_linear_time() -> None:
    found, count = {}, 0
    for name, pattern, uses in inline_patterns():
        count += 1
        written = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        if attack := growth(runner(pattern, uses), written):
            found[name] = attack
    assert count > 15
    assert found == {}


@pytest.mark.hostile
def test_a_pattern_inside_a_function_is_found() -> None:
    planted = (
        "def f(text):\n    return re.sub(r'\\s*([^=]+?)\\s*=', '', text, flags=re.DOTALL), re.match(f'a{text}', text)"
        "\nre.findall('b+', 'bb')\n"
    )
    (first, second) = sorted(inline_in(planted), key=lambda found: found[2], reverse=True)
    assert (first[0], first[2], first[1].flags & re.DOTALL) == (2, "sub", re.DOTALL)
    assert (second[1].pattern, second[2]) == ("ax", "match")


@pytest.mark.hostile
@pytest.mark.parametrize("planted", [r"\s*([^=!<>]+?)\s*=", r"\S {3,}\S.* {3,}\S", r"[ \t]*\{"])
def test_a_pattern_that_backtracks_is_found(planted: str) -> None:
    assert growth(runner(re.compile(planted), {"search"}), planted)


def _filter(text: str) -> None:
    with suppress(InvalidInput, InputTooLong):
        chosen_by(short=[text])


@pytest.mark.hostile
@pytest.mark.parametrize("run", [split_sentences, analyze, _filter], ids=["sentences", "terms", "filter"])
def test_sentences_terms_and_filters_of_a_text_take_linear_time(run: Callable[[str], object]) -> None:
    # The text needs several blocks: the splitter's time is quadratic in a block of 10,000 characters, and linear
    # beyond.
    assert growth(run, " a.!;\t\u3000(", 350) == ""
