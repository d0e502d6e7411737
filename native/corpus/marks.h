/* Marks: a key of the type qa-mark__ holds a text that stands until a key that begins with one of its prefixes is
 * written, removed or lost. So whoever has looked at all such keys can tell later, also after a crash, that they still
 * are what he has seen.
 *
 * A change is noticed by its keyspace event, within the command that makes it, and shows in the value only: nothing is
 * written to another key then. It is noticed alike on the server that gets the command, on its replicas, and when an
 * append-only file is read; and a saved data set holds the mark as it stood at that moment. So a mark and the keys that
 * it is about always belong together. What comes by RESTORE, as a key does whose slot moves, was about the keys of
 * another server and does not stand.
 *
 * Threads. The server may free a value on a thread of its own, so the list of all marks has a lock. */
#ifndef QA_MARKS_H
#define QA_MARKS_H

#include "server/module_api.h"

/* QA.MARK.SET, QA.MARK.GET. */
int marks_on_load(RedisModuleCtx *ctx);

#endif
