"""Restores a backup: checks everything first, then restores the parts of the backup one after the other.

The order of the parts:

1. API keys
2. readers
3. collections
4. pins, synonyms, feedback and unanswered questions
5. documents
6. functions

API keys are first, so that a REST service on the new cluster requires keys before there are documents. Functions are
last, so that the restored documents do not trigger them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import redis

from qa_cluster.access.records import ApiKey
from qa_cluster.access.store import MAX_KEYS
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.config import Settings
from qa_cluster.errors import InvalidInput, RequestError, from_reply
from qa_cluster.keys import DEFAULT_COLLECTION

from ..nodes.all_shards import ClusterOperation, OnStep
from ..nodes.connect import shards_of
from ..provision.storing import check_storable
from ..servers.local import with_cluster
from ..terminal import console
from . import functions, guidance
from .document_restoring import FAIL, REPLACE, SKIP, DocumentRestoring, RestoredDocuments, documents_in
from .folder import verify
from .functions import StoredFunctions
from .guidance import SavedGuidance
from .lines import read_lines
from .manifest import API_KEYS_FILE, FUNCTIONS_FILE, GUIDANCE_FILE, BackupManifest, DamagedBackup
from .readers import ReaderRestoring, stored_manifest
from .restore_lock import RestoreLock

READERS_SECONDS = 300.0
_MAX_LISTED = 5


class Conflict(RequestError):
    """The cluster and the backup have different contents under the same name, or more API keys together than the limit
    allows.
    """


@dataclass
class RestoreOutcome:
    """The numbers of restored items, and the names of items that were not restored.

    Attributes:
        collections: the number of collections that the restore has created.
        models: the number of readers that the restore has loaded.
        functions: the number of scripts that have registered their functions again.
        kept: the names of items that the cluster keeps with its own contents, for example `reader NAME`. Documents are
            not among them (`RestoredDocuments.skipped`).
        failed: for each item that could not be restored, its name and the reason. Documents are not among them
            (`RestoredDocuments.refused`).
    """

    documents: RestoredDocuments = field(default_factory=RestoredDocuments)
    collections: int = 0
    models: int = 0
    functions: int = 0
    api_keys: int = 0
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether no item failed and no document was refused. Items that the cluster keeps do not count."""
        return not self.failed and not self.documents.refused


