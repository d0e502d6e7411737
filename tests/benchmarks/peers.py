"""`/qa` of qa-cluster compared with a strong peer that has the same two models, passages and questions.

The peer is a mosec server: one process embeds questions and ranks passages, one reads the best 8 of each question. Its
settings are the fastest of `SETTINGS` on this machine. Two servers with one process batch as other software does
(`baselines/batching_server.py`). All servers run during the whole scenario, but only one at a time is asked.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from qa_cluster.evaluation.examples import spread
from qa_cluster.evaluation.scoring import exact_match, f1
from tests.harness.system import System

from .baselines.peer_corpus import write_passages
from .corpus import Corpus, with_rare_words
from .loadgen import Load
from .peer_servers import SETTINGS, PeerSettings, Server, best_settings, mosec_peer
from .report import Report
from .service import PATIENT, Questions, print_loads
from .systems import baseline

SIZES = {1: 60, 8: 120, 64: 256}
WARM = 32
JUDGED = 200
MOSEC = "mosec"
NAMES = {
    "fast": "qa-cluster, plan fast",
    "balanced": "qa-cluster, plan balanced",
    "token-budget": "one process, batching as in text-embeddings-inference",
    "fixed-size": "one process, batching as in service-streamer",
    MOSEC: "mosec, one process per model",
}
PLANS = ("fast", "balanced")
POLICIES = ("token-budget", "fixed-size")


def run(
    report: Report,
    cluster: System,
    corpus: Corpus,
    rounds: int,
    *,
    sizes: Mapping[int, int] = SIZES,
    settings: Sequence[PeerSettings] = SETTINGS,
    judged: int = JUDGED,
) -> None:
    """Choose the settings of the peer, measure all servers in turn, and judge their answers.

    Args:
        sizes: the questions of a round by the number of clients.
        settings: the settings from which the best are chosen.
        judged: the limit of questions that are judged.
    """
    with tempfile.TemporaryDirectory(prefix="qa-peers-") as name, ExitStack() as stack:
        folder, servers = Path(name), {}
        write_passages(folder, corpus.documents, threads=1)
        for policy in POLICIES:
            environment = {"QA_BENCH_PASSAGES": name, "QA_BENCH_BATCHING": policy}
            app = "tests.benchmarks.baselines.batching_server:app"
            servers[policy] = Server(stack.enter_context(baseline(app, environment, folder)))
        if find_spec(MOSEC):
            chosen = best_settings(report, folder, corpus.questions, sizes, settings)
            servers[MOSEC] = stack.enter_context(mosec_peer(folder, chosen))
        cluster.start_service(**PATIENT)
        stack.callback(cluster.stop_service)
        servers |= {plan: Server(cluster.port, f"&plan={plan}") for plan in PLANS}
        names = {known: shown for known, shown in NAMES.items() if known in servers}
        asked = {"as in the corpus": {q: q for q in corpus.questions}, "with a rare word": with_rare_words(corpus)}
        for kind, questions in asked.items():
            loads = _measured(servers, replace(corpus, questions=[*questions.values()]), rounds, sizes)
            print_loads(report, loads, f"New questions {kind}, over HTTP", names)
        rows = [
            [f"{names[name]}: {kind}", *_judged(servers[name], questions, corpus.answers, judged)]
            for kind, questions in asked.items()
            for name in names
        ]
        report.table(
            "Answers to the questions",
            ["", "questions", "right first", "F1", "no answer", "passages read"],
            rows,
            "right first: the first answer is an accepted one, without articles and punctuation; F1: of its words",
        )


def _measured(
    servers: Mapping[str, Server], corpus: Corpus, rounds: int, sizes: Mapping[int, int]
) -> dict[tuple[str, int], list[Load]]:
    """Ask all servers in turn, in rounds. Only qa-cluster caches answers, so each of its plans gets new questions."""
    left = Questions(corpus, rounds * len(PLANS) * sum(sizes.values()) + len(servers) * WARM)
    for server in servers.values():
        server.load(left.take(WARM), min(8, max(sizes)))
    loads: dict[tuple[str, int], list[Load]] = {}
    for _ in range(rounds):
        for clients, count in sizes.items():
            given = {plan: left.take(count) for plan in PLANS}
            for name, server in servers.items():
                loads.setdefault((name, clients), []).append(server.load(given.get(name, given["balanced"]), clients))
    return loads


def _judged(
    server: Server, questions: Mapping[str, str], accepted: Mapping[str, tuple[str, ...]], judged: int
) -> list[str]:
    """Return the cells of a row: how good the first answers are, and how many passages were read."""
    chosen = spread([question for question in questions if question in accepted] or [*questions], judged)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(server.ask, [questions[question] for question in chosen]))
    first = [reply["answers"][0]["answer"] if reply["answers"] else "" for reply in replies]
    quality = ["", ""]
    if accepted:
        pairs = [(answer, accepted[question]) for answer, question in zip(first, chosen, strict=True)]
        quality = [f"{statistics.fmean(score(*pair) for pair in pairs):.3f}" for score in (exact_match, f1)]
    read = statistics.fmean(reply["usage"]["sentences_read"] for reply in replies)
    return [str(len(chosen)), *quality, f"{first.count('') / len(first):.3f}", f"{read:.1f}"]
