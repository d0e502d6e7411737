/* The watched questions of index keys (index.h explains watched questions). They belong to the name of a key, because
 * an answer may also depend on the fact that the key is missing.
 *
 * REPORTS. When a question is dropped, the module signals a change of the key `watched:<key>:<name>`, which never has a
 * value. Clients that track keys (CLIENT TRACKING .. BCAST PREFIX watched:) receive this change. The server sends it
 * before the reply to the write that has dropped the question. If many questions are dropped together, the module
 * signals only `watched:<key>:`. Then any question of the key may have been dropped.
 *
 * A timer makes the comparisons for long documents, and frees the memory of many dropped questions, in steps of at most
 * a millisecond.
 *
 * Only changes by QA.INDEX.PUT, QA.INDEX.DEL and the commands for documents in parts are compared in detail. Every
 * other change of a key (load, restore, rename, move, flush, overwrite) drops all its questions. Questions are only in
 * memory. A restart drops them without a report, and clients notice the lost connection. A replica compares replicated
 * writes as its primary does, because it may have been a primary before and may still have questions. */
#ifndef QA_WATCHED_H
#define QA_WATCHED_H

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

/* Returns the questions of a key that is about to change, or NULL. watched_end must follow; it also compares the
 * frequencies. For calls of the library in between, the context is the returned value. Between both calls, no key may
 * be opened or signalled. */
Watched *watched_begin(RedisModuleCtx *ctx, RedisModuleString *key);
void watched_end(Watched *watched, Index *index);

/* Watches a question and returns its token. 0: the index has changed and the change may change the answer, or the limit
 * is reached and this key has no question to drop. */
uint64_t watched_add(RedisModuleCtx *ctx, RedisModuleString *key, Index *index, IndexWatched *question);
uint64_t watched_token(RedisModuleString *key, const void *name, size_t length);

WatchedTotals watched_totals(void);

#endif
