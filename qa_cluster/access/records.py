"""Defines API keys: their text, their record in the cluster, and their rights.

A key is ``qac_<id>_<secret>``. The secret has 256 random bits. The cluster stores only the secret's SHA-256. A hash of
so many random bits cannot be inverted, so a person who reads the record cannot compute the key.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Self

import orjson

from qa_cluster.errors import InvalidInput
from qa_cluster.keys import check_collection

PREFIX = "qac"
SECRET_BYTES = 32
MAX_NAME_CHARS = 100
MAX_KEY_COLLECTIONS = 100
MAX_LIMIT = 1_000_000_000
MAX_EXPIRY_SECONDS = 100 * 366 * 86_400
ASK, SEARCH, WRITE, ADMIN = "ask", "search", "write", "admin"
SCOPES = (ASK, SEARCH, WRITE, ADMIN)

_TEXT = re.compile(rb"qac_([0-9a-f]{12})_([A-Za-z0-9_-]{43})\Z")
_ID = re.compile(r"[0-9a-f]{12}\Z")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key, for all services together. None means no limit.

    Attributes:
        requests_per_second: the rate at which requests may start. After a second without requests, this many may start
            at once.
        concurrent: requests in flight at the same time.
        sentences_per_day: sentences of documents that are written from one midnight (UTC) to the next.
    """

    requests_per_second: int | None = None
    concurrent: int | None = None
    sentences_per_day: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and (type(value) is not int or not 1 <= value <= MAX_LIMIT):
                raise InvalidInput(f"{name} must be an integer from 1 to {MAX_LIMIT}, got {value!r}"[:200])

    @property
    def counted(self) -> bool:
        """Whether each request must be counted in the cluster."""
        return self.requests_per_second is not None or self.concurrent is not None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the cluster stores it. Times are seconds since 1970.

    Attributes:
        digest: the SHA-256 of the secret, 64 hex digits.
        collections: the collections that the key may use. If it is empty, the key may use all collections.
        expires, revoked: the time from which the key is invalid; None if there is no such time.
    """

    id: str
    name: str
    digest: str
    scopes: tuple[str, ...]
    collections: tuple[str, ...] = ()
    limits: KeyLimits = field(default_factory=KeyLimits)
    created: int = 0
    expires: int | None = None
    revoked: int | None = None

    def state(self, now: float) -> str:
        """Return ``valid``, ``expired`` or ``revoked`` at the time `now`. A revoked key never becomes ``expired``."""
        if self.revoked is not None:
            return "revoked"
        return "valid" if self.expires is None or now < self.expires else "expired"

    def allows(self, collection: str) -> bool:
        """Return whether the key may use this collection."""
        return not self.collections or collection in self.collections

    def fits(self, secret: bytes) -> bool:
        """Return whether `secret` is the secret of this key.

        The comparison takes the same time for every wrong secret.
        """
        return compare_digest(sha256(secret).digest(), bytes.fromhex(self.digest))

    def to_dict(self) -> dict[str, Any]:
        """Return the public part of the record: all fields except the digest."""
        shown = asdict(self)
        del shown["digest"]
        return shown | {"scopes": list(self.scopes), "collections": list(self.collections)}

    def to_json(self) -> bytes:
        """Return the stored form of the record."""
        return orjson.dumps(self.to_dict() | {"digest": self.digest})

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Read the stored form; raise InvalidInput if it is malformed."""
        try:
            value = orjson.loads(raw)
            limits = KeyLimits(**value.pop("limits"))
            lists = [value.pop(name) for name in ("scopes", "collections")]
            if not all(isinstance(each, list) for each in lists):
                raise TypeError("scopes and collections must be lists")
            scopes, collections = map(tuple, lists)
            key = cls(**value, scopes=scopes, collections=collections, limits=limits)
            bytes.fromhex(key.digest)
            check_id(key.id)
            key._check()
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, InvalidInput) as error:
            raise InvalidInput(f"the record of an API key cannot be read: {error}") from error
        return key

    def _check(self) -> None:
        """Raise InvalidInput if a value has the wrong type. Such a value could grant wrong rights, or fail later."""
        texts = (self.name, *self.scopes, *self.collections)
        times = (self.created, *(at for at in (self.expires, self.revoked) if at is not None))
        if not all(isinstance(text, str) for text in texts) or not all(type(at) is int for at in times):
            raise InvalidInput("a value has the wrong type")
        for collection in self.collections:
            check_collection(collection)

    def revoke(self, now: float) -> Self:
        """Return the record of the key, revoked at the time `now`. A key that is already revoked does not change."""
        return self if self.revoked is not None else replace(self, revoked=int(now))


