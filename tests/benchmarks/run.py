"""`make bench` measures every figure of the README, prints tables and saves them as JSON.

All figures of one table come from one run. The benchmarks have no limits that a run could fail.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from qa_cluster.reading.manifest import Manifest
from tests.harness.polling import eventually
from tests.harness.programs import find_binary
from tests.harness.system import System

from . import engine, fairness, ingest, pauses, peers, service, shard_get
from .corpus import from_pydoc, from_squad
from .report import ROOT, Report, server_version

# scenarios of the shard engine only, without documents; only the pauses also measure question answering
ENGINE = {"engine": engine.run, "pauses": pauses.run}
SCENARIOS = ("shard", "service", "peers", "fairness", *ENGINE)
# a scenario that needs a folder of documents
CORPUS = "corpus"


def arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """The options of the command line, and the parser that reports wrong options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*SCENARIOS, CORPUS]
    parser.add_argument(
        "scenarios", nargs="*", choices=[*known, []], default=[], metavar="SCENARIO", help=", ".join(known)
    )
    parser.add_argument("--documents", type=Path, help="folder of documents for the scenario corpus")
    parser.add_argument("--sentences", type=int, default=50_000, help="approximate number of sentences for corpus")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--data", type=Path, help="SQuAD-format file; default: the language reference of CPython")
    parser.add_argument("--checkpoint", type=Path, help="float32 checkpoint for the PyTorch baseline (optional)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results")
    options = parser.parse_args()
    if CORPUS in options.scenarios and options.documents is None:
        parser.error("corpus needs --documents: `python3 tests/yardstick/fetch.py FOLDER` fills a folder")
    return options, parser


def main() -> None:
    """Run the scenarios."""
    options, parser = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an ended run must stop its servers
    scenarios = set(options.scenarios or SCENARIOS)
    System.all_apart = True  # figures of commands include the start of their process
    binary = find_binary(options.server)
    if binary is None:
        parser.error(f"this machine has no {options.server} server")
    corpus = from_squad(options.data) if options.data else from_pydoc()
    model = Path(str(files("qa_cluster.models") / "default"))
    manifest = Manifest.load(model / "manifest.json")
    described = corpus.name if scenarios - {CORPUS} else f"text files of {options.documents.name}"
    report = Report(server_version(binary), described, f"{manifest.model_id}@{manifest.revision}, {manifest.precision}")
    if {"shard", "service", "peers"} & scenarios:
        with tempfile.TemporaryDirectory() as folder, System(binary, shards=options.shards) as cluster:
            cluster.cli("ingest", str(corpus.write_jsonl(Path(folder) / "corpus.jsonl")))
            eventually(lambda: cluster.total("qa_unembedded_documents") == 0, 600)
            if "shard" in scenarios:
                shard_get.run(report, cluster, corpus, model, options.rounds)
            if "service" in scenarios:
                service.run(report, cluster, corpus, options.checkpoint, options.rounds)
            if "peers" in scenarios:
                peers.run(report, cluster, corpus, options.rounds)
    if CORPUS in scenarios:
        with System(binary, shards=options.shards) as cluster:
            ingest.run(report, cluster, options.documents, options.sentences)
    if "fairness" in scenarios:
        fairness.run(report, binary, corpus, options.rounds)
    for name, measure in ENGINE.items():
        if name in scenarios:
            measure(report, binary, options.rounds)
    report.console.print(f"saved as {report.save(options.results)}")


if __name__ == "__main__":
    main()
