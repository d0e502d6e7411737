"""The scripted cluster for the tests of this folder."""

from tests.client.scripted_fixtures import cluster, run, runner, shared_cluster

__all__ = ["cluster", "run", "runner", "shared_cluster"]
