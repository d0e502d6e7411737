"""Builds and parses the names of all keys, and computes partitions. This module never calls a server.

Every key of a document has the hash tag of its partition. A partition therefore migrates between shards as one slot. A
document is in one collection. Its keys contain a *document name*, which has the collection and the id (`DocumentName`).
A parameter `document` is a `DocumentName`, or a plain string, which is the id of a document in the default collection.

The pins, synonyms, feedback and unanswered questions of a whole collection are in one partition, the partition of the
collection's name: `partition_of` with the name in place of a document's id.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import product

from .errors import InvalidInput

SLOTS = 16384
MAX_PARTITIONS = SLOTS
PARTITIONS_KEY = "qa:partitions"
RESTORING_KEY = "qa:restoring"
BATCH_OWNERS_KEY = "qa:batch-owners"
PARAGRAPHS_PREFIX = "paragraphs:"
DOCUMENT_PREFIX = "document:"
SENTENCE_PREFIX = "sentence:"
INDEX_PREFIX = "index:"
ANSWER_PREFIX = "bertqa"
WHOLE_ANSWER_PREFIX = "answer:"
COLLECTIONS_PREFIX = "collections:"
PINS_PREFIX = "pins:"
SYNONYMS_PREFIX = "synonyms:"
API_KEYS_PREFIX = "api-keys:"
PENDING_PREFIX = "pending:"
FAILURES_PREFIX = "failures:"
DEFAULT_COLLECTION = "default"
# Replaces the id of the API key in the keys of requests that have no API key.
NO_API_KEY = "none"
MAX_COLLECTION_CHARS = 64
# The length limit of a sentence's name: an id of 512 bytes, each encoded as three characters, with collection, tag and
# number.
MAX_NAME_CHARS = 2048
# Separates collection and id. A percent sign in an id is encoded, so an id never contains this separator.
COLLECTION_END = "%/"

_TAG_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_ENCODE = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})
_DECODE = {"%25": "%", "%7B": "{", "%7D": "}"}
_ESCAPE = re.compile(r"%(?:25|7B|7D)?")
_COLLECTION = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_COLLECTION_CHARS - 1}}}\Z")
COLLECTION_PATTERN = "^[a-z0-9][a-z0-9_-]*$"  # for API descriptions, which state the length limit separately
_TAGGED = re.compile(r"([^{}]*):\{([^{}]+)\}\Z", re.DOTALL)
_INDEX = "(0|[1-9][0-9]{0,9})"
_SENTENCE = re.compile(rf"([^{{}}]*):\{{([^{{}}]+)\}}:{_INDEX}\Z", re.DOTALL)
_MODEL = re.compile(r"bert-qa(?:@([^{}]+))?\{([^{}]+)\}\Z", re.DOTALL)
_DIGEST_NAME = re.compile(r"#([0-9a-f]{8})-[0-9a-f]{32}\Z")
_ANSWER = re.compile(rf"bertqa(?:@([^{{}}]+))?\{{([^{{}}]+)\}}_([^{{}}]*):\{{\2\}}:{_INDEX}_(.*)\Z", re.DOTALL)


class DocumentName(str):
    """The name of a document in keys: the encoded id (`encode_id`).

    Outside the default collection, ``<collection>%/`` precedes the encoded id.

    >>> DocumentName.of("50%"), DocumentName.of("moby", "books")
    ('50%25', 'books%/moby')
    """

    __slots__ = ()

    @classmethod
    def of(cls, document_id: str, collection: str = DEFAULT_COLLECTION) -> DocumentName:
        """Return the name of a document in a collection."""
        return cls(collection_prefix(collection) + encode_id(document_id))

    @classmethod
    def parse(cls, text: str) -> DocumentName:
        """Return the name that a key contains; InvalidInput if the text is not a name."""
        name = cls(text)
        if "%" not in text and "{" not in text and "}" not in text:
            return name
        if cls.of(name.id, check_collection(name.collection)) != text:
            raise InvalidInput(f"a key has a document name that qa-cluster does not write: {text[:100]!r}")
        return name

    @property
    def id(self) -> str:
        """The document's id."""
        return decode_id(self.rpartition(COLLECTION_END)[2])

    @property
    def collection(self) -> str:
        """The document's collection."""
        return self.rpartition(COLLECTION_END)[0] or DEFAULT_COLLECTION


