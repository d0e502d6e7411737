"""Starts servers for the conformance tests. It runs with the worker's Python instead of the clients' Python.

It prints one line of JSON, `{"ports": [..], "version": "..", "python": [3, 11], "torch": true}`, when every worker is
ready. When its standard input closes, it stops the servers and exits. So no server outlives the tests, even if they are
killed.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec

from tests.harness.clusters import ready_shards
from tests.harness.programs import find_binary
from tests.harness.workers import WORKER


def main() -> int:
    """Start the servers, print the line, wait for the end of the input, and stop the servers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", choices=("valkey", "redis"), required=True)
    parser.add_argument("--shards", type=int, choices=(1, 3), required=True)
    parser.add_argument("--packages", required=True, help="the folder with additional packages for the worker")
    arguments = parser.parse_args()
    binary = find_binary(arguments.server)
    if binary is None:
        print(json.dumps({"missing": f"no {arguments.server} server on this machine"}), flush=True)
        return 0
    worker = f'env "PYTHONPATH={arguments.packages}" {WORKER}'
    with ready_shards(binary, arguments.shards, worker=worker) as nodes:
        info = nodes[0].info("server")
        told = {
            "ports": [node.port for node in nodes],
            "version": str(info.get("valkey_version") or info["redis_version"]),
            "python": sys.version_info[:2],
            "torch": find_spec("torch") is not None,
        }
        print(json.dumps(told), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
