"""`qa-cluster eval` on real servers: its figures are right, and no files or processes remain."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.asking.answers.assembly import choose, orders
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster import cli
from qa_cluster.cluster.nodes.connect import shards_of
from qa_cluster.cluster.nodes.node import command
from qa_cluster.cluster.provision.provisioning import PARTITIONS_PER_SHARD
from qa_cluster.cluster.servers import model_program
from qa_cluster.errors import ModelError
from qa_cluster.evaluation.feedback_export import examples_of, squad_of
from qa_cluster.keys import SentenceRef, partition_of
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, Manifest
from qa_cluster.reading.readings import parse_readings
from qa_cluster.types import Feedback, Hit
from tests.harness.commands import run_here
from tests.harness.processes import descendants
from tests.harness.system import PATIENT, UNHURRIED

READER = bundled_reader()
pytestmark = [
    pytest.mark.skipif(not (READER / MODEL_FILE).is_file(), reason=f"there is no reader in {READER}"),
    pytest.mark.timeout(300),
]

QA = [sys.executable, "-m", "qa_cluster.cluster.cli"]
CLUSTER = {"QA_SHARDS": "2", **UNHURRIED}
FACTS = {
    "Ada": "Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine that would have run it. "
    "The first compiler came a century later.",
    "Nile": "The Nile flows north through Egypt. It ends in the Mediterranean Sea.",
    "Rome": "Rome is the capital of Italy. About three million people live in Rome.",
}
FEEDBACK = [
    Feedback("Who wrote the first program?", "right", "Ada", "Ada Lovelace", FACTS["Ada"]),
    Feedback("Who designed the moon?", "wrong", "Ada", "Charles Babbage", FACTS["Ada"]),
    Feedback(
        "Which river flows north?", "better", "Ada", "Ada Lovelace", FACTS["Ada"],
        better_document_id="Nile", better_answer="Nile", better_context=FACTS["Nile"],
    ),
]  # fmt: skip
Refused = Callable[..., tuple[int, str]]
ASKED = [
    ("Ada", "Who wrote the first program?", "Ada Lovelace"),
    ("Ada", "When was the first program written?", "1843"),
    ("Ada", "Who designed the engine?", "Charles Babbage"),
    ("Nile", "Where does the Nile flow north?", "Egypt"),
    ("Rome", "What is the capital of Italy?", "Rome"),
    ("Rome", "How many people live in Rome?", "three million"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    articles = []
    for title, context in FACTS.items():
        qas = [
            {"id": question, "question": question, "answers": [{"text": text, "answer_start": context.index(text)}]}
            for document, question, text in ASKED
            if document == title
        ]
        articles.append({"title": title, "paragraphs": [{"context": context, "qas": qas}]})
    path = tmp_path_factory.mktemp("questions") / "facts.json"
    path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    return path


def run(folder: Path, *arguments: str, code: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, but `eval` in a new one, because a shared process would change its figures."""
    given = {"QA_WORKER_THREADS": "1", **CLUSTER, "TMPDIR": str(folder), "NO_COLOR": "1", **settings}
    if arguments[0] != "eval":
        done = run_here(arguments, folder, given)
    else:
        done = subprocess.run(
            [*QA, *arguments],
            cwd=folder,
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the command and of its temporary files. Afterwards, no temporary file may remain."""
    yield tmp_path
    assert [entry.name for entry in tmp_path.glob("qa-eval-*")] == []


def test_all_parts_of_a_small_file(folder: Path, file: Path) -> None:
    done = run(folder, "eval", str(file), "--json", "--out", "figures.json")
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["questions"], report["unanswerable"], report["documents"]) == (6, 0, 3)
    assert (report["questions_cut"], report["context_tokens"]) == (
        0,
        Manifest.load(READER / MANIFEST_FILE).context_tokens,
    )
    given = report["context_given"]
    assert given["f1"] >= 0.8
    assert given["figures"]["f1"]["low"] <= given["f1"] <= given["figures"]["f1"]["high"]
    assert report["ranking"]["sentences"] == 7
    assert report["ranking"]["recall"]["8"]["value"] == 1.0
    assert report["ranking"]["by_type"]["who"]["questions"] == 2
    everything, waves = report["system"]["runs"]
    assert everything["name"] == "all 8"
    assert everything["f1"]["value"] >= 0.8
    assert everything["by_type"]["how many"]["questions"] == 1
    assert waves["sentences_read"]["value"] <= everything["sentences_read"]["value"] <= 7
    [minus] = report["system"]["differences"]
    assert (minus["of"], minus["minus"]) == ("in waves", "all 8")
    assert minus["f1"]["value"] == pytest.approx(waves["f1"]["value"] - everything["f1"]["value"])
    written = json.loads((folder / "figures.json").read_text())
    answers = written.pop("answers")
    assert written == report
    assert set(answers) == {"context given", "all 8", "in waves"}
    assert [row["question"] for row in answers["all 8"]] == [question for _, question, _ in ASKED]
    assert sum(row["f1"] for row in answers["all 8"]) / 6 == pytest.approx(everything["f1"]["value"], abs=1e-3)


def test_a_running_cluster_is_measured_and_not_changed(folder: Path, file: Path, tmp_path_factory: Any) -> None:
    missing = "run `qa-cluster ingest"
    run(folder, "up", "--no-password", QA_CONTEXT_TOKENS="64")
    try:
        assert missing in run(folder, "eval", str(file), "--running", "--no-context", code=3).stderr
        run(folder, "ingest", str(file))
        table = run(folder, "eval", str(file), "--running", "--no-context", "--limit", "3").stdout
        assert "3 questions, 3 documents" in table
        assert "The whole system, with at most 8 sentences read" in table
        assert "Recall: a sentence with the answer is among the first of 7 sentences" in table
        report = json.loads(
            run(folder, "eval", str(file), "--running", "--no-context", "--no-ranking", "--json").stdout
        )
        assert set(report) & {"context_given", "ranking", "system"} == {"system"}
        assert report["context_tokens"] == 64  # the context budget of the cluster, not of the settings
        [shard, *_] = json.loads(run(folder, "status", "--json").stdout)["shards"]
        check_that_waves_do_not_change_answers(f"redis://{shard['address']}")
        with ClusterClient(replace(PATIENT, cluster_url=f"redis://{shard['address']}")) as client:
            for each in FEEDBACK:
                client.send_feedback(each)
        measure_plain_questions(folder)
        changed = tmp_path_factory.mktemp("changed") / file.name
        text = file.read_text().replace("Babbage", "Cabbage").replace("Who designed the engine?", "Who " * 65 + "?")
        changed.write_text(text, encoding="utf-8")
        refused = run(folder, "eval", str(changed), "--running", "--no-context", code=3).stderr
        assert missing in refused and "1 question cut to 64 tokens" in refused
        measure_feedback(folder)
    finally:
        run(folder, "down")


def measure_plain_questions(folder: Path) -> None:
    """Check the figures of plain questions on the running cluster, whose documents also come from texts."""
    write_plain_questions(folder)
    run(folder, "ingest", "texts/Ada.txt", "texts/Nile.txt")
    done = run(folder, "eval", "nine.jsonl", "--running")
    assert "9 questions, 1 without an answer, on 5 documents" in done.stdout
    assert "right in the first three" in done.stdout
    assert "the cluster lacks 1 document that questions name; the first is 'Rome.txt'" in done.stderr


def measure_feedback(folder: Path) -> None:
    """Export the feedback of the running cluster, and check its figures."""
    for name in ("feedback.json", "feedback.jsonl"):
        assert "4 examples" in run(folder, "questions", "--export", name).stdout
    assert json.loads((folder / "feedback.json").read_text()) == squad_of(examples_of(FEEDBACK))
    run(folder, "ingest", "feedback.json")
    report: dict[str, Any] = json.loads(run(folder, "eval", "feedback.json", "--running", "--json").stdout)
    assert (report["questions"], report["unanswerable"], report["documents"]) == (4, 2, 2)
    assert [one["name"] for one in report["system"]["runs"]] == ["all 8", "in waves"]
    lines = run(folder, "eval", "feedback.jsonl", "--no-ranking", "--no-system", "--json").stdout
    assert json.loads(lines)["context_given"]["f1"] == report["context_given"]["f1"]


def write_plain_questions(folder: Path) -> None:
    """Write the texts, and a file with nine plain questions about them."""
    (folder / "texts").mkdir()
    for title, text in FACTS.items():
        (folder / "texts" / f"{title}.txt").write_text(text, encoding="utf-8")
    rows: list[dict[str, Any]] = [
        {"question": question, "answers": [answer], "document": f"{title}.txt", "style": "full"}
        for title, question, answer in ASKED
    ]
    rows.append({"question": "Where does the Nile flow north?", "pattern": r"\bEgypt$", "style": "again"})
    rows.append({"question": "Who wrote the first program?", "answers": ["Ada Lovelace"], "document": "Rome.txt"})
    rows.append({"question": "Which colour has the moon of Jupiter?", "answers": []})
    (folder / "nine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_plain_questions_are_measured_on_a_folder_and_fit_a_reader(folder: Path) -> None:
    write_plain_questions(folder)
    (folder / "plain.jsonl").write_text((folder / "nine.jsonl").read_text() * 7)  # enough questions for a fit
    shutil.copytree(READER, folder / "fitted")
    done = run(
        folder,
        *("eval", "plain.jsonl", "--documents", "texts", "--by", "style", "--json", "--out", "plain.json"),
        *("--reader", "fitted", "--fit"),
    )
    report: dict[str, Any] = json.loads(done.stdout)
    figures = report["plain"]["figures"]
    assert (report["documents"], figures["questions"], figures["without_answer"]) == (3, 63, 7)
    before, after = (Manifest.load(path / MANIFEST_FILE) for path in (READER, folder / "fitted"))
    assert asdict(after.calibration) == report["fit"]["calibration"] != asdict(before.calibration)
    assert after == replace(
        before,
        calibration=after.calibration,
        calibration_error=report["fit"]["error"],
        no_answer_threshold=report["fit"]["no_answer_threshold"],
    )
    assert report["missing_documents"] == 0
    got = {
        (row["question"], number): row["right"]
        for number, row in enumerate(json.loads((folder / "plain.json").read_text())["answers"]["plain"])
    }
    assert got["Where does the Nile flow north?", 6], "an answer that matches the pattern counts as right"
    assert not got["Who wrote the first program?", 7], "an answer from another document counts as wrong"
    assert got["Which colour has the moon of Jupiter?", 8], "without an answer in the documents, no answer is right"
    assert figures["right_first"]["value"] == pytest.approx(sum(list(got.values())[:8]) / 8)
    assert figures["right_first"]["value"] >= 0.6
    assert set(report["plain"]["by"]["style"]) == {"full", "again", ""}
    assert report["plain"]["cost"]["milliseconds"]["p95"] > 0


def _sentence_key(hit: Hit, partitions: int) -> str:
    tag = partition_of(hit.document_id, partitions)
    return str(SentenceRef(hit.document_id, tag, int(hit.passage_id.rpartition(":")[2])))


def check_that_waves_do_not_change_answers(url: str) -> None:
    """Check that without waves, the answer equals the best of separate readings of each candidate."""
    settings = replace(PATIENT, cluster_url=url)
    manifest = Manifest.load(READER / MANIFEST_FILE)
    with ExitStack() as stack:
        client = stack.enter_context(ClusterClient(settings))
        shards = [shard for _, shard in stack.enter_context(shards_of(settings, url))]
        candidates, most = 0, settings.retriever_k
        for _, question, _ in ASKED:
            result = client.ask(question, waves=False, cache="off", top_k=1, no_answer=False, retriever="words")
            ranking = client.search(question, top_k=most, retriever="words")
            names = [_sentence_key(hit, PARTITIONS_PER_SHARD * len(shards)) for hit in ranking.hits]
            assert result.usage.sentences_read == len(names)
            candidates = max(candidates, len(names))
            readings = []
            for name in reversed(names):
                replies = [command(shard, "RG.TRIGGER", "qa.read", "", question, name) for shard in shards]
                # other shards reply with MovedError
                [here] = [reply for [reply] in replies if isinstance(reply, bytes)]
                readings += [found for found in parse_readings([name], [here], "") if found is not None]
            ranked = {name: hit.score for name, hit in zip(names, ranking.hits, strict=True)}
            chosen = choose(orders(readings, ranked, manifest.rank_weight), manifest.calibration)
            best = chosen.choices[0].best
            assert result.best is not None
            assert result.best.answer == best.text
            assert result.best.score == pytest.approx(chosen.choices[0].probability, abs=1e-3)
            assert (result.best.start, result.best.logit) == (best.span.start, pytest.approx(best.span.score, abs=1e-3))
        assert candidates > 1


@pytest.mark.parametrize(
    ("part", "number", "begun"),
    [
        ("--no-context", signal.SIGINT, lambda pid, folder: list(folder.glob("qa-eval-*/node-*/server.pid"))),
        ("--no-system", signal.SIGTERM, lambda pid, folder: [c for c in descendants(pid).values() if "evaluate" in c]),
    ],
    ids=["Ctrl-C while servers start", "SIGTERM while the reader reads"],
)
def test_a_signal_ends_servers_programs_and_files(
    folder: Path, file: Path, part: str, number: signal.Signals, begun: Callable[[int, Path], list[Any]]
) -> None:
    others = [] if part == "--no-context" else ["--no-ranking"]
    program = subprocess.Popen(
        [*QA, "eval", str(file), part, *others],
        cwd=folder,
        env={**os.environ, **CLUSTER, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not begun(program.pid, folder):
        assert time.monotonic() < deadline, "the command has started no process"
        assert program.poll() is None
        time.sleep(0.02)
    program.send_signal(number)
    # returns after all processes of the command have closed the pipes
    output, errors = program.communicate(timeout=120)
    assert program.returncode == 130, output + errors
    assert "Traceback" not in errors


def test_a_signal_during_the_questions_causes_no_traceback(folder: Path) -> None:
    qas = [{"question": f"Who wrote program {i}?", "answers": [{"text": "Ada"}]} for i in range(5000)]
    squad = {"data": [{"paragraphs": [{"context": "Ada wrote programs.", "qas": qas}]}]}
    (folder / "many.json").write_text(json.dumps(squad), encoding="utf-8")
    terminal, end = pty.openpty()
    program = subprocess.Popen(
        [*QA, "eval", "many.json", "--no-context", "--no-ranking"],
        cwd=folder,
        env={**os.environ, **CLUSTER, "TMPDIR": str(folder), "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=end,
    )
    os.close(end)
    try:
        errors = drain(terminal, until=b"asking")
        program.send_signal(signal.SIGINT)
        errors += drain(terminal)
        assert program.wait(120) == 130, errors
    finally:
        program.kill()
        os.close(terminal)
    assert b"asking" in errors
    assert b"Traceback" not in errors


@pytest.fixture
def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """A function that runs the command in this process, and returns its exit code and its errors."""

    def run_here(*arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["qa-cluster", "eval", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err

    return run_here


@pytest.mark.parametrize(
    "case",
    [
        (["none.json"], 2, "does not exist"),
        (["facts.json", "--no-context", "--no-ranking", "--no-system"], 2, "nothing to measure"),
        (["facts.json", "--limit", "0"], 2, "--limit"),
        (["facts.json", "--out", "nowhere/figures.json"], 2, "cannot be written"),
        (["broken.json"], 1, "question 1"),
        (["elsewhere.json"], 1, "no question has its answer in its context"),
        (["lines.jsonl", "--running"], 2, "cannot be ingested into a running cluster"),
        (["facts.json", "--running", "--context-tokens", "64"], 2, "has no effect on a running cluster"),
        (["facts.json", "--context-tokens", "9999"], 2, "context tokens must be from 0"),
        (["facts.json", "--running"], 3, "qa-cluster up"),
        (["facts.json", "--reader", "empty"], 1, "manifest.json"),
        (["facts.json", "--documents", "empty"], 2, "only for files of plain questions"),
        (["facts.json", "--by", "kind"], 2, "only for files of plain questions"),
        (["plain.jsonl"], 2, "--documents"),
        (["plain.jsonl", "--documents", "empty", "--running"], 2, "not both"),
        (["plain.jsonl", "--documents", "empty", "--fit"], 2, "add --reader"),
        (["plain.jsonl", "--running", "--reader", "empty", "--fit"], 2, "leave out --running"),
        (["facts.json", "--fit"], 2, "only for files of plain questions"),
        (["plain.jsonl", "--documents", "empty", "--no-ranking"], 2, "leave out"),
        (["plain.jsonl", "--documents", "empty", "--by", "colour"], 1, "no question in plain.jsonl has the field"),
        (["mixed.jsonl", "--documents", "empty"], 1, "line 2 must have either answers or pattern"),
    ],
)
def test_invalid_input_is_refused_before_the_work(
    folder: Path, file: Path, refused: Refused, case: tuple[list[str], int, str]
) -> None:
    arguments, code, message = case
    (folder / "facts.json").write_text(file.read_text(), encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "lines.jsonl").write_text(
        json.dumps({"question": "Who?", "context": "Ada did.", "answer": "Ada", "answer_start": 0}), encoding="utf-8"
    )
    (folder / "broken.json").write_text(
        json.dumps({"data": [{"paragraphs": [{"context": "Ada did.", "qas": [{"answers": []}]}]}]}), encoding="utf-8"
    )
    (folder / "elsewhere.json").write_text(one_question("Who?", "Babbage"), encoding="utf-8")
    plain = json.dumps({"question": "Who?", "answers": ["Ada"], "kind": "who"}) + "\n"
    (folder / "plain.jsonl").write_text(plain, encoding="utf-8")
    (folder / "mixed.jsonl").write_text(plain + json.dumps({"question": "Why?"}), encoding="utf-8")
    found, errors = refused(*arguments)
    assert found == code
    assert message in " ".join(errors.replace("│", " ").split())
    assert "starting" not in errors


def one_question(question: str, answer: str) -> str:
    qas = [{"question": question, "answers": [{"text": answer}]}]
    return json.dumps({"data": [{"paragraphs": [{"context": "Ada did.", "qas": qas}]}]})


def test_a_model_program_that_fails_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"evaluate` failed, see above \(exit 1\)"):
        model_program.result_of("evaluate", "none", "none.json")
    assert "none" in capfd.readouterr().err


def test_on_a_terminal_the_result_of_a_model_program_is_not_mixed_with_progress(file: Path) -> None:
    """The terminal also shows progress bars, which must not mix with the result."""
    terminal, end = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "qa_cluster.models", "evaluate", str(READER), str(file), "--limit", "1"],
        env={**os.environ, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=end,
    )
    os.close(end)
    drawn = threading.Thread(target=drain, args=(terminal,))
    drawn.start()
    output, _ = program.communicate(timeout=120)
    drawn.join()
    os.close(terminal)
    assert program.returncode == 0
    assert json.loads(output)["questions"] == 1


def drain(terminal: int, until: bytes = b"nothing of the kind") -> bytes:
    """Read the output to a terminal up to `until`, or until no process has the terminal open."""
    found = b""
    with contextlib.suppress(OSError):  # the last read fails with EIO
        while until not in found:
            found += os.read(terminal, 65536)
    return found
