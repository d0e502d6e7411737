/* Change notes: the module's record of changed texts in the keyspace.
 *
 * The text of a document is a plain key. Any command may write, rename, restore or remove the key, and the key may
 * expire. An event notifies the worker of each change. But the event is lost if the queue is full, if the server dies,
 * or if a replica replaces the server. So every change of a text also increments a number in a hash: the note of the
 * text. The AOF and the replicas get the change and the note in one transaction. Each partition has one such hash. The
 * hash lists the partition's pending changes: the changes that the worker has not handled yet. A worker that has lost
 * events reads this hash instead of every document.
 *
 * The note of the text `paragraphs:<name>:{tag}` is the field <name> of `pending:{tag}`. The field with the empty name
 * is the sum of all other fields. `parse_tagged` in qa_cluster/keys.py defines which keys are texts of documents
 * (tests/module/test_notes.py compares it with text_key.c). A text without a tag (`paragraphs:<name>`) belongs to no
 * partition and gets no note. The worker copies such a text to its document, and the text stays in its key. If a note
 * made the worker copy the text again, an old text could replace a newer document (docs/design/writing-documents.md).
 *
 * qa-cluster's scripts that put and remove documents write the note themselves. So if a script has changed a text, the
 * module compares the note at the end of the script with the note before the change. The module writes a note only if
 * both are equal. An unnecessary note does no harm. */
#pragma once

#include "server/module_api.h"

typedef struct NoteStats {
    int noting; /* 0: the module writes no notes, because the server cannot write in the transaction of a change (Redis
                 * 7.0) */
    unsigned long long made;    /* notes that were written */
    unsigned long long refused; /* notes that the server refused to write, mostly for keys in migrating slots */
} NoteStats;

extern NoteStats note_stats;

int notes_on_load(RedisModuleCtx *ctx);