class Restoring:
    """Restores a backup to the cluster of the settings: everything, or only the `chosen` collections.

    With `chosen`, readers, functions and API keys are not restored. `policy` (one of `POLICIES`) says what happens if
    the cluster has different contents under the same name.
    """

    def __init__(
        self,
        settings: Settings,
        backup: Path,
        *,
        chosen: frozenset[str] | None = None,
        policy: str = FAIL,
        on_step: OnStep = console.step,
    ) -> None:
        self._settings = settings
        self._backup = backup
        self._chosen = chosen
        self._policy = policy
        self._on_step = on_step
        self.manifest = BackupManifest.load(backup)
        self.outcome = RestoreOutcome()
        self._sessions: list[StoredFunctions] = []
        self._keys: list[ApiKey] = []
        self._guidance: list[SavedGuidance] = []
        known = {DEFAULT_COLLECTION, *self.manifest.collections}
        if self.manifest.chosen is not None:
            known &= set(self.manifest.chosen)
        if unknown := sorted((chosen or frozenset()) - known):
            raise InvalidInput(
                f"the backup does not have collection {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}"
            )

    def check(self) -> None:
        """Verify all files of the backup, and read into memory what `run` restores, except the documents and the
        readers. This needs no cluster. Raises DamagedBackup with the name of the first damaged file.
        """
        with console.progress("verifying bytes", self.manifest.size) as advance:
            verify(self._backup, self.manifest, advance)
        for name in self.manifest.document_files:
            for _ in documents_in(self._backup / name):
                pass
        for reader in self.manifest.readers:
            stored_manifest(self._backup, reader)
        self._guidance = self._read(GUIDANCE_FILE, SavedGuidance.from_dict)
        if self._chosen is None:
            self._keys = self._read(API_KEYS_FILE, lambda line: ApiKey.from_json(orjson.dumps(line)))
            self._sessions = self._read(FUNCTIONS_FILE, StoredFunctions.from_dict)

    def run(self, on_begin: Callable[[], None] = lambda: None) -> RestoreOutcome:
        """Restore the backup. Call `check` first.

        With the policy `fail`, nothing is written if the cluster and the backup have different contents under the same
        name. Conflict then names the differences. With every policy, Conflict is raised before the first write if the
        cluster would get too many API keys.

        `on_begin` is called before the first write. After an error, `outcome` shows what was restored before the error.
        """
        self._settings = with_cluster(self._settings)
        check_storable(self._settings)
        with RestoreLock(self._settings, self._on_step) as lock:
            if self._policy == FAIL:
                self._refuse_conflicts()
            asyncio.run(self._check_key_limit())
            on_begin()
            if self._chosen is None:
                asyncio.run(self._restore_keys())
                self._restore_readers()
            asyncio.run(self._restore_documents(lock))
            if self._chosen is None:
                self._restore_functions()
            lock.check()
        return self.outcome

    def _read(self, name: str, parse: Any) -> list[Any]:
        if name not in self.manifest.files:
            return []
        path = self._backup / name
        found = []
        for number, line in enumerate(read_lines(path), start=1):
            try:
                found.append(parse(line))
            except (ValueError, InvalidInput) as error:
                raise DamagedBackup(path, f"damaged, line {number}: {error}") from error
        return found

    # ---- conflicts

    def _refuse_conflicts(self) -> None:
        self._on_step("comparing the backup with the cluster")
        found = asyncio.run(self._differing())
        if self._chosen is None:
            found += [f"reader {name}" for name in self._readers().differing()]
            present = self._present_sessions()
            found += [
                f"functions {stored.id}"
                for stored in self._sessions
                if stored.id in present and not stored.same_as(present[stored.id])
            ]
        if found:
            more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
            raise Conflict(
                "nothing was restored: the cluster has different contents under the same names:"
                f" {', '.join(found[:_MAX_LISTED])}{more}; keep the contents of the cluster with --on-conflict skip, or"
                " use the contents of the backup with --on-conflict replace"
            )

    async def _differing(self) -> list[str]:
        async with AsyncClusterClient(self._settings) as client:
            present = {} if self._chosen is not None else {key.id: key for key in await client.engine.api_keys.all()}
            keys = [f"API key {key.id}" for key in self._keys if key.id in present and not _fits(key, present[key.id])]
            keys += await guidance.differing(client.engine, self._guidance, self._chosen)
            return keys + [f"document {name}" for name in await self._documents(client).differing()]

    async def _check_key_limit(self) -> None:
        """Raise Conflict if the cluster would have more than `MAX_KEYS` API keys after the restore.

        The keys of the backup count, and all other keys of the cluster that are not revoked.
        """
        if self._chosen is not None or not self._keys:
            return
        async with AsyncClusterClient(self._settings) as client:
            ids = {key.id for key in self._keys}
            others = {key.id for key in await client.engine.api_keys.all() if key.revoked is None} - ids
            if len(ids) + len(others) > MAX_KEYS:
                raise Conflict(
                    f"nothing was restored: the backup has {console.counted(len(ids), 'API key')} and the cluster"
                    f" {len(others)} other valid keys, but the limit is {MAX_KEYS}: revoke some keys with"
                    " `qa-cluster keys revoke`"
                )

    # ---- the parts

    async def _restore_keys(self) -> None:
        if not self._keys:
            return
        async with AsyncClusterClient(self._settings) as client:
            store = client.engine.api_keys
            stored = {key.id: key for key in await store.all()}
            incomplete = await store.incomplete()
            ids = {key.id for key in self._keys}
            for key in self._keys:
                present = stored.get(key.id)
                if present is None:
                    await store.add(key, keep=ids)
                    self.outcome.api_keys += 1
                elif _fits(key, present):
                    if key.id in incomplete:
                        await store.complete(present)
                elif self._policy == REPLACE:
                    await store.replace(key)
                    self.outcome.api_keys += 1
                else:
                    self.outcome.kept.append(f"API key {key.id}")

    def _readers(self) -> ReaderRestoring:
        operation = ClusterOperation.begin(self._settings, self._settings.cluster_url, READERS_SECONDS, self._on_step)
        return ReaderRestoring(operation, self._backup, self.manifest.readers)

    def _restore_readers(self) -> None:
        if not self.manifest.readers:
            return
        readers = self._readers()
        if self._policy == SKIP:
            self.outcome.kept += [f"reader {name}" for name in readers.differing()]
        try:
            readers.run(replace=self._policy == REPLACE, default=self._policy != SKIP)
        finally:
            self.outcome.models = readers.loaded

    async def _restore_documents(self, lock: RestoreLock) -> None:
        async with AsyncClusterClient(self._settings) as client:
            for name in self.manifest.collections:
                if self._chosen is None or name in self._chosen:
                    self.outcome.collections += await client.create_collection(name)
            total = self.manifest.counts["documents"] if self._chosen is None else None
            with console.progress("restoring documents", total) as advance:

                def on_progress(done: int) -> None:
                    lock.check()
                    advance(done)

                restoring = self._documents(client, on_progress)
                self.outcome.kept += await guidance.restore(
                    client.engine, self._guidance, self._chosen, replace=self._policy == REPLACE
                )
                # set before the call of `run`, so that the outcome is right after an error, too
                self.outcome.documents = restoring.restored
                await restoring.run(self._policy)

    def _documents(
        self, client: AsyncClusterClient, advance: Callable[[int], None] = lambda done: None
    ) -> DocumentRestoring:
        return DocumentRestoring(
            client.engine,
            [self._backup / name for name in self.manifest.document_files],
            chosen=self._chosen,
            patience=self._settings.start_timeout_ms / 1000,
            on_progress=advance,
        )

    def _present_sessions(self) -> dict[str, StoredFunctions]:
        with shards_of(self._settings, self._settings.cluster_url) as shards:
            return {name: stored for name, (stored, _) in functions.sessions_on(shards[0][1]).items()}

    def _restore_functions(self) -> None:
        if not self._sessions:
            return
        self._on_step(f"registering the functions of {console.counted(len(self._sessions), 'script')}")
        with shards_of(self._settings, self._settings.cluster_url) as shards:
            client = shards[0][1]
            try:
                sessions = functions.sessions_on(client)
                for stored in self._sessions:
                    present = sessions.get(stored.id)
                    if present is not None and stored.same_as(present[0]):
                        # an earlier restore may have been interrupted before it paused the functions
                        if self._policy != SKIP:
                            functions.pause(client, stored, *present)
                        continue
                    if present is not None and self._policy != REPLACE:
                        self.outcome.kept.append(f"functions {stored.id}")
                        continue
                    problem = functions.register(client, stored, upgrade=present is not None)
                    if problem:
                        self.outcome.failed[f"functions {stored.id}"] = problem
                    else:
                        self.outcome.functions += 1
            except redis.exceptions.ResponseError as error:
                raise from_reply(str(error)) from error


def _fits(key: ApiKey, present: ApiKey) -> bool:
    """Return whether an API key of the backup (`key`) needs no restore. It needs none if `present`, the key with the
    same id in the cluster, is equal, or was revoked after the backup. A restore must not undo a revocation.
    """
    return present == key or (present.revoked is not None and key.revoked is None)
