/* The watched questions of index keys (index.h explains watched questions). They belong to the name of a key, not to
 * its value, because the answer to a question may depend on a missing key.
 *
 * REPORTS. When a question is dropped, the module signals a change of the key `watched:<key>:<name>`, which never has a
 * value. Clients that track keys (CLIENT TRACKING .. BCAST PREFIX watched:) receive this change. The server sends this
 * change before the reply to the write that has dropped the question. If a write drops many questions, the module
 * signals only `watched:<key>:`. Then any question of the key may have been dropped.
 *
 * A timer does two tasks in steps of at most a millisecond: the comparisons for long documents, and freeing the memory
 * of many dropped questions.
 *
 * The module compares only the changes of QA.INDEX.PUT, QA.INDEX.DEL, QA.INDEX.CHANGE, QA.INDEX.EMBED and the commands
 * for documents in parts with each question. Every other change of a key (load, restore, rename, move, flush,
 * overwrite) drops all questions of the key. Questions are only in memory. A restart drops them without a report, but
 * clients notice the lost connection. A replica compares replicated writes as its primary does, because it may have
 * been a primary before and may still have questions. */
#pragma once

#include "index/index.h"
#include "server/module_api.h"

typedef struct Watched {
    IndexWatch *watch;
    RedisModuleCtx *ctx; /* of the current call */
    RedisModuleString *key;
    size_t before; /* the number of questions at the start of the write */
} Watched;

typedef struct WatchedTotals {
    uint64_t questions, bytes, dropped;
} WatchedTotals;

int watched_on_load(RedisModuleCtx *ctx);

/* Call it before a change of a key. Returns the questions of the key, or NULL. Call watched_end after the change; it
 * also compares the frequencies. Between both calls, pass the returned value as context to the library, and do not open
 * or signal a key. */
Watched *watched_begin(RedisModuleCtx *ctx, RedisModuleString *key);
void watched_end(Watched *watched, Index *index);

/* Watches a question and returns its token. Returns 0 if the index has changed and the answer may be different. Also
 * returns 0 if the limit is reached and this key has no question to drop. */
uint64_t watched_add(RedisModuleCtx *ctx, RedisModuleString *key, Index *index, IndexWatched *question);
uint64_t watched_token(RedisModuleString *key, const void *name, size_t length);

WatchedTotals watched_totals(void);
