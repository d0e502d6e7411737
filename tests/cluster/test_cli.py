"""The command line of a user: help, exit codes, messages without tracebacks, settings from all sources."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from qa_cluster.cluster.cli import app, exit_code, main, shared_first
from qa_cluster.cluster.commands import groups
from qa_cluster.cluster.commands.measuring import bench
from qa_cluster.config import SETTINGS
from qa_cluster.errors import (
    CannotWrite,
    ClusterError,
    ConfigError,
    DeadlineExceeded,
    InvalidInput,
    ModelError,
    NoWorker,
    QueueFull,
)
from qa_cluster.routing.shards import ShardDown
from tests.harness.ports import free_port

COMMANDS = tuple(get_group(app).commands)
# The groups whose subcommands have the examples.
GROUPS = ("documents", "collections", "keys", "jobs", "kafka", "pins", "synonyms")
HELPED = [
    *([name] for name in COMMANDS if name not in ("bench", "model", *GROUPS)),
    *([group, name] for group in GROUPS for name in get_group(getattr(groups, f"{group}_group")).commands),
]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Qa = Callable[..., Done]


@pytest.fixture
def qa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Qa:
    """A function that runs the command in this process, in the test's folder."""

    def run(*arguments: str, **environment: str) -> Done:
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            patched.setattr(sys, "argv", ["qa-cluster", *arguments])
            for name, value in {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", **environment}.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capsys.readouterr())

    return run


def test_the_help_names_all_commands_and_exit_codes(qa: Qa) -> None:
    shown = qa("--help").stdout
    assert all(name in shown for name in COMMANDS)
    assert "Exit codes" in shown and "130 interrupted" in shown
    for group in ("model", *GROUPS):
        assert qa(group, "--help").returncode == 0


@pytest.mark.parametrize("names", HELPED, ids=" ".join)
def test_the_help_of_a_command_has_texts_and_examples(qa: Qa, names: list[str]) -> None:
    done = qa(*names, "--help")
    assert done.returncode == 0, done.stderr
    assert f"Example: qa-cluster {' '.join(names)}" in done.stdout or "Examples:" in done.stdout or len(names) == 1
    assert "Example" in done.stdout and "qa-cluster" in done.stdout
    assert "Examples:" not in done.stdout or re.search(r"Examples:\s*\n {5}qa-cluster", done.stdout)
    assert "[[" not in done.stdout  # click puts brackets around optional arguments


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "Usage"),
        (["fly"], 2, "No such command"),
        (["up", "--shards", "x"], 2, "--shards"),
        (["up", "--shards", "0"], 2, "'shards'"),
        (["up", "--form"], 2, "list all of them in setting 'cluster_url'"),
        (["--set", "shards", "config"], 2, "NAME=VALUE"),
        (["--set", "shard=3", "config"], 2, "did you mean 'shards'"),
        (["--config", "missing.toml", "config"], 2, "missing.toml"),
        (["ask"], 2, "question"),
        (["ask", ""], 2, "question must contain a letter or a digit"),
        (["ask", "???"], 2, "question must contain a letter or a digit"),
        (["ask", "Why?", "--top-k", "100"], 2, "top_k must be from 1 to 20"),
        (["search"], 2, "words"),
        (["search", "???"], 2, "query must contain a letter or a digit"),
        (["search", "Ada", "--top-k", "1001"], 2, "'--top-k'"),
        (["search", "Ada", "--context", "17"], 2, "'--context'"),
        (["search", "Ada", "--doc-id", ""], 2, "doc_id must have 1 to 512 bytes"),
        (["up", "--first-port", "55534"], 2, "port 55536"),
        (["down", "--cluster-url", "redis://u:hunter2@127.0.0.1:1"], 2, "stops only the local cluster"),
        (["--data-dir", "/proc/x", "up", "--bare"], 2, "'data_dir' is '/proc/x'"),
        (["ingest", "nowhere.txt"], 2, "nowhere.txt"),
        (["ingest", ".", "--on-error", "panic"], 2, "panic"),
        (["ingest"], 2, "name the files and folders to store"),
        (["ingest", ".", "--format", "word"], 2, "'word' is not one of rst, markdown, html"),
        (["ingest", ".", "--exclude", "[a"], 2, "--exclude '[a' is not a pattern"),
        (["ingest", ".", "--include", "*a*b*c*d"], 2, "too many stars"),
        (["ingest", ".", "--base-url", "docs.example.org"], 2, "'docs.example.org' is not the address of a folder"),
        (
            ["ingest", ".", "--base-url", "https://a.example/", "--url-style", "pretty"],
            2,
            "'pretty' is not one of html",
        ),
        (["ingest", ".", "--metadata", "year"], 2, "metadata must look like year=2020"),
        (["ingest", ".", "--metadata", "_source=x"], 2, "reserved"),
        (["ingest", ".", "--format", "rst", "--raw"], 2, "--format rst has no effect"),
        (["ingest", ".", "--show", "/etc/passwd"], 2, "stores nothing: leave out"),
        (["ingest", "--show", "nowhere.rst"], 2, "nowhere.rst"),
        (["ingest", "--show", "/etc/passwd", "--format", "pdf"], 1, "/etc/passwd: the PDF cannot be read"),
        (["model", "load", "nowhere"], 2, "nowhere"),
        (["documents"], 2, "Usage"),
        (["documents", "show"], 2, "ID"),
        (["documents", "delete"], 2, "ID"),
        (["documents", "list", "--limit", "0"], 2, "--limit"),
        (["documents", "list"], 3, "qa-cluster up"),
        (["documents", "count"], 3, "qa-cluster up"),
        (["status"], 3, "qa-cluster up"),
        (["ask", "Why?"], 3, "qa-cluster up"),
        (["search", "Ada"], 3, "qa-cluster up"),
        (["serve"], 3, "qa-cluster up"),
        (["pretokenize"], 3, "qa-cluster up"),
        (["--cluster-url", "http://x", "status"], 2, "redis://host:port"),
        (["--cluster-url", "redis://127.0.0.1:99999", "status"], 2, "99999"),
        (["down"], 0, "nothing was running"),
    ],
)
def test_exit_codes_and_messages(qa: Qa, tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    done = qa(*arguments)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert words in said
    assert "Traceback" not in said
    assert "hunter2" not in said
    assert not (tmp_path / ".qa-cluster" / "cluster.json").exists()


def test_ingest_shows_what_it_would_store(qa: Qa, tmp_path: Path) -> None:
    page = tmp_path / "tool.1"
    page.write_text(".TH TOOL 1\n.SH NAME\ntool \\- does it\n.SH OPTIONS\n.TP\n.B \\-f\nForces it.\n")
    shown = qa("ingest", "--show", str(page)).stdout
    assert shown.startswith("tool(1) - does it  [tool.1, roff, ")
    assert "\n## OPTIONS > -f, line 6\n\n-f: Forces it.\n" in shown
    assert ".SH NAME" in qa("ingest", "--show", str(page), "--format", "text").stdout
    (tmp_path / "a.md").write_text("# *A*\n")
    assert "# *A*" in qa("ingest", "--show", str(tmp_path / "a.md"), "--raw").stdout


@pytest.mark.parametrize(
    "command", [["status"], ["ask", "Why?"], ["search", "Ada"], ["down"], ["down", "--cluster-url", "redis://x:1"]]
)
def test_commands_that_only_read_create_no_folder(qa: Qa, tmp_path: Path, command: list[str]) -> None:
    qa(*command)
    assert list(tmp_path.iterdir()) == []


def test_serve_refuses_a_port_in_use_before_it_starts(qa: Qa) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = qa("serve", "--port", port, "--cluster-url", "redis://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_help_of_the_benchmarks_needs_no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "checkout_source", lambda: None)
    shown = CliRunner().invoke(app, ["bench", "--help"])
    assert shown.exit_code == 0
    assert "source checkout" in shown.output
    assert isinstance(CliRunner().invoke(app, ["bench"]).exception, ConfigError)


def test_a_cluster_that_is_not_reachable(qa: Qa) -> None:
    port = free_port()
    done = qa("status", "--cluster-url", f"redis://user:hunter2@127.0.0.1:{port}")
    assert done.returncode == 3
    assert str(port) in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_config_shows_value_and_source_and_hides_secrets(qa: Qa, tmp_path: Path) -> None:
    (tmp_path / "qa-cluster.toml").write_text("replicas = 1\n")
    done = qa("config", "--json", "--set", "http-port=9000", QA_SHARDS="5", QA_CLUSTER_PASSWORD="hunter2")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert set(shown) == set(SETTINGS)
    assert (shown["shards"]["value"], shown["shards"]["source"]) == ("5", "environment")
    assert (shown["replicas"]["value"], shown["replicas"]["source"]) == ("1", "file qa-cluster.toml")
    assert (shown["http_port"]["value"], shown["http_port"]["source"]) == ("9000", "flag")
    assert shown["waves"]["source"] == "default"
    assert "hunter2" not in done.stdout
    assert "hunter2" not in qa("config", QA_CLUSTER_PASSWORD="hunter2").stdout


def test_the_program_prints_its_version_and_exits_with_a_code(tmp_path: Path) -> None:
    program = [Path(sys.executable).with_name("qa-cluster")]
    shown = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("qa-cluster ")
    done = subprocess.run([*program, "status"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_shared_options_are_allowed_anywhere() -> None:
    assert shared_first(["up", "--data-dir", "x", "--shards", "5"]) == ["--data-dir", "x", "up", "--shards", "5"]
    assert shared_first(["ask", "Why?", "--set=shards=3"]) == ["--set=shards=3", "ask", "Why?"]
    assert shared_first(["ask", "--", "--config"]) == ["ask", "--", "--config"]
    assert shared_first(["up", "--config"]) == ["--config", "up"]


def test_a_command_imports_only_what_it_needs() -> None:
    """The imports take most of the time of a short command."""
    script = (
        "import sys\n"
        "from typer.main import get_group\n"
        "from qa_cluster.cluster.cli import app\n"
        "commands = get_group(app).commands\n"
        "seen = {name for name in sys.modules if 'cluster.commands' in name}\n"
        "for name in ('config', 'status', 'down', 'up'): commands[name]\n"
        "commands['model'].commands['list']\n"
        "print(*sorted(seen))\n"
        "print(*sorted({'httpx', 'numpy', 'openvino', 'rq', 'tokenizers'} & sys.modules.keys()))\n"
        "print('qa_cluster.cluster.commands.ask' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [
        "qa_cluster.cluster.commands qa_cluster.cluster.commands.shared_options",
        "",
        "False",
    ]


def test_simple_values_need_no_pydantic(tmp_path: Path) -> None:
    """The import of pydantic takes a quarter of a short command's time."""
    (tmp_path / "a file").write_text("A sentence.")
    commands = [
        (["config", "--set", "shards=5"], 0),
        (["status", "--json"], 3),
        (["down"], 0),
        (["model", "list"], 3),
        (["search", "words", "--top-k", "3"], 3),
        (["ask", "--help"], 0),
        (["backup", "into/this"], 3),
        (["ingest", ".", "a file"], 3),
        (["ingest", ".", "missing"], 2),
        (["ingest", "--show", "a file"], 0),
    ]
    script = (
        "import json, sys\n"
        "from qa_cluster.cluster.cli import main\n"
        "program, found = sys.argv[:3], []\n"
        "for arguments in json.loads(sys.argv[3]):\n"
        "    sys.argv = [*program, *arguments]\n"
        "    try: main()\n"
        "    except SystemExit as ended: found.append((ended.code, 'pydantic.main' in sys.modules))\n"
        "print(json.dumps(found), file=sys.stderr)"
    )
    given = ["--data-dir", str(tmp_path / "none"), json.dumps([arguments for arguments, _ in commands])]
    done = subprocess.run(
        [sys.executable, "-c", script, *given], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [[code, False] for _, code in commands]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (InvalidInput("x"), 1),
        (ModelError("x"), 1),
        (ClusterError("x"), 3),
        (ShardDown("x"), 3),
        (CannotWrite("x"), 1),
        (NoWorker("x"), 3),
        (QueueFull("x"), 4),
        (DeadlineExceeded("x"), 4),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code
