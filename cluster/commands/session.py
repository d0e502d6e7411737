"""What the commands of the command line share: the settings of this run and the cluster they speak of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from qa_cluster.config import Loaded, Settings, load

from ..servers.local import LocalCluster


@dataclass
class Session:
    """The options before the command: the settings file and settings given as flags."""

    config: str | None = None
    flags: dict[str, str] = field(default_factory=dict)

    def load(self, **flags: object) -> Loaded:
        """All settings; `flags` are those of the command itself, None where not given."""
        given = {name: str(value) for name, value in flags.items() if value is not None}
        return load(self.config, flags=self.flags | given)


def cluster_url(settings: Settings) -> str:
    """The cluster that commands talk to: the one of the settings, else the local one; NotRunning if it does not run."""
    return settings.cluster_url or LocalCluster(settings).url()


def with_cluster(settings: Settings) -> Settings:
    """The settings with the address of the cluster filled in."""
    return replace(settings, cluster_url=cluster_url(settings))
