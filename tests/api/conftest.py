"""The scripted cluster for the tests of this folder."""

from tests.client.scripted_fixtures import cluster, shared_cluster

__all__ = ["cluster", "shared_cluster"]
