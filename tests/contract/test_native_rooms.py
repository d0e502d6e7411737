"""The C files of `native/` are in rooms. Includes between rooms point one way. No two parts include each other.

A part is a `.c` file with the header of its name. A part without a header has only a load function, which `module.c`
calls. A `.c` file defines everything that its header declares, because otherwise a part could call another part without
an include. For each rule, a test breaks the rule and checks that it fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

from tests.fuzz.planted import MISTAKES, Mistake
from tests.soak.planted import MISTAKES as SOAK_MISTAKES

NATIVE = Path(__file__).resolve().parents[2] / "native"
MAX_PARTS = 15
# The rooms, and the other rooms that each may include. The files at the top belong to no room and connect the rooms.
BELOW: dict[str, set[str]] = {
    "index": set(),
    "server": set(),
    "jobs": {"server"},
    "models": {"server", "jobs"},
    "corpus": {"server", "index"},
    "functions": {"server", "jobs"},
    "worker": {"server", "jobs", "functions"},
    "scripts/gears": {"server", "jobs", "functions", "worker"},
    "scripts/ai": {"server", "jobs", "models"},
}
# The scripts wing, for scripts of users. The other rooms are the question wing, which never includes the scripts wing.
SCRIPTS = {name for name in BELOW if name.startswith("scripts/")}
TOP = {"module", "info"}
# The library is one part with many files. It includes no room, and rooms include only its public header. Here the
# public header represents the library.
LIBRARY = "index"
PUBLIC = "index/index.h"
# The files of the library, the lowest first. A file calls only lower files and includes only their headers.
LAYERS = [
    *("structure", "memory", "codes", "dot", "fields", "table", "blocks", "runs", "postings", "dictionary", "names"),
    *("vectors", "sentences", "documents", "filter", "open", "list", "values", "embed", "meaning", "rank", "maintain"),
    *("index", "save", "load", "questions", "watch"),
]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
# A prototype starts in the first column; members of types and calls do not.
PROTOTYPE = re.compile(r"^(?!static|typedef|return|extern|#)[a-z]\w*[\w \*]*?[ \*](\w+)\([^;{}]*\);", re.MULTILINE)

Sources = Mapping[str, str]


def sources() -> dict[str, str]:
    """The text of every C file of the module by its path in `native/`; of the library only the public header."""
    paths = [path for pattern in ("*.[ch]", "*/*.[ch]", "scripts/*/*.[ch]") for path in NATIVE.glob(pattern)]
    named = {path.relative_to(NATIVE).as_posix(): path for path in paths}
    return {
        name: named[name].read_text()
        for name in sorted(named)
        if name == PUBLIC or not name.startswith(("build/", "tests/", f"{LIBRARY}/"))
    }


def library() -> dict[str, str]:
    """The text of every file of the library by its path in `native/`."""
    return {f"{LIBRARY}/{path.name}": path.read_text() for path in (NATIVE / LIBRARY).glob("*.[ch]")}


def room(name: str) -> str:
    """Return the folder of a file; "" at the top."""
    folder = PurePosixPath(name).parent.as_posix()
    return "" if folder == "." else folder


def part(name: str) -> str:
    return name.rsplit(".", 1)[0]


def included(text: str) -> list[str]:
    return INCLUDE.findall(COMMENT.sub("", text))


def misplaced(files: Iterable[str]) -> list[str]:
    """Return the files in no room, and rooms with too many parts."""
    names = list(files)
    lost = [name for name in names if room(name) not in BELOW and part(name) not in TOP]
    crowded = [
        f"{each}: {len(parts)} parts"
        for each in BELOW
        if len(parts := {part(name) for name in names if room(name) == each}) > MAX_PARTS
    ]
    return lost + crowded


def upward(files: Sources) -> list[str]:
    """Return each include of a missing file, or of a room that the file's room may not include."""
    found = []
    for name, text in files.items():
        known = {room(name)} | BELOW.get(room(name), set(BELOW))
        bad = [target for target in included(text) if target not in files or room(target) not in known]
        found += [f"{name} includes {target}" for target in bad]
    return found


def crossing(files: Sources) -> list[str]:
    """Return the includes of the scripts wing in the question wing. Only files at the top may include both wings."""
    return [
        f"{name} includes {target}"
        for name, text in files.items()
        if room(name) not in SCRIPTS | {""}
        for target in included(text)
        if target.startswith("scripts/")
    ]


def edges(files: Sources) -> dict[str, set[str]]:
    """Return the parts that each part includes, in its header or in its code."""
    graph: dict[str, set[str]] = {part(name): set() for name in files}
    for name, text in files.items():
        graph[part(name)] |= {part(target) for target in included(text)} - {part(name)}
    return graph


