"""Names, times and limits of the functions that run in the shards' workers (`gears/functions`).

Services, clients and the set-up of a cluster use this module to register, call and configure these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# The id of the session whose script registers all functions. When the script runs again, the new session replaces the
# previous session.
SESSION = "qa-functions"

READ_TRIGGER = "qa.read"
PIPELINE_TRIGGER = "qa.pipeline"
EMBED_TRIGGER = "qa.embed"
READER_TRIGGER = "qa.reader"
MODELS_TRIGGER = "qa.models"
SENTENCES_TRIGGER = "qa.sentences"
PARTITIONS_TRIGGER = "qa.partitions"
# The key patterns that functions are registered for: texts to index, sentences without a document, files of readers,
# and the keys of answers. A client's read of a missing answer key runs a function.
TEXT_KEYS = "paragraphs:*"
LOOSE_SENTENCE_KEYS = "sentence:*"
READER_KEYS = "bert-qa:*"
ANSWER_KEYS = "bertqa*"
# All functions that qa-cluster registers, and the functions that every question needs.
FUNCTIONS = (
    *(TEXT_KEYS, LOOSE_SENTENCE_KEYS, READER_KEYS, ANSWER_KEYS),
    *(READ_TRIGGER, READER_TRIGGER, PIPELINE_TRIGGER, SENTENCES_TRIGGER, MODELS_TRIGGER),
    *(PARTITIONS_TRIGGER, EMBED_TRIGGER),
)
QUESTION_FUNCTIONS = (TEXT_KEYS, READ_TRIGGER)
# The shard's reply to a call of a function that is not registered.
NOT_REGISTERED = "subcommand not found"
# Argument of `qa.models` that adds the manifest of each reader to the reply.
WITH_MANIFESTS = "manifests"

# The limit of a question in code points, and the limit of `qa.pipeline` requests that a shard runs at the same time. A
# service may set lower limits, but no higher limits.
MAX_QUESTION_CHARS = 4096
MAX_PIPELINE_REQUESTS = 64
# The limit of sentences in one call of `qa.read`. A service sends 64 at most.
MAX_READ_SENTENCES = 256
# The limit of sentences in one ranking. The index of a partition returns at most this number of sentences, too.
MAX_RANK_COUNT = 1000

# The limit of sentences in one reply of `qa.sentences`. Reading 100 sentences blocks the shard for less than 1 ms.
MAX_SHOWN_SENTENCES = 100

# Option of the module (`RG.CONFIGSET`): the time in seconds after which a cached sentence answer expires.
SENTENCE_ANSWER_TTL_OPTION = "qa.sentence-answer-ttl-seconds"
SENTENCE_ANSWER_TTL_SECONDS = 86_400
# Option of the module: the memory limit of a partition's cached sentence answers, in MB.
SENTENCE_ANSWERS_OPTION = "qa.sentence-answers-mb"
SENTENCE_ANSWERS_MB = 64

# Setting of the module: whether workers make the vectors of documents in the background.
EMBEDDING_SETTING = "qa.background-embedding"

# Setting of the module: the form of the question in the keys of sentence answers.
ANSWER_KEYS_SETTING = "qa.answer-keys"
TEXT, DIGEST = "text", "digest"

# The time after which a shard retries a failed warm-up of a reader. By then, memory may be free.
WARM_AGAIN_SECONDS = 5.0


def missing_functions(registrations: Iterable[Any], wanted: Iterable[str] = FUNCTIONS) -> str:
    """Return a text that names the functions that a shard lacks and says what to do; empty if it lacks none.

    `registrations` is the shard's reply to ``RG.DUMPREGISTRATIONS``, from RESP2 or RESP3. `wanted` are the triggers
    and key patterns of the functions that the shard should have.

    >>> missing_functions([["RegistrationData", ["args", ["trigger", b"qa.read"]]]], ["qa.models", "qa.read"])
    'function qa.models is not registered: run `qa-cluster up`'
    """
    found = {name for row in registrations for name in _triggers(row)}
    if not (lacking := [name for name in wanted if name not in found]):
        return ""
    what = f"function {lacking[0]} is" if len(lacking) == 1 else f"functions {', '.join(lacking)} are"
    return f"{what} not registered: run `qa-cluster up`"


def _triggers(row: Any) -> Iterator[str]:
    """Yield the trigger of the registration in `row`, or the pattern of its keys.

    `row` is one element of the reply to ``RG.DUMPREGISTRATIONS``. Yield nothing if `row` has a different form.
    """
    arguments = _pairs(_pairs(_pairs(row).get("RegistrationData")).get("args"))
    for name in ("trigger", "regex"):
        if (value := arguments.get(name)) is not None:
            yield _text(value)


def _pairs(reply: Any) -> dict[str, Any]:
    if isinstance(reply, Mapping):
        return {_text(name): value for name, value in reply.items()}
    if not isinstance(reply, list | tuple):
        return {}
    return {_text(name): value for name, value in zip(reply[::2], reply[1::2], strict=False)}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
