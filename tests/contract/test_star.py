"""Imports form a star: gears, models, api, cluster and integrations import the core of qa_cluster, not each other.

The folders within a point or the core are rooms, which import each other in one direction only. No file imports itself,
directly or through other files.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

from tests.contract.rooms import FOLDERS, POINTS, Tree, circle, in_order, room_of, tree_of, wrong_directions
from tests.harness.programs import ROOT

MAX_FILES = 16
GEARS = "qa_cluster.gears"
FUNCTIONS = f"{GEARS}.functions"
SCRIPTS = f"{GEARS}.scripts"
COMPOSITION = f"{GEARS}.process.service"
CLUSTER = "qa_cluster.cluster"
SERVICE = "qa_cluster.api"
MODELS = "qa_cluster.models"

# The other rooms that each room may import. A room is a folder with all below it, or a file that is listed here.
CORE_ROOMS = {
    f"qa_cluster.{name}": frozenset(f"qa_cluster.{below}" for below in known)
    for name, known in {
        "scripts": (),
        "security": (),
        "sources": ("security",),
        "documents": ("scripts", "security", "sources"),
        "reading": ("documents",),
        "vectors": ("documents", "reading"),
        "ranking": ("documents", "reading"),
        "evaluation": ("documents", "reading"),
        "huggingface": ("documents", "reading"),
        "options": ("ranking",),
        "routing": ("scripts", "security"),
        "access": ("routing", "scripts"),
        "batches": ("routing", "scripts"),
        "asking": (
            *("access", "documents", "huggingface", "options", "ranking"),
            *("reading", "routing", "scripts", "vectors"),
        ),
        "clients": ("access", "asking", "documents", "huggingface", "options", "security"),
    }.items()
}
_QUESTION_ROOMS = dict(
    in_order(
        GEARS,
        *("shard", "inference"),
        *("functions.calls", "functions.shard", "functions.readers"),
        *("functions.answering", "functions.indexing", "functions.embedding", "functions"),
        "process",
    )
)
# indexing must not depend on answering
_QUESTION_ROOMS[f"{FUNCTIONS}.indexing"] -= {f"{FUNCTIONS}.answering"}
_QUESTION_ROOMS[f"{FUNCTIONS}.embedding"] -= {f"{FUNCTIONS}.answering"}
_SCRIPT_ROOMS = {
    name: below | _QUESTION_ROOMS.keys()
    for name, below in in_order(
        SCRIPTS, "calling", "host", "torch", "runs", "registrations", "interface", "own_functions", "jobs", "wing"
    )
}
_SCRIPT_ROOMS[f"{SCRIPTS}.calling"] = frozenset()
_SCRIPT_ROOMS[SCRIPTS] = frozenset()
# the scripts wing imports the question wing, never the reverse; one file composes both
GEARS_ROOMS = _QUESTION_ROOMS | _SCRIPT_ROOMS
GEARS_ROOMS[COMPOSITION] = frozenset(GEARS_ROOMS)
GEARS_ROOMS[f"{GEARS}.worker"] = frozenset({COMPOSITION, *_QUESTION_ROOMS})
CLUSTER_ROOMS = dict(
    in_order(
        CLUSTER,
        *("nodes", "servers", "readers", "terminal", "provision", "fetching", "ingestion"),
        *("backup", "evaluation", "commands", "cli"),
    )
)
_MODEL_ROOMS = (
    "checkpoints",
    "quantization",
    "evaluation",
    "exporting",
    "examples",
    "training",
    "mining",
    "recipe",
    "__main__",
)
MODEL_ROOMS = dict(in_order(MODELS, *_MODEL_ROOMS))
_ABOVE_THE_ROOMS = ("span_queue", "tracing", "certificate", "connections", "app", "admin", "__main__")
_API_ROOMS = ("service", "http", "description", "batches", "inference", "routes", "admission")
API_ROOMS = dict(in_order(SERVICE, *_API_ROOMS, *_ABOVE_THE_ROOMS))
# no adapter imports another; adapters of frameworks share the room `service`
_FRAMEWORKS = frozenset({"haystack", "langchain", "llama_index", "spark"})
INTEGRATION_ROOMS = {
    f"qa_cluster.integrations.{name}": frozenset(
        {"qa_cluster.integrations.service"} if name in _FRAMEWORKS else set[str]()
    )
    for name in ("haystack", "kafka", "langchain", "llama_index", "mcp", "service", "spark")
}
ROOMS = {
    "qa_cluster": CORE_ROOMS,
    "gears": GEARS_ROOMS,
    "cluster": CLUSTER_ROOMS,
    "api": API_ROOMS,
    "models": MODEL_ROOMS,
    "integrations": INTEGRATION_ROOMS,
}

# In a checkout, `import qa_cluster.NAME` also finds files next to the folder: a second copy of qa_cluster, and files
# that no installed package has.
SECOND_COPIES = {f"qa_cluster.{name}": frozenset[str]() for name in ("qa_cluster", "tests", "setup")}
SECOND_COPY = re.compile(r"from\s+qa_cluster\s+import|qa_cluster\.(?:qa_cluster|tests|setup)\b")


def outside(folder: str, tree: Tree) -> list[str]:
    """Return the imports that break the star."""
    forbidden = {f"qa_cluster.{point}": frozenset[str]() for point in POINTS if point != folder}
    forbidden |= {point: frozenset() for point in POINTS}  # `import gears` in the checkout would import a second copy
    forbidden |= SECOND_COPIES
    return [
        f"{module} imports {name}"
        for module in tree.sources
        for name in sorted(tree.imports(module))
        if room_of(name, forbidden)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_star(folder: str) -> None:
    tree = tree_of(folder)
    assert tree.sources
    assert outside(folder, tree) == []


def test_no_test_imports_a_second_copy() -> None:
    tree = Tree.read(ROOT / "tests", "tests")
    assert len(tree.sources) > 100
    # Only these files can import a second copy. To parse all files takes seconds.
    suspects = [module for module, source in tree.sources.items() if SECOND_COPY.search(source)]
    found = [(module, name) for module in suspects for name in tree.imports(module)]
    assert [(module, name) for module, name in found if room_of(name, SECOND_COPIES)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_imports_itself_in_a_circle(folder: str) -> None:
    assert circle(tree_of(folder)) is None


@pytest.mark.parametrize(("folder", "rooms"), ROOMS.items(), ids=ROOMS)
def test_rooms_import_each_other_one_way(folder: str, rooms: dict[str, frozenset[str]]) -> None:
    assert wrong_directions(tree_of(folder), rooms) == []


def folder_of(tree: Tree, module: str) -> str:
    """The folder that a module's file is in."""
    return module if module in tree.packages else module.rpartition(".")[0]