def document_name(document: str) -> DocumentName:
    """Return the name of a document; a plain string is the id of a document in the default collection."""
    return document if isinstance(document, DocumentName) else DocumentName.of(document)


def check_collection(name: object) -> str:
    """Return `name` if it is a valid name of a collection; otherwise raise InvalidInput, which says what is wrong."""
    if not isinstance(name, str) or not _COLLECTION.match(name):
        raise InvalidInput(
            f"collection must be 1 to {MAX_COLLECTION_CHARS} characters of a-z, 0-9, _ and -, the first a letter or a"
            f" digit, got {name!r}"[:300],
            place="collection",
        )
    return name


def is_collection(name: str) -> bool:
    """Return whether a text is a valid name of a collection."""
    return _COLLECTION.match(name) is not None


def collection_prefix(collection: str) -> str:
    """Return the prefix of a collection's document ids in keys.

    >>> collection_prefix("books"), collection_prefix("default")
    ('books%/', '')
    """
    return "" if collection == DEFAULT_COLLECTION else f"{collection}{COLLECTION_END}"


@dataclass(frozen=True, slots=True, init=False)
class SentenceRef:
    """Identifies one sentence of a document.

    Its string form ``<doc>:{tag}:<i>`` is a part of the keys about the sentence.
    """

    document: DocumentName
    tag: str
    index: int

    def __init__(self, document: str, tag: str, index: int) -> None:
        object.__setattr__(self, "document", document_name(document))
        object.__setattr__(self, "tag", tag)
        object.__setattr__(self, "index", index)

    @property
    def document_id(self) -> str:
        """The id of the document."""
        return self.document.id

    def __str__(self) -> str:
        return f"{self.document}:{{{self.tag}}}:{self.index}"


def encode_id(document_id: str) -> str:
    """Return a document id as keys contain it: ``%``, ``{`` and ``}`` are percent-encoded.

    >>> encode_id("50% {draft}")
    '50%25 %7Bdraft%7D'
    """
    return document_id.translate(_ENCODE)


def decode_id(encoded: str) -> str:
    """Return the document id that `encode_id` encoded; InvalidInput if ``encoded`` is not a result of `encode_id`."""

    def decode(match: re.Match[str]) -> str:
        plain = _DECODE.get(match.group())
        if plain is None:
            raise InvalidInput(f"document id in key is not percent-encoded: {encoded[:100]!r}")
        return plain

    if "{" in encoded or "}" in encoded:
        raise InvalidInput(f"document id in key contains a brace: {encoded[:100]!r}")
    return _ESCAPE.sub(decode, encoded) if "%" in encoded else encoded


def slot(key: str | bytes) -> int:
    """Return the cluster slot of a key, by the server's rule for hash tags."""
    data = key.encode() if isinstance(key, str) else key
    opening = data.find(b"{")
    if opening >= 0:
        closing = data.find(b"}", opening + 1)
        if closing > opening + 1:
            data = data[opening + 1 : closing]
    return crc_hqx(data, 0) % SLOTS


