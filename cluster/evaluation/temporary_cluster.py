"""Provides a temporary cluster for an evaluation, and checks that a running cluster has the right reader."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.config import NO_ENCODER, Settings
from qa_cluster.errors import ConfigError
from qa_cluster.types import LoadedModel

from ..provision.preparing import prepare
from ..provision.provisioning import add_models, provision
from ..readers.reader_files import ReaderFiles
from ..servers.local import LocalCluster, start_servers, with_local_password
from ..servers.signals import ignore_signals, until_signal
from ..terminal import console


@contextmanager
def temporary_cluster(settings: Settings, reader: ReaderFiles) -> Iterator[Settings]:
    """Start a new cluster with this reader and no documents; yield the settings with its address.

    The cluster is stopped at the end of the `with` block.

    The cluster also has the encoder and the second reader that the settings name.
    """
    with until_signal(), tempfile.TemporaryDirectory(prefix="qa-eval-", ignore_cleanup_errors=True) as folder:
        settings = replace(settings, data_dir=Path(folder), cluster_url="", replicas=0, first_port=0)
        settings = with_local_password(settings)
        try:
            url = start_servers(settings, console.step, console.notice, tethered=True)
            provision(settings, url, reader, console.step)
            add_models(settings, url, console.step)
            yield replace(settings, cluster_url=url)
        finally:
            ignore_signals()
            LocalCluster(settings).down()


def make_vectors(settings: Settings) -> None:
    """Make the vectors of all documents of a temporary cluster, so that questions find the documents by their meaning.

    If the settings switch the encoder off, do nothing.
    """
    if settings.encoder != NO_ENCODER:
        with console.progress("preparing", None) as advance:
            prepare(settings, force=False, on_progress=advance)


def default_reader(settings: Settings) -> LoadedModel:
    """Return the default reader of the cluster. Raises ConfigError if the cluster has no default reader."""
    with ClusterClient(settings) as client:
        default = next((model for model in client.models() if model.default), None)
    if default is None:
        raise ConfigError("the cluster has no default reader: load one with `qa-cluster model load`")
    return default


def check_reader(settings: Settings, reader: ReaderFiles, folder: Path) -> int:
    """Raise ConfigError if the default reader of the cluster is not `reader`. Return the context budget of the
    default reader: the maximum tokens of a sentence with its neighbours.
    """
    default = default_reader(settings)
    if default.revision != reader.manifest.revision:
        raise ConfigError(
            f"the default reader of the cluster is {default.name}, but the reader in {str(folder)!r} is"
            f" {reader.manifest.name}: give the folder of the cluster's reader with --reader"
        )
    return default.context_tokens