def roomless(tree: Tree, rooms: dict[str, frozenset[str]]) -> set[str]:
    """Return the folders that are in no room."""
    return {folder for module in tree.sources if room_of(folder := folder_of(tree, module), rooms) is None}


def crowded(tree: Tree) -> dict[str, int]:
    """Folders with too many files."""
    counts = Counter(folder_of(tree, module) for module in tree.sources)
    return {folder: count for folder, count in counts.items() if count > MAX_FILES}


@pytest.mark.parametrize(("folder", "rooms"), ROOMS.items(), ids=ROOMS)
def test_every_folder_is_a_room_with_a_limited_number_of_files(folder: str, rooms: dict[str, frozenset[str]]) -> None:
    tree = tree_of(folder)
    assert roomless(tree, rooms) == {folder if folder == "qa_cluster" else f"qa_cluster.{folder}"}
    assert rooms.keys() <= tree.sources.keys()
    assert crowded(tree) == {}


def test_a_worker_loads_no_code_of_clients() -> None:
    worker = "import sys, qa_cluster.gears.process.service; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, check=True).stdout.split()
    assert "qa_cluster.reading.spans" in loaded
    assert not [name for name in loaded if name.startswith(("qa_cluster.asking", "qa_cluster.evaluation"))]


LATE = "def f():\n    {}\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"


@pytest.mark.parametrize("shape", ["{}\n", LATE, FOR_TYPES], ids=["plain", "in a function", "for types"])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from ..process import jobs", "process.jobs"),
        ("from ..process.jobs import Jobs", "process.jobs.Jobs"),
        ("from .. import process", "process"),
        ("from qa_cluster.gears.process.jobs import Jobs", "process.jobs.Jobs"),
        ("from qa_cluster.gears import process", "process"),
        ("import qa_cluster.gears.process.jobs as jobs", "process.jobs"),
        ("from ...gears.process import jobs", "process.jobs"),
    ],
)
def test_a_planted_wrong_direction_is_found(shape: str, line: str, name: str) -> None:
    tree = Tree({f"{GEARS}.shard.link": shape.format(line)})
    assert wrong_directions(tree, GEARS_ROOMS) == [f"{GEARS}.shard.link imports {GEARS}.{name}"]