@lru_cache(maxsize=16)
def partition_tags(partitions: int) -> tuple[str, ...]:
    """Return the hash tags of the partitions of a cluster. Their slots are spread evenly.

    The slots are divided into `partitions` ranges. Tag i is the first string, by length and then by alphabet, whose
    slot is the middle of range i.

    >>> [slot(tag) for tag in partition_tags(2)]
    [4096, 12288]
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInput(f"number of partitions must be 1 to {MAX_PARTITIONS}, got {partitions}")
    wanted = {(2 * i + 1) * SLOTS // (2 * partitions): i for i in range(partitions)}
    found: dict[int, str] = {}
    length = 1
    while len(found) < partitions:
        for letters in product(_TAG_ALPHABET, repeat=length):
            tag = "".join(letters)
            index = wanted.get(crc_hqx(tag.encode(), 0) % SLOTS)
            if index is not None and index not in found:
                found[index] = tag
                if len(found) == partitions:
                    break
        length += 1
    return tuple(found[i] for i in range(partitions))


def partition_of(document_id: str, partitions: int) -> str:
    """Return the tag of a document's partition. A hash of the document's id selects the partition."""
    digest = blake2b(document_id.encode(), digest_size=8).digest()
    return partition_tags(partitions)[int.from_bytes(digest, "big") % partitions]


class Partitioning:
    """The partitions of a cluster. The objects of an engine share one `Partitioning`, so all see a new number at once.

    Attributes:
        number: the number of partitions; 0 if it is not known yet.
    """

    __slots__ = ("number",)

    def __init__(self, number: int = 0) -> None:
        self.number = number

    @property
    def tags(self) -> tuple[str, ...]:
        """The hash tags of the partitions; empty if their number is not known yet."""
        return partition_tags(self.number) if self.number else ()

    def tag_of(self, name: str) -> str:
        """Return the tag of the partition of a document's id or of another name (`partition_of`)."""
        return partition_of(name, self.number)


def paragraphs_key(document: str, tag: str) -> str:
    """The key of a document's text."""
    return f"{PARAGRAPHS_PREFIX}{document_name(document)}:{{{tag}}}"


def document_key(document: str, tag: str) -> str:
    """The key of a document's record."""
    return f"{DOCUMENT_PREFIX}{document_name(document)}:{{{tag}}}"


def sentence_key(document: str, tag: str) -> str:
    """The key of the sentences that a client stores without a document: a hash.

    Its fields are the numbers of the sentences, and its values are their texts. `document` is the name that the client
    has chosen for these sentences, in place of the name of a document.
    """
    return f"{SENTENCE_PREFIX}{document_name(document)}:{{{tag}}}"


def answers_key(document: str, tag: str) -> str:
    """The key of the set that lists the keys of a document's cached sentence answers."""
    return f"answers:{document_name(document)}:{{{tag}}}"


def offsets_key(document: str, tag: str) -> str:
    """The key of a document's sentence offsets (`documents.sentence_offsets`): a string."""
    return f"places:{document_name(document)}:{{{tag}}}"


def tokens_key(document: str, tag: str) -> str:
    """The key of a document's token ids: a hash with a field for each block of sentences."""
    return f"tokens:{document_name(document)}:{{{tag}}}"


def answer_key(sentence: SentenceRef, question: str, model: str = "") -> str:
    """The key of the answer of one sentence to one question, from the reader `model`.

    If `model` is empty, the default reader is meant. `question` is the question's text, or its `digest_name`.

    >>> answer_key(SentenceRef("a_b", "06S", 3), "Why?")
    'bertqa{06S}_a_b:{06S}:3_Why?'
    >>> answer_key(SentenceRef("a_b", "06S", 3), "Why?", "tiny")
    'bertqa@tiny{06S}_a_b:{06S}:3_Why?'
    """
    return f"{ANSWER_PREFIX}{_named(model)}{{{sentence.tag}}}_{sentence}_{question}"


def digest_name(mark: str, digest: str) -> str:
    """Return the text that replaces the question in an answer's key, if `qa.answer-keys` is ``digest``.

    `digest` is the digest of the question as 32 hex digits. `mark`, 8 hex digits, identifies the secret key with which
    the digest was computed.

    >>> digest_name("0a1b2c3d", 4 * "01234567")
    '#0a1b2c3d-01234567012345670123456701234567'
    """
    return f"#{mark}-{digest}"


