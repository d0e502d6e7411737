"""`make bench`: every figure of the README, printed as tables and kept as JSON.

All figures of one table come from one run. Nothing here passes or fails: it measures.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from qa_cluster.reading.manifest import Manifest
from tests.harness.certificates import without_tls
from tests.harness.programs import find_binary
from tests.harness.system import System

from . import (
    blocking,
    engine,
    events,
    fairness,
    functions,
    ingest,
    pauses,
    reader_latency,
    service,
    shard_get,
    tls,
)
from .corpus import from_pydoc, from_squad
from .report import ROOT, Report, server_version

# scenarios of the shard engine alone: no documents, and no question answering except for the pauses
ENGINE = {"engine": engine.run, "functions": functions.run, "events": events.run, "pauses": pauses.run}
SCENARIOS = ("shard", "service", "reader", "blocking", "fairness", *ENGINE)
# scenarios that run only when they are named: one needs a folder of documents, one a server with TLS
NAMED = ("corpus", "tls")


def arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """The options of the command line, and the parser that reports wrong options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*SCENARIOS, *NAMED]
    parser.add_argument(
        "scenarios", nargs="*", choices=[*known, []], default=[], metavar="SCENARIO", help=", ".join(known)
    )
    parser.add_argument("--documents", type=Path, help="folder of documents for the scenario corpus")
    parser.add_argument("--sentences", type=int, default=50_000, help="about how many of them corpus takes")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--data", type=Path, help="SQuAD-format file; default: the language reference of CPython")
    parser.add_argument("--checkpoint", type=Path, help="float32 checkpoint for the PyTorch baseline; none: left out")
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        help="folder of an exported reader for the scenario reader, may be repeated; default: the bundled one, and with"
        " --checkpoint those that are exported from it for the run",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results")
    options = parser.parse_args()
    if "corpus" in options.scenarios and options.documents is None:
        parser.error("corpus needs --documents: `python3 tests/yardstick/fetch.py FOLDER` fills a folder")
    return options, parser


def main() -> None:
    """Run the scenarios."""
    options, parser = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    scenarios = set(options.scenarios or SCENARIOS)
    System.all_apart = True  # the time of a command is measured with its start
    binary = server_program(options, scenarios, parser)
    corpus = from_squad(options.data) if options.data else from_pydoc()
    model = Path(str(files("qa_cluster.models") / "default"))
    manifest = Manifest.load(model / "manifest.json")
    described = corpus.name if scenarios - {"corpus"} else f"text files of {options.documents.name}"
    report = Report(server_version(binary), described, f"{manifest.model_id}@{manifest.revision}, {manifest.precision}")
    if {"shard", "service"} & scenarios:
        with tempfile.TemporaryDirectory() as folder, System(binary, shards=options.shards) as cluster:
            cluster.cli("ingest", str(corpus.write_jsonl(Path(folder) / "corpus.jsonl")))
            if "shard" in scenarios:
                shard_get.run(report, cluster, corpus, model, options.rounds)
            if "service" in scenarios:
                service.run(report, cluster, corpus, options.checkpoint, options.rounds)
    if "corpus" in scenarios:
        with System(binary, shards=options.shards) as cluster:
            ingest.run(report, cluster, options.documents, options.sentences)
    if "reader" in scenarios:
        with reader_latency.readers(options.model, model, options.checkpoint) as models:
            reader_latency.run(report, corpus, models, options.checkpoint, options.rounds)
    if "blocking" in scenarios:
        blocking.run(report, binary, corpus, options.rounds)
    if "fairness" in scenarios:
        fairness.run(report, binary, corpus, options.rounds)
    if "tls" in scenarios:
        tls.run(report, binary, corpus, options.rounds, shards=options.shards)
    for name, measure in ENGINE.items():
        if name in scenarios:
            measure(report, binary, options.rounds)
    report.console.print(f"kept in {report.save(options.results)}")


def server_program(options: argparse.Namespace, scenarios: set[str], parser: argparse.ArgumentParser) -> Path:
    """The server program to measure; for TLS another one, if the chosen program was built without TLS."""
    found = find_binary(options.server)
    if "tls" in scenarios and (found is None or without_tls(found)):
        found = find_binary("redis") or found
    if found is None:
        parser.error(f"there is no {options.server} server on this machine")
    if "tls" in scenarios and (reason := without_tls(found)):
        parser.error(f"tls cannot be measured: {reason}")
    return found


if __name__ == "__main__":
    main()