def test_right_directions_are_not_found() -> None:
    line = (
        "from ..shard import link\nfrom . import commands\nfrom ..functions.calls import TriggerCall\nimport asyncio\n"
    )
    assert wrong_directions(Tree({f"{GEARS}.process.jobs": line}), GEARS_ROOMS) == []


def test_imports_of_a_package_are_relative_to_itself() -> None:
    tree = Tree({f"{GEARS}.shard": "from ..process import jobs"}, frozenset({f"{GEARS}.shard"}))
    assert wrong_directions(tree, GEARS_ROOMS) == [f"{GEARS}.shard imports {GEARS}.process.jobs"]


@pytest.mark.parametrize("shape", ["{}\n", LATE, FOR_TYPES], ids=["plain", "in a function", "for types"])
def test_a_planted_circle_of_files_is_found(shape: str) -> None:
    sources = {f"{GEARS}.shard.a": "from .b import f", f"{GEARS}.shard.b": "from . import c"}
    assert circle(Tree({**sources, f"{GEARS}.shard.c": "import qa_cluster.gears.shard.d"})) is None
    tree = Tree({**sources, f"{GEARS}.shard.c": shape.format("from .a import f")})
    assert circle(tree) == [f"{GEARS}.shard.{name}" for name in "abca"]


QUESTION_FILES = ("shard.link", "inference.batcher", "functions.answering.answer", "process.jobs")


@pytest.mark.parametrize("shape", ["{}\n", LATE, FOR_TYPES], ids=["plain", "in a function", "for types"])
@pytest.mark.parametrize("module", QUESTION_FILES)
def test_a_planted_import_of_the_scripts_wing_is_found(module: str, shape: str) -> None:
    tree = Tree({f"{GEARS}.{module}": shape.format(f"from {SCRIPTS}.runs.plan import Step")})
    assert wrong_directions(tree, GEARS_ROOMS) == [f"{GEARS}.{module} imports {SCRIPTS}.runs.plan.Step"]


def test_the_scripts_wing_may_import_the_question_wing() -> None:
    line = "from ...functions.own_functions import OwnFunctions\nfrom ...process.jobs import JobTable\n"
    assert wrong_directions(Tree({f"{SCRIPTS}.jobs.script_jobs": line}), GEARS_ROOMS) == []


def test_a_planted_import_of_answering_in_indexing_is_found() -> None:
    line = f"from {FUNCTIONS}.answering.answer import SentenceAnswers"
    found = wrong_directions(Tree({f"{FUNCTIONS}.indexing.sweep": line}), GEARS_ROOMS)
    assert found == [f"{FUNCTIONS}.indexing.sweep imports {FUNCTIONS}.answering.answer.SentenceAnswers"]


def test_a_planted_folder_without_a_room_or_with_too_many_files_is_found() -> None:
    inside = {f"{GEARS}.shard.file{number}": "" for number in range(MAX_FILES - 1)}
    packages = frozenset({GEARS, f"{GEARS}.shard"})
    tree = Tree({**dict.fromkeys(packages, ""), **inside}, packages)
    assert (roomless(tree, GEARS_ROOMS), crowded(tree)) == ({GEARS}, {})
    tree = Tree({**tree.sources, f"{GEARS}.attic.things": "", f"{GEARS}.shard.more": ""}, packages)
    assert roomless(tree, GEARS_ROOMS) == {GEARS, f"{GEARS}.attic"}
    assert crowded(tree) == {f"{GEARS}.shard": MAX_FILES + 1}


def test_a_planted_import_that_breaks_the_star_is_found() -> None:
    lines = {
        "api": ("from qa_cluster.gears import worker", "qa_cluster.gears.worker"),
        "qa_cluster": ("import qa_cluster.models.exporting.export", "qa_cluster.models.exporting.export"),
        "cluster": ("def f():\n    import gears.worker", "gears.worker"),
        "models": ("from qa_cluster.qa_cluster.keys import slot", "qa_cluster.qa_cluster.keys.slot"),
        "gears": ("from qa_cluster.tests import harness", "qa_cluster.tests.harness"),
        "integrations": ("from qa_cluster.api import app", "qa_cluster.api.app"),
    }
    for folder, (line, name) in lines.items():
        assert outside(folder, Tree({f"{folder}.x": line})) == [f"{folder}.x imports {name}"]
    assert outside("gears", Tree({f"{GEARS}.x": "from qa_cluster.gears.shard.link import Link"})) == []
    assert outside("gears", Tree({f"{GEARS}.x": "from . import shard"})) == []