def parse_digest_name(name: str) -> str | None:
    """Return the mark in a digest name, which identifies the secret key of the digest; None if `name` is a question.

    >>> parse_digest_name("#0a1b2c3d-01234567012345670123456701234567"), parse_digest_name("Why?")
    ('0a1b2c3d', None)
    """
    match = _DIGEST_NAME.match(name)
    return None if match is None else match[1]


def whole_answer_key(tag: str, digest: str, collection: str = DEFAULT_COLLECTION) -> str:
    """The key of a collection's cached whole answer to a question.

    `tag` is the tag of the partition that stores the answer. `digest` identifies the question and its options.
    """
    return f"{WHOLE_ANSWER_PREFIX}{_own(collection)}{{{tag}}}:{digest}"


def index_key(tag: str, collection: str = DEFAULT_COLLECTION) -> str:
    """The key of the inverted index of a collection's sentences in one partition.

    >>> index_key("06S"), index_key("06S", "books")
    ('index:{06S}', 'index:books:{06S}')
    """
    return f"{INDEX_PREFIX}{_own(collection)}{{{tag}}}"


def epoch_key(tag: str, collection: str = DEFAULT_COLLECTION) -> str:
    """The key of the counter of a collection's changes in one partition."""
    return f"epoch:{_own(collection)}{{{tag}}}"


def collections_key(tag: str) -> str:
    """The key of a partition's copy of the list of collections: a hash."""
    return f"{COLLECTIONS_PREFIX}{{{tag}}}"


def api_keys_key(tag: str) -> str:
    """The key of a partition's copy of the list of API keys: a hash."""
    return f"{API_KEYS_PREFIX}{{{tag}}}"


def api_use_key(key_id: str) -> str:
    """The key of an API key's counters of requests and sentences: a hash."""
    return f"api-use:{{{key_id}}}"


def api_running_key(key_id: str) -> str:
    """The key of an API key's requests in flight: a sorted set.

    The score of a request is the time when its entry expires.
    """
    return f"api-running:{{{key_id}}}"


def batch_files_key(owner: str) -> str:
    """The key of the list of an owner's batch files: a sorted set, scored by the time of creation.

    An owner is an API key, or all clients without an API key together (`batches.records.owner_of`). All batch keys of
    an owner have the owner's hash tag, so one script can change the owner's files and batches atomically.
    """
    return f"batch-files:{{{owner}}}"


def batch_file_key(file_id: str, owner: str) -> str:
    """The key of the record of a batch file: a hash."""
    return f"batch-file:{file_id}:{{{owner}}}"


def batch_part_key(file_id: str, part: int, owner: str) -> str:
    """The key of one part of the contents of a batch file. `part` is the number of the part, counted from 0.

    >>> batch_part_key("file-0a", 3, "0123456789ab")
    'batch-part:file-0a:3:{0123456789ab}'
    """
    return f"batch-part:{file_id}:{part}:{{{owner}}}"


def batch_sizes_key(owner: str) -> str:
    """The key of the sizes of an owner's batch files: a hash.

    Its fields are the ids of the files. Its values have the form ``<bytes>:<time of expiry>``.
    """
    return f"batch-sizes:{{{owner}}}"


def batches_key(owner: str) -> str:
    """The key of the list of an owner's batches: a sorted set, scored by the time of creation."""
    return f"batches:{{{owner}}}"


def open_batches_key(owner: str) -> str:
    """The key of the list of an owner's unfinished batches: a sorted set like `batches_key`."""
    return f"batches-open:{{{owner}}}"


def batch_key(batch_id: str, owner: str) -> str:
    """The key of the record of a batch: a hash."""
    return f"batch:{batch_id}:{{{owner}}}"