def new_key(
    name: str,
    scopes: Iterable[str],
    *,
    collections: Iterable[str] = (),
    limits: KeyLimits | None = None,
    expires_in_seconds: int | None = None,
    now: float,
) -> tuple[ApiKey, str]:
    """Create a key: return its record and its text. The text cannot be recovered from the record.

    Args:
        name: the name for people, 1 to 100 characters.
        scopes: the rights of the key, one or more of `SCOPES`.
        collections: the collections that the key may use. If it is empty, the key may use all collections.
        limits: the limits of the key; None means no limits.
        expires_in_seconds: the lifetime; None means that the key does not expire.
        now: the time of creation, in seconds since 1970.

    Raises:
        InvalidInput: a value is invalid.
    """
    text = f"{PREFIX}_{secrets.token_hex(6)}_{secrets.token_urlsafe(SECRET_BYTES)}"
    if expires_in_seconds is not None and not 1 <= expires_in_seconds <= MAX_EXPIRY_SECONDS:
        raise InvalidInput(f"a key may live for 1 to {MAX_EXPIRY_SECONDS} seconds, got {expires_in_seconds}")
    expires = None if expires_in_seconds is None else int(now) + expires_in_seconds
    return record_of(text, name, scopes, collections=collections, limits=limits, expires=expires, now=now), text


def record_of(
    text: str,
    name: str,
    scopes: Iterable[str],
    *,
    collections: Iterable[str] = (),
    limits: KeyLimits | None = None,
    expires: int | None = None,
    now: float,
) -> ApiKey:
    """Return the record of a key with this text.

    Args:
        text: the text of the key.
        name, scopes, collections, limits: as in `new_key`.
        expires: the time from which the key is invalid, in seconds since 1970; None means that the key does not expire.
        now: the time of creation, in seconds since 1970.

    Raises:
        InvalidInput: a value is invalid. The error does not repeat the text.
    """
    parts = parse(text.encode()) if isinstance(text, str) else None
    if parts is None:
        raise InvalidInput(
            f"the text of a key must be {PREFIX}_, 12 hex digits, _, and 43 characters of base64url (32 random bytes)"
        )
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= MAX_NAME_CHARS or _UNSAFE.search(name):
        raise InvalidInput(f"name of a key must be 1 to {MAX_NAME_CHARS} printable characters, got {name!r}"[:300])
    bound = tuple(sorted({check_collection(collection) for collection in collections}))
    if len(bound) > MAX_KEY_COLLECTIONS:
        raise InvalidInput(
            f"a key may name up to {MAX_KEY_COLLECTIONS} collections, got {len(bound)}: leave them out to allow all"
        )
    if expires is not None and (type(expires) is not int or not 1 <= expires <= now + MAX_EXPIRY_SECONDS):
        raise InvalidInput(f"a key expires at a time in seconds since 1970, got {expires!r}"[:200])
    return ApiKey(
        parts[0],
        name.strip(),
        sha256(parts[1]).hexdigest(),
        check_scopes(scopes),
        bound,
        limits or KeyLimits(),
        int(now),
        expires,
    )


def check_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes in the order of `SCOPES`, without duplicates.

    InvalidInput names an unknown scope, or says that no scope is given.
    """
    given = tuple(scopes)
    unknown = [scope for scope in given if scope not in SCOPES]
    if unknown or not given:
        got = repr(unknown[0])[:50] if unknown else "none"
        raise InvalidInput(f"scopes of a key are any of {', '.join(SCOPES)}, got {got}")
    return tuple(scope for scope in SCOPES if scope in given)


def check_id(text: object) -> str:
    """Return the id of a key if it is valid; otherwise raise InvalidInput.

    The error does not repeat the text, which may be a whole key.
    """
    if not isinstance(text, str) or not _ID.match(text):
        raise InvalidInput("id of a key must be 12 hex digits, as `qa-cluster keys list` shows it")
    return text


def parse(text: bytes) -> tuple[str, bytes] | None:
    """Return the id and the secret of a key's text; None if the text is not a key."""
    found = _TEXT.match(text)
    return None if found is None else (found[1].decode(), found[2])


def find(keys: Mapping[str, ApiKey], text: bytes) -> ApiKey | None:
    """Return the key with this text, whether valid or not; None if no key has this text. `keys` are all keys by id.

    The duration of the call does not reveal whether the id or the secret is wrong.
    """
    parts = parse(text)
    if parts is None:
        return None
    key = keys.get(parts[0])
    if key is None:
        compare_digest(sha256(parts[1]).digest(), _NOBODY)
        return None
    return key if key.fits(parts[1]) else None