def circles(files: Sources) -> list[str]:
    """Return the parts that include themselves through other parts."""
    graph = edges(files)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), set()) - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    return [name for name in graph if name in reached(name)]


def declared(text: str) -> Iterator[str]:
    yield from PROTOTYPE.findall(COMMENT.sub("", text))


def foreign(files: Sources) -> list[str]:
    """Return functions that a header declares and its `.c` file does not define, and prototypes outside headers."""
    found = []
    for name, text in files.items():
        if room(name) == LIBRARY:
            continue
        if name.endswith(".h"):
            code = COMMENT.sub("", files.get(part(name) + ".c", ""))
            found += [
                f"{name} declares {each}"
                for each in declared(text)
                if not re.search(rf"^[^\s#].*[ \*]{each}\([^;{{}}]*\) {{", code, re.MULTILINE)
            ]
        else:
            found += [f"{name} declares {each}" for each in declared(text)]
            found += [f"{name} has an extern" for _ in re.findall(r"^extern (?!char \*\*environ)", text, re.MULTILINE)]
    return found


def test_every_file_is_in_a_room_and_no_room_is_crowded() -> None:
    files = sources()
    assert {room(name) for name in files} == {*BELOW, ""}
    assert misplaced(files) == []


def test_includes_between_rooms_point_one_way() -> None:
    assert upward(sources()) == []


def test_the_question_wing_does_not_include_the_scripts_wing() -> None:
    files = sources()
    assert SCRIPTS and not any(BELOW[name] & SCRIPTS for name in BELOW.keys() - SCRIPTS)
    assert crossing(files) == []
    for name in ("functions/registry.c", "models/model.h", "worker/supervisor.c"):
        planted = {**files, name: f'{files[name]}\n#include "scripts/gears/atomic.h"\n'}
        assert crossing(planted) == [f"{name} includes scripts/gears/atomic.h"]
    moved = {**files, "scripts/ai/dag.c": f'{files["scripts/ai/dag.c"]}\n#include "jobs/jobs.h"\n'}
    assert crossing(moved) == []


def test_no_parts_include_each_other() -> None:
    assert circles(sources()) == []


def strayed(files: Sources) -> list[str]:
    """Return the library's includes of files outside the library."""
    return [
        f"{name} includes {target}" for name, text in files.items() for target in included(text) if target not in files
    ]


def test_the_library_includes_no_room() -> None:
    files = library()
    assert len(files) > 10 and PUBLIC in files
    assert strayed(files) == []
    assert strayed({**files, f"{LIBRARY}/rank.c": '#include "server/server.h"\n'}) == [
        f"{LIBRARY}/rank.c includes server/server.h"
    ]
    defined = "".join(COMMENT.sub("", text) for name, text in files.items() if name.endswith(".c"))
    functions = re.findall(r"^\w[\w \*]*[ \*](\w+)\([^;{}]*\);", COMMENT.sub("", files[PUBLIC]), re.MULTILINE)
    assert len(functions) > 20
    assert [name for name in functions if not re.search(rf"^\w.*[ \*]{name}\([^;{{}}]*\) {{", defined, re.M)] == []


def called_upward(files: Sources) -> list[str]:
    """Return the library's calls and includes whose target is not a lower file."""
    code = {part(name).rpartition("/")[2]: COMMENT.sub("", text) for name, text in files.items() if name.endswith(".c")}
    definition = re.compile(r"^(?!static|return)\w[\w \*]*[ \*](\w+)\([^;{}]*\) \{", re.MULTILINE)
    defined = {function: name for name, text in code.items() for function in definition.findall(text)}
    found = []
    for name, text in code.items():
        above = set(LAYERS[LAYERS.index(name) + 1 :])
        calls = sorted({defined[word] for word in re.findall(r"\b\w+\b", text) if defined.get(word) in above})
        found += [f"{name} calls {other}" for other in calls]
    for path, text in files.items():
        name = part(path).rpartition("/")[2]
        below = {*LAYERS[: LAYERS.index(name) + 1], LIBRARY} if name in LAYERS and path != PUBLIC else set()
        lower = {f"{LIBRARY}/{other}.h" for other in below}
        found += [f"{path} includes {target}" for target in included(text) if target not in lower]
    return found


def test_the_files_of_the_library_have_layers() -> None:
    files = library()
    names = {part(path).rpartition("/")[2] for path in files}
    assert names == {*LAYERS} and len(LAYERS) == len(names)
    assert called_upward(files) == []
    call = "\nvoid f(Index *index) { index_counts(index); }\n"  # needs no other include
    planted = {**files, "index/open.c": files["index/open.c"] + call}
    assert called_upward(planted) == ["open calls index"]
    planted = {**files, "index/runs.h": files["index/runs.h"] + '#include "index/documents.h"\n'}
    assert called_upward(planted) == ["index/runs.h includes index/documents.h"]


