/* The watched questions of index keys. index.h explains watched questions: the module watches the question of a cached
 * answer, and drops the question at the first write that may change the answer. The questions belong to the name of an
 * index key, not to its value, because the key may still be missing when a client asks.
 *
 * REPORTS. When a question is dropped, the module signals a change of the key `watched:<key>:<name>`, which never has a
 * value. Clients that track keys (CLIENT TRACKING .. BCAST PREFIX watched:) receive this change. The server sends this
 * change before the reply to the write that has dropped the question. If a write drops many questions, the module
 * signals only `watched:<key>:`. Then any question of the key may have been dropped.
 *
 * A timer does two tasks in steps of at most a millisecond: index_watch_review() after the write of a long document,
 * and freeing the memory of many dropped questions.
 *
 * The module compares only the changes of QA.INDEX.PUT, QA.INDEX.DEL, QA.INDEX.CHANGE, QA.INDEX.EMBED and the commands
 * for documents in parts with each question. Every other change of a key (load, restore, rename, move, flush,
 * overwrite) drops all questions of the key. Questions are only in memory. A restart drops all questions without a
 * report, but clients notice the lost connection. A replica compares replicated writes as its primary does, because the
 * replica may have been a primary before and may still have questions. */
#pragma once

#include "index/index.h"
#include "server/module_api.h"

/* The watched questions of one key. */
typedef struct Watched {
    IndexWatch *watch;
    RedisModuleCtx *ctx; /* the context of the command or timer that uses this structure now */
    RedisModuleString *key;
    size_t before; /* the number of questions at the start of the write */
} Watched;

typedef struct WatchedTotals {
    uint64_t questions, bytes, dropped;
} WatchedTotals;

int watched_on_load(RedisModuleCtx *ctx);

/* Call watched_begin before a change of a key, and watched_end after the change. watched_begin returns the watched
 * questions of the key. NULL: the key has no watched questions, or is not in database 0. watched_end does nothing for
 * NULL. Otherwise it compares document frequencies with their bounds (index.h), and reports the dropped questions.
 * Between both calls, do not open or signal a key. If a function of the library needs a context for IndexDropped, pass
 * the Watched that watched_begin has returned. */
Watched *watched_begin(RedisModuleCtx *ctx, RedisModuleString *key);
void watched_end(Watched *watched, Index *index);

/* Watches a question and returns its token, a number that identifies this watch. Returns 0 if index_watch_add() refuses
 * the question, for example because the index has changed and the answer may be different. Also returns 0 if the limit
 * of questions of all keys is reached, and this key has no older question to drop. */
uint64_t watched_add(RedisModuleCtx *ctx, RedisModuleString *key, Index *index, IndexWatched *question);
/* Returns the token of the watched question with this name. 0: the key has no such watched question. */
uint64_t watched_token(RedisModuleString *key, const void *name, size_t length);

WatchedTotals watched_totals(void);
