"""The documents name all commands of the module and of the command line. All settings and paths in them exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from qa_cluster import __version__
from qa_cluster.cluster.cli import app
from qa_cluster.config import SETTINGS
from tests.contract.recipes import TOP_FOLDERS, Recipe, definitions
from tests.contract.rooms import FOLDERS
from tests.contract.test_star import MAX_FILES
from tests.docs.blocks import DOCUMENTS, ROOT, blocks, document_name, steps
from tests.fuzz.shapes import SHAPES
from tests.harness.servers import Server

PATHS = {
    document_name(path): path for path in (*DOCUMENTS, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")))
}
TEXTS = {name: path.read_text() for name, path in PATHS.items()}
COMMANDS: Any = typer.main.get_command(app)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# Internal commands, which clients do not send.
PRIVATE = {"RG.INNERHOOK", "RG.FROMPRIMARY"}
# Names with underscores in documents that are not settings.
OTHER_NAMES = {
    "qa_failed_documents",  # in INFO and in the metrics
    *("first_pause", "max_pause"),  # of a client's RetryPolicy
    *("document_id", "better_document_id", "better_answer", "better_context"),
    "filter_documents",  # of Haystack's document stores
    *("also_in", "base_url", "url_style", "node_modules"),
    *("top_k", "min_score", "retriever_k", "doc_id", "timeout_ms", "no_answer", "request_id", "next_cursor"),
    *("shards_answered", "qa_shards_down", "qa_partial_results_total", "qa_event_loop_lag_seconds", "sessions_refused"),
    *(
        "qa_batches_oldest_open_seconds",
        "qa_submitted_questions",
        "qa_submitted_questions_oldest_seconds",
        "in_progress",
    ),
    *("qa_trace_spans_sent", "qa_trace_spans_dropped", "parentbased_traceidratio"),
    *("other_encoder", "other_document", "other_sentences", "embed_documents"),  # of vectors in a write
    *("list_collections", "put_document", "next_offset"),  # of the MCP server
    *("qa_cluster", "token_type_ids", "input_ids", "call_next", "qa_rg_nexecutions", "xquad_en_a", "covidqa_a"),
}


def section(document: str, heading: str) -> str:
    """Return the text under a heading, up to the next heading of its level."""
    return TEXTS[document].split(f"\n## {heading}\n")[1].split("\n## ")[0]


def spans(text: str) -> list[str]:
    """Return the texts between backticks outside code blocks."""
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))]


def test_commands_of_the_module(server_binary: Path) -> None:
    public = set(re.findall(r"`((?:AI|RG|QA\.INDEX)\.[A-Z_]+|QA\.[A-Z]+)`", section("commands.md", "On the wire")))
    assert {name for name in public if name.startswith("QA.INDEX.")} == set(
        re.findall(r"^\| `(QA\.INDEX\.[A-Z]+)", TEXTS["inverted-index.md"], re.MULTILINE)
    )
    assert {name for name in public if re.fullmatch(r"QA\.[A-Z]+", name)} == set(
        re.findall(r"^\| `(QA\.[A-Z]+) ", TEXTS["design/writing-documents.md"], re.MULTILINE)
    )
    named = public | set(re.findall(r"^\| `(QA\.[A-Z]+)", TEXTS["worker-protocol.md"], re.MULTILINE))
    with Server(server_binary) as server, server.client() as client:
        known = {name.decode() if isinstance(name, bytes) else name for name in client.execute_command("COMMAND LIST")}
    present = {name.upper() for name in known if name.lower().startswith(("ai.", "rg.", "qa."))}
    assert named == present - PRIVATE


def test_the_fuzzer_has_arguments_for_every_command_on_keys() -> None:
    named = set(re.findall(r"`((?:AI|QA\.INDEX)\.[A-Z_]+|QA\.[A-Z]+)`", section("commands.md", "On the wire")))
    assert len(named) > 20
    assert named - SHAPES.keys() == set()


def test_subcommands() -> None:
    named = re.findall(r"^\| `qa-cluster ([a-z]+)` \|", section("commands.md", "The command line"), re.MULTILINE)
    assert sorted(named) == sorted(COMMANDS.commands)


def written_commands() -> Iterator[tuple[str, str]]:
    """Yield every command of this project in the text and the blocks of the documents, with its document."""
    for name, text in TEXTS.items():
        in_blocks = [
            step.command for block in blocks(name, text) if block.info == "console" for step in steps(block.text)
        ]
        for command in (*spans(text), *in_blocks):
            if command.startswith(("qa-cluster ", "make ")):
                yield name, re.sub(r"\s+#\s.*|\\\n", "", command)


def missing(command: str) -> str:
    """Return the first make target, subcommand or option of a command that does not exist; empty if all exist."""
    program, *words = re.sub(r"""ARGS=(["']).*?\1""", "", command).split()
    if program == "make":
        return next((word for word in words if re.fullmatch(r"[a-z-]+", word) and word not in TARGETS), "")
    here: Any = COMMANDS
    options = {name for parameter in here.params for name in parameter.opts}
    while hasattr(here, "commands") and words and not words[0].startswith("-"):
        if words[0] not in here.commands:
            return words[0]
        here = here.commands[words.pop(0)]
        options |= {name for parameter in here.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if here.context_settings.get("ignore_unknown_options"):
        return ""  # another program parses the options
    known = options | {"--help", "-h"}
    return next((word for word in words if word.startswith("--") and word.partition("=")[0] not in known), "")


def test_commands_that_documents_name_exist() -> None:
    found = list(written_commands())
    assert len(found) > 40
    assert [(document, command, gone) for document, command in found if (gone := missing(command))] == []


@pytest.mark.parametrize(
    ("command", "gone"),
    [
        ("make fly", "fly"),
        ("make fuzz ARGS=--planted", ""),
        ("qa-cluster fly", "fly"),
        ("qa-cluster model fly", "fly"),
        ("qa-cluster ask 'Why?' --loud", "--loud"),
        ("qa-cluster up --first-port 7000 --data-dir x", ""),
    ],
)
def test_planted_commands_are_found(command: str, gone: str) -> None:
    assert missing(command) == gone


def test_settings_that_documents_name_exist() -> None:
    named: set[str] = set()
    for name in ("README.md", "rest-service.md", "operations.md", "limitations.md", "commands.md"):
        named |= {span for span in spans(TEXTS[name]) if re.fullmatch(r"[a-z]+(?:_[a-z]+)+", span)}
    fields = {"ask_fields", "wave_threshold"}
    assert named - OTHER_NAMES - fields <= set(SETTINGS)


def undocumented(settings: Iterable[str]) -> list[str]:
    """Return the settings that no document names."""
    named = {span for text in TEXTS.values() for span in re.findall(r"\w+", " ".join(spans(text)))}
    return [name for name in settings if name not in named]


def test_documents_name_every_setting() -> None:
    assert undocumented(SETTINGS) == []
    assert undocumented(["shards", "fly_ms"]) == ["fly_ms"]


def test_version_is_in_the_changelog() -> None:
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text()


def paths(text: str) -> Iterator[str]:
    """Yield the paths of this checkout between backticks; a star matches anything."""
    for span in spans(text):
        if re.fullmatch(rf"(?:{TOP_FOLDERS})/[\w./*-]*", span):
            yield span
        elif argument := re.search(r"\bARGS=(tests/[\w./-]+)", span):
            yield argument[1]


@pytest.mark.parametrize("document", TEXTS)
def test_paths_that_documents_name_exist(document: str) -> None:
    assert [path for path in paths(TEXTS[document]) if not list(ROOT.glob(path.rstrip("/")))] == []


def anchors(text: str) -> set[str]:
    """The names that headings have in links."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", TEXTS)
def test_links_lead_somewhere(document: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[document]):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = PATHS[document].parent / name if name else PATHS[document]
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def rooms() -> set[str]:
    """The rooms by the names that docs/design/rooms.md uses: folders within the seven folders of code."""
    named: set[str] = set()
    for folder in ("qa_cluster", "gears", "native", "cluster", "api", "models", "integrations"):
        files = [path for pattern in ("*.py", "*.c", "*.lua") for path in (ROOT / folder).rglob(pattern)]
        named |= {f"{path.parent.relative_to(ROOT / folder)}/" for path in files} - {"./"}
    return {name for name in named if not name.startswith(("tests/", "build/"))}


def test_every_room_has_a_paragraph() -> None:
    described = set(re.findall(r"`((?:[a-z_]+/)+)`", TEXTS["design/rooms.md"]))
    assert {room for room in rooms() if room not in described and f"models/{room}" not in described} == set()


def test_planted_paths_and_anchors_are_found() -> None:
    assert list(paths("`gears/fly.py` and `make test ARGS=tests/fly.py`")) == ["gears/fly.py", "tests/fly.py"]
    assert anchors("# A title\n## `AI.*`: an end") == {"a-title", "ai-an-end"}


RECIPES = [Recipe.parse(text) for text in TEXTS["changing.md"].split("\n## ")[1:]]


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.title for recipe in RECIPES])
def test_a_recipe_names_files_that_define_its_names(recipe: Recipe) -> None:
    assert list(recipe.faults()) == []


def test_the_page_has_recipes_with_steps() -> None:
    assert len(RECIPES) == 15
    assert min(len(recipe.files) for recipe in RECIPES) >= 3


def test_the_page_names_the_folders_that_are_full() -> None:
    counts = Counter(path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    full = {f"{folder.relative_to(ROOT)}/" for folder, count in counts.items() if count == MAX_FILES}
    said = TEXTS["changing.md"].partition("`MAX_FILES`")[2].partition("are full")[0]
    assert {path for path in paths(said) if path.endswith("/")} == full


PLAN, ANSWERING = "qa_cluster/reading/plan.py", "qa_cluster/asking/answers/answering.py"
GOOD = f"""A

Open first: `{PLAN}`, `{ANSWERING}`.

1. `{PLAN}`: change `WAVES` or `wave_ends`, and `StageOptions.stage`.
2. `_read_waves` in `{ANSWERING}` uses it. `StageReading` has the result.

- If the module needs it: `OwnScript` in `native/corpus/own_scripts.h`, and `TEXTS` in `native/corpus/own_scripts.c`.

Red: `tests/conftest.py`.
"""


def faults(old: str = "", new: str = "") -> list[str]:
    """The faults of the good recipe, after a replacement."""
    assert old in GOOD
    return list(Recipe.parse(GOOD.replace(old, new)).faults())


def test_a_good_recipe_has_no_fault() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("`WAVES`", "`fly`", f"A: fly is not defined in {PLAN}"),
        ("`WAVES`", "`Manifest`", f"A: Manifest is not defined in {PLAN}"),  # only imported
        ("StageOptions.stage", "StageOptions.soon", f"A: soon is not defined in {PLAN}"),
        ("`StageReading`", "`wave_ends`", f"A: wave_ends is not defined in {ANSWERING}"),  # imported and called
        (
            "own_scripts.h",
            "own_scripts.c",
            "A: OwnScript is not defined in native/corpus/own_scripts.c",  # a parameter has this type
        ),
        (
            "`TEXTS`",
            "`RedisModule_Call`",
            "A: RedisModule_Call is not defined in native/corpus/own_scripts.h, native/corpus/own_scripts.c",
        ),
        (
            "`OwnScript` in `native/corpus/own_scripts.h`, and `TEXTS` in `native/corpus/own_scripts.c`",
            "`TEXTS` in `native/corpus/own_scripts.h` and `native/corpus/own_scripts.c`",
            "A: TEXTS is not defined in native/corpus/own_scripts.h",
        ),
        (f"`_read_waves` in `{ANSWERING}` uses it. `StageReading` has", "It has", "to be opened first"),
        ("change `WAVES` or `wave_ends`, and `StageOptions.stage`", "change it", "to be opened first"),
        (f"Open first: `{PLAN}`, `{ANSWERING}`.\n", "", "A: does not begin with the files to open first"),
        (f"`{PLAN}`, `{ANSWERING}`", "`fly.py`", "A: ['fly.py'] are not at most three files"),
        (f"`{PLAN}`, `{ANSWERING}`", "`LICENSE`, `LICENSE`, `LICENSE`, `LICENSE`", "are not at most three files"),
        ("Red: `tests/conftest.py`", "", "A: names no test that goes red"),
        ("Red: `tests/conftest.py`", "Red: nothing", "A: names no test that goes red"),
    ],
)
def test_a_planted_faulty_recipe_is_found(old: str, new: str, problem: str) -> None:
    assert problem in "\n".join(faults(old, new))


def test_definitions_are_found() -> None:
    assert definitions("tests/contract/recipes.py") >= {"Recipe", "faults", "MAX_FIRST", "sentences", "text"}
    assert not definitions("tests/contract/recipes.py") & {"dataclass", "findall", "Iterator"}
    found = definitions("native/models/model.h") | definitions("native/worker/beat.c")
    assert found >= {"ModelBackend", "MODEL_TORCH", "MODEL_ENCVER", "VALUES", "beat_read", "rss_bytes", "model_new"}
    assert not found & {"RedisModuleString", "snprintf", "Blob", "BEAT_OF_WORKER"}
