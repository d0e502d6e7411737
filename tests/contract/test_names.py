"""No two public classes of the product have the same name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from tests.contract.rooms import FOLDERS, Tree, tree_of


def shared(trees: Iterable[Tree]) -> dict[str, list[str]]:
    """Return the names of several public classes, with their modules."""
    found = defaultdict(list)
    for tree in trees:
        for module, source in tree.sources.items():
            for name in re.findall(r"^class ([A-Za-z]\w*)", source, re.MULTILINE):
                found[name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_no_two_classes_have_one_name() -> None:
    assert shared(map(tree_of, FOLDERS)) == {}


def test_a_planted_second_class_is_found() -> None:
    source = "class Step: ...\nclass _Here: ..."
    assert shared([Tree({"qa_cluster.x": source}), Tree({"gears.y": source})]) == {"Step": ["qa_cluster.x", "gears.y"]}
