"""Translates settings into lines of the server configuration, which also load the native module and its worker."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from qa_cluster.shard_functions import ANSWER_KEYS_SETTING, EMBEDDING_SETTING

from .native import find_module
from .processes import python_module

WORKER_MODULE = "qa_cluster.gears.worker"
ADOPT_SETTING = "qa.adopt-registrations"
MODEL_CACHE_SETTING = "qa.model-cache-dir"
_MODEL_CACHE_FOLDER = "compiled-models"
_OFF = "off"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOG_LEVELS = {"debug": "verbose", "info": "notice", "warning": "warning", "error": "warning"}


def server_options(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the configuration lines that every server gets, even a server without the module. Each line is a name and
    a value.
    """
    return (
        ("loglevel", _LOG_LEVELS[settings.log_level]),
        ("maxmemory", f"{settings.maxmemory_mb}mb"),
        ("maxmemory-policy", "volatile-lru"),
    )


def module_options(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the configuration lines that load the module and configure its worker. In a checkout, first build the
    module. Raises ConfigError if a setting is invalid, or if the module cannot be found or built.
    """
    module = find_module(settings.module_path)
    worker = python_module(WORKER_MODULE, python=settings.worker_python or sys.executable)
    key_file = Path(settings.bus_key_file).expanduser().resolve() if settings.bus_key_file else None
    if key_file is not None and not key_file.is_file():
        raise ConfigError(f"setting 'bus_key_file' is {settings.bus_key_file!r}, which is not a file")
    return (
        ("loadmodule", str(module)),
        *([("qa.bus-key-file", str(key_file))] if key_file is not None else []),
        ("qa.worker-command", " ".join(map(_word, worker))),
        *([("qa.worker-environment", _names(settings))] if settings.worker_environment else []),
        *_model_cache(settings),
        (ANSWER_KEYS_SETTING, settings.answer_keys),
        ("qa.whole-answers-bytes", str(settings.whole_answers_mb << 20)),
        (EMBEDDING_SETTING, str(int(settings.background_embedding))),
        ("qa.worker-threads", str(settings.worker_threads or _threads_per_shard(settings))),
        ("qa.inference-workers", str(settings.inference_workers)),
        ("qa.max-batch-tokens", str(settings.max_batch_tokens)),
        ("qa.max-queue", str(settings.module_queue_jobs)),
        ("qa.worker-ahead", str(settings.worker_ahead)),
        ("qa.shared-ahead", str(settings.shared_ahead)),
        *([("qa.bulk-users", settings.bulk_users)] if settings.bulk_users else []),
        *([(ADOPT_SETTING, "yes")] if settings.adopt_registrations else []),
    )


def model_cache_default(settings: Settings, data_dir: Path) -> tuple[tuple[str, str], ...]:
    """Return the configuration line for the folder of compiled models in `data_dir`; no line if the settings name a
    folder.
    """
    return () if settings.model_cache_dir else ((MODEL_CACHE_SETTING, str(data_dir / _MODEL_CACHE_FOLDER)),)


def _model_cache(settings: Settings) -> tuple[tuple[str, str], ...]:
    if settings.model_cache_dir in ("", _OFF):
        return ()
    return ((MODEL_CACHE_SETTING, str(Path(settings.model_cache_dir).expanduser().absolute())),)


def _names(settings: Settings) -> str:
    """Return the names in the setting `worker_environment`, separated by commas, as the module expects them. Raises
    ConfigError for an invalid name.
    """
    names = [name.strip() for name in settings.worker_environment.split(",")]
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(
                f"setting 'worker_environment' is {settings.worker_environment!r}, but {name!r} is not the name of an"
                " environment variable: list names, separated by commas"
            )
    return ",".join(names)


def _threads_per_shard(settings: Settings) -> int:
    """Return the number of available processor cores divided by the number of shards, at least 1. Replicas do not
    count, because they answer no questions.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // settings.shards)


def _word(text: str) -> str:
    """Quote one word of a worker command (docs/worker-protocol.md, section 1).

    >>> _word("/opt/my python")
    '"/opt/my python"'
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if " " in escaped else escaped
