"""Puts only the modules that the clients of the REST service import, and the adapters, into qa-cluster-client.

All other settings of this distribution are in pyproject.toml.
"""

from __future__ import annotations

from setuptools import setup
from setuptools.command.build_py import build_py

# The distribution has these modules, and the adapters of `integrations/` that pyproject.toml names.
# `tests/contract/test_client_distribution.py` compares the list with what `import qa_cluster.client` loads.
MODULES = frozenset(
    {
        "qa_cluster",
        "qa_cluster.client",
        "qa_cluster.clients",
        "qa_cluster.clients.async_rest_client",
        "qa_cluster.clients.rest_calls",
        "qa_cluster.clients.rest_client",
        "qa_cluster.clients.retry_policy",
        "qa_cluster.clients.submitting",
        "qa_cluster.documents",
        "qa_cluster.documents.metadata_change",
        "qa_cluster.documents.metadata_limits",
        "qa_cluster.documents.source_map",
        "qa_cluster.documents.unicode",
        "qa_cluster.errors",
        "qa_cluster.integrations",
        "qa_cluster.keys",
        "qa_cluster.options",
        "qa_cluster.options.documents",
        "qa_cluster.options.questions",
        "qa_cluster.ranking",
        "qa_cluster.ranking.filters",
        "qa_cluster.ranking.meaning",
        "qa_cluster.security",
        "qa_cluster.security.tls",
        "qa_cluster.types",
    }
)
ADAPTERS = ("qa_cluster.integrations.", "haystack_integrations.")


class BuildClient(build_py):
    """Copies only the modules of the clients and the adapters."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return the modules of a package that belong to the clients or to an adapter."""
        found = super().find_package_modules(package, package_dir)
        return [row for row in found if f"{package}.".startswith(ADAPTERS) or _name(row[0], row[1]) in MODULES]


def _name(package: str, module: str) -> str:
    return package if module == "__init__" else f"{package}.{module}"


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildClient})
