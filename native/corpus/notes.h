/* Change notes: the module's record of changed texts in the keyspace.
 *
 * The text of a document is a plain key. Any command may write, rename, restore or remove it, and it may expire. An
 * event notifies the worker of each change. But the event is lost if the queue is full, if the server dies, or if a
 * replica replaces the server. So every change of a text also increments a field of a hash. The AOF and the replicas
 * get the change and the hash in one transaction. The hash lists the pending changes of the text's partition. A worker
 * that has lost events reads this hash instead of every document.
 *
 * The note of the text `paragraphs:<name>:{tag}` is the field <name> of `pending:{tag}`. The field without a name is
 * the sum of all other fields. `parse_tagged` in qa_cluster/keys.py defines which keys are texts of documents
 * (tests/module/test_notes.py compares both). Other keys with the prefix do not belong to a partition yet and get no
 * note. With such a note, the worker could not decide whether the note or the document is newer.
 *
 * The scripts that put and remove documents write their own notes. The module then writes none, because the note at the
 * end of the script differs from the note before the change. An unnecessary note does no harm. */
#pragma once

#include "server/module_api.h"

typedef struct NoteStats {
    int noting; /* 0: the server cannot write in the transaction of a change (Redis 7.0) */
    unsigned long long made;
    unsigned long long refused; /* mostly of keys in migrating slots */
} NoteStats;

extern NoteStats note_stats;

int notes_on_load(RedisModuleCtx *ctx);