def batch_lease_key(owner: str) -> str:
    """The key of the lease of the process that runs the owner's batches: a string that expires."""
    return f"batch-lease:{{{owner}}}"


def submissions_key(key_id: str) -> str:
    """The key of the list of an API key's submitted questions and results: a sorted set, scored by expiry time.

    `key_id` is the id of the API key; empty: all requests without an API key.
    """
    return f"submissions:{{{key_id or NO_API_KEY}}}"


def submission_key(key_id: str, name: str) -> str:
    """The key of a question that an API key submitted, and later of its result: a hash.

    `key_id` is the id of the API key, as in `submissions_key`. `name` is the id of the submitted question.
    """
    return f"submission:{{{key_id or NO_API_KEY}}}:{name}"


def pins_key(tag: str, collection: str = DEFAULT_COLLECTION) -> str:
    """The key of a collection's pins: a hash with a field for each normalised question.

    `tag` is the tag of the partition of the collection's name.

    >>> pins_key("06S"), pins_key("06S", "books")
    ('pins:{06S}', 'pins:books:{06S}')
    """
    return f"{PINS_PREFIX}{_own(collection)}{{{tag}}}"


def synonyms_key(tag: str, collection: str = DEFAULT_COLLECTION) -> str:
    """The key of a collection's synonyms: a string in the partition of the collection's name."""
    return f"{SYNONYMS_PREFIX}{_own(collection)}{{{tag}}}"


def feedback_key(tag: str, collection: str = DEFAULT_COLLECTION) -> str:
    """The key of a collection's feedback: a stream in the partition of the collection's name."""
    return f"feedback:{_own(collection)}{{{tag}}}"


def unanswered_key(tag: str, collection: str = DEFAULT_COLLECTION) -> str:
    """The key of a collection's questions without a sure answer: a stream in the partition of the collection's name."""
    return f"unanswered:{_own(collection)}{{{tag}}}"


def _own(collection: str) -> str:
    return "" if collection == DEFAULT_COLLECTION else f"{collection}:"


def pending_key(tag: str) -> str:
    """The key of a partition's pending documents: a hash. The field ``""`` has the sum of all other values.

    Each other field is the name of a document. If a script of this package wrote the text, the value is the size of the
    text in bytes. For each change without these scripts, the module adds 1 to the value (`native/corpus/notes.h`).
    """
    return f"{PENDING_PREFIX}{{{tag}}}"


def failures_key(tag: str) -> str:
    """The key of a partition's failed documents: a hash. Only the module and the workers write it.

    The value of a document is one of these:

    - while workers retry: the number of workers that ended while they indexed the document, and the last reason
    - after the last attempt: ``failed``, the document's version and the reason
    """
    return f"{FAILURES_PREFIX}{{{tag}}}"


def sentence_answer_list_key(tag: str) -> str:
    """The key of the list of a partition's cached sentence answers, the oldest first: a sorted set of keys."""
    return f"kept:{{{tag}}}"


def sentence_answer_bytes_key(tag: str) -> str:
    """The key of the total size of a partition's cached sentence answers, in bytes."""
    return f"kept-bytes:{{{tag}}}"


def whole_answer_list_key(tag: str) -> str:
    """The key of the list of a partition's cached whole answers, the oldest first: a sorted set of keys."""
    return f"kept-whole:{{{tag}}}"


def whole_answer_bytes_key(tag: str) -> str:
    """The key of the total size of a partition's cached whole answers, in bytes."""
    return f"kept-whole-bytes:{{{tag}}}"


def layout_key(tag: str) -> str:
    """The key of a partition's layout: a hash with the versions of the keys' layout, the splitter and the analyzer.

    The documents of the partition were indexed with these versions (`gears/functions/indexing/marks.py`).
    """
    return f"layout:{{{tag}}}"


def flight_key(tag: str) -> str:
    """A key that never exists. Commands and scripts name it so that they fail while their partition migrates.

    While a slot migrates, the server refuses a command with several keys if a key is missing. This key is always
    missing. Without it, a command could read or change one half of a partition.
    """
    return f"flight:{{{tag}}}"


