"""The cluster that an evaluation asks: one of its own, which ends with it, or the running one with the same reader."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError

from ..provision.provisioning import provision
from ..readers.reader_files import ReaderFiles
from ..servers.local import LocalCluster, start_servers, with_usual_password
from ..servers.signals import ignore_signals, until_signal
from ..terminal import console


@contextmanager
def temporary_cluster(settings: Settings, reader: ReaderFiles) -> Iterator[Settings]:
    """The settings with the address of a new cluster that has the reader and no documents, until the block ends."""
    with until_signal(), tempfile.TemporaryDirectory(prefix="qa-eval-", ignore_cleanup_errors=True) as folder:
        settings = replace(settings, data_dir=Path(folder), cluster_url="", replicas=0, first_port=0)
        settings = with_usual_password(settings)
        try:
            url = start_servers(settings, console.step, console.notice, tethered=True)
            provision(settings, url, reader, console.step)
            yield replace(settings, cluster_url=url)
        finally:
            ignore_signals()
            LocalCluster(settings).down()


def need_reader(settings: Settings, reader: ReaderFiles, folder: Path) -> int:
    """Raise ConfigError unless the cluster reads with this reader; return the context budget it reads with."""
    with ClusterClient(settings) as client:
        default = next((model for model in client.models() if model.default), None)
    if default is None:
        raise ConfigError("the cluster has no reader: give it one with `qa-cluster model load`")
    if default.revision != reader.manifest.revision:
        raise ConfigError(
            f"the cluster reads with {default.name}, and the reader in {str(folder)!r}"
            f" is {reader.manifest.name}: name the folder of the cluster's reader with --reader"
        )
    return default.context_tokens