def test_a_header_declares_what_its_own_file_defines() -> None:
    files = sources()
    assert sum(len(list(declared(text))) for name, text in files.items() if name.endswith(".h")) > 150
    assert foreign(files) == []


def test_every_file_starts_with_a_comment_and_every_c_file_includes_its_header_first() -> None:
    files = sources()
    assert [name for name, text in files.items() if not text.startswith("/* ")] == []
    assert [
        name
        for name, text in files.items()
        if (header := part(name) + ".h") in files and name.endswith(".c") and included(text)[0] != header
    ] == []


def exported(text: str) -> list[str]:
    """Return the functions that a file defines and that are not static."""
    return re.findall(
        r"^(?!static|EXPORTED)[A-Za-z]\w*[\w \*]*?[ \*](\w+)\([^;{}]*\) \{", COMMENT.sub("", text), re.MULTILINE
    )


def test_a_part_without_a_header_has_only_a_load_function() -> None:
    files = sources()
    loaded = set(re.findall(r"X\((\w+)\)", files["module.c"]))
    alone = {name: exported(text) for name, text in files.items() if part(name) + ".h" not in files}
    assert alone.pop("module.c") == []
    wrong = [name for name, found in alone.items() if len(found) != 1 or not {*found} <= loaded]
    assert len(alone) > 10 and wrong == []
    assert exported(files["scripts/ai/dag.c"])[:2] == ["dag_new", "dag_free"]


@pytest.mark.parametrize(
    "name, line",
    [
        ("server/resp.c", '#include "jobs/jobs.h"'),  # a higher room
        ("jobs/order.h", '#include "worker/supervisor.h"'),  # a higher room, from a header
        ("functions/hook.c", '  #  include "models/blob.h"'),  # a room of the same height
        ("functions/hook.c", '#include "scripts/gears/stream.h"'),  # the scripts wing
        ("models/blob.c", '#include "module.h"'),  # a header that does not exist
        ("worker/supervisor.c", '#include "jobs.h"'),  # a file without the name of its room
        ("corpus/stored_index.c", '#include "index/structure.h"'),  # the library's private header
        ("models/blob.c", '#include "index/index.h"'),  # the library, from a room that may not include it
    ],
)
def test_a_planted_include_is_found(name: str, line: str) -> None:
    files = sources()
    target = line.split('"')[1]
    assert upward({**files, name: f"{files[name]}\n{line}\n"}) == [f"{name} includes {target}"]
    assert upward({**files, name: f"{files[name]}\n/* {line} */\n"}) == []


@pytest.mark.parametrize(
    "plants",
    [
        {"server/links.h": "server/caller.h"},  # a header, and the code of the other part
        {"jobs/queue.h": "jobs/order.h"},  # two headers
        {"server/args.c": "server/resp.h", "server/resp.c": "server/args.h"},  # two files of code
        {
            "functions/hooked_commands.c": "functions/registry.h",
            "functions/registry.h": "functions/hook.h",
        },  # through a third part
    ],
)
def test_a_planted_circle_is_found(plants: dict[str, str]) -> None:
    files = sources()
    planted = {name: f'{files[name]}\n#include "{target}"\n' for name, target in plants.items()}
    assert {part(name) for name in plants} <= set(circles({**files, **planted}))


def test_a_planted_file_or_crowd_is_found() -> None:
    files = sources()
    assert misplaced([*files, "helpers.c"]) == ["helpers.c"]
    assert misplaced([*files, "misc/list.h"]) == ["misc/list.h"]
    assert misplaced([*files, *(f"worker/more{i}.c" for i in range(MAX_PARTS))]) == ["worker: 21 parts"]


@pytest.mark.parametrize(
    "name, line",
    [
        ("server/server.h", "int registry_on_load(RedisModuleCtx *ctx);"),  # a function of a higher room
        ("jobs/jobs.c", "const char *supervisor_refusal(void);"),  # a call without an include
    ],
)
def test_a_planted_declaration_is_found(name: str, line: str) -> None:
    files = sources()
    function = re.findall(r"(\w+)\(", line)[0]
    assert foreign({**files, name: f"{files[name]}\n{line}\n"}) == [f"{name} declares {function}"]


def test_a_planted_extern_is_found() -> None:
    files = sources()
    planted = {**files, "jobs/jobs.c": files["jobs/jobs.c"] + "\nextern int supervisor_state;\n"}
    assert foreign(planted) == ["jobs/jobs.c has an extern"]


@pytest.mark.parametrize("mistake", [*MISTAKES, *SOAK_MISTAKES], ids=lambda each: each.name)
def test_the_proofs_of_fuzz_and_soak_find_the_lines_that_they_break(mistake: Mistake) -> None:
    assert mistake.before in (NATIVE / mistake.file).read_text()
