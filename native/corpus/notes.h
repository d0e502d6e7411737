/* Notes of texts that have changed, in the keyspace: what the worker has yet to look at.
 *
 * A document's text is a plain key, so any command may write, rename, restore or remove it, and it may expire. The
 * worker hears of that by an event, which is lost when the queue is full, when the server dies, and when a replica
 * takes its place. So every change of a text also counts up a field of the hash of what is pending in the text's
 * partition, in the same transaction of AOF and replicas as the change. A worker that has lost events looks at that
 * hash, and not at every document.
 *
 * The text `paragraphs:<name>:{tag}` is noted as <name> in `pending:{tag}`; the field without a name is the sum of all
 * others. Which keys are a document's is what `parse_tagged` in qa_cluster/keys.py says (tests/module/test_notes.py
 * compares the two). Any other key behind the prefix awaits its way to its partition: it is not noted, as nothing tells
 * which is newer, an old note of it or the document.
 *
 * The scripts that put and remove documents note by themselves what they do. Their change is told from others by that:
 * at the end of the script the note is another one than before the change. A note too many does no harm. */
#ifndef QA_NOTES_H
#define QA_NOTES_H

#include "server/module_api.h"

typedef struct NoteStats {
    int noting; /* 0: the server cannot write in the transaction of a change (Redis 7.0) */
    unsigned long long made;
    unsigned long long refused; /* of keys whose slot moves, above all */
} NoteStats;

extern NoteStats note_stats;

int notes_on_load(RedisModuleCtx *ctx);

#endif