def model_key(shard_tag: str, name: str = "") -> str:
    """The key of a shard's copy of a reader: the default reader if `name` is empty, otherwise the reader `name`.

    >>> model_key("06S"), model_key("06S", "org/tiny@0123456789ab")
    ('bert-qa{06S}', 'bert-qa@org/tiny@0123456789ab{06S}')
    """
    return f"bert-qa{_named(name)}{{{shard_tag}}}"


def manifest_key(shard_tag: str, name: str = "") -> str:
    """The key of the manifest of a shard's reader: the default reader if `name` is empty, otherwise `name`."""
    return f"bert-qa:manifest{_named(name)}{{{shard_tag}}}"


def tokenizer_key(shard_tag: str, name: str = "") -> str:
    """The key of the tokenizer of a shard's reader: the default reader if `name` is empty, otherwise `name`."""
    return f"bert-qa:tokenizer{_named(name)}{{{shard_tag}}}"


def _named(name: str) -> str:
    return f"@{encode_id(name)}" if name else ""


def parse_model_key(key: str) -> tuple[str, str] | None:
    """Return the shard tag and the reader's name in a `model_key`; None for any other key.

    The default reader's name is empty.

    >>> parse_model_key("bert-qa@tiny@0123456789ab{06S}")
    ('06S', 'tiny@0123456789ab')
    """
    match = _MODEL.match(key)
    return None if match is None else (match[2], decode_id(match[1] or ""))


def progress_key(shard_tag: str) -> str:
    """The key of a shard's progress in the command `qa-cluster prepare`: a hash.

    `shard_tag` is a hash tag of the shard (`hashtags.shard_tag`).
    """
    return f"progress:{{{shard_tag}}}"


def parse_tagged(key: str, prefix: str) -> tuple[DocumentName, str] | None:
    """Return the document and the tag in a key ``<prefix><doc>:{tag}``; None for any other key.

    >>> parse_tagged("paragraphs:a:b:{06S}", PARAGRAPHS_PREFIX)
    ('a:b', '06S')
    """
    if not key.startswith(prefix):
        return None
    match = _TAGGED.match(key, len(prefix))
    if match is None:
        return None
    try:
        return DocumentName.parse(match[1]), match[2]
    except InvalidInput:
        return None


def parse_sentence(text: str) -> SentenceRef:
    """Parse ``<doc>:{tag}:<i>`` into a sentence; InvalidInput if the text has a different form.

    >>> parse_sentence("a:{06S}:3")
    SentenceRef(document='a', tag='06S', index=3)
    """
    match = _SENTENCE.match(text) if len(text) <= MAX_NAME_CHARS else None
    if match is None:
        raise InvalidInput(f"sentence key must be <document>:{{tag}}:<number>, got {text[:200]!r}")
    return SentenceRef(DocumentName.parse(match[1]), match[2], int(match[3]))


def parse_answer_key(key: str) -> tuple[SentenceRef, str, str]:
    """Parse a ``bertqa{tag}_<doc>:{tag}:<i>_<question>`` key; InvalidInput if the key has a different form.

    Returns:
        the sentence, the question, and the name of the reader, which is empty for the default reader.

    >>> parse_answer_key("bertqa{06S}_a_b:{06S}:3_Why_so?")
    (SentenceRef(document='a_b', tag='06S', index=3), 'Why_so?', '')
    """
    match = _ANSWER.match(key)
    if match is None:
        shape = "bertqa{tag}_<document>:{tag}:<number>_<question>, or bertqa@<model>{tag}_.."
        raise InvalidInput(f"answer key must be {shape}, got {key[:200]!r}")
    return SentenceRef(DocumentName.parse(match[3]), match[2], int(match[4])), match[5], decode_id(match[1] or "")
