/* The watched questions of index keys (index.h explains watched questions). They belong to the name of a key, because
 * an answer may also depend on the absence of the key.
 *
 * Clients that track keys (CLIENT TRACKING .. BCAST PREFIX watched:) learn of a dropped question by a change of the key
 * `watched:<key>:<name>`, which never has a value. The server sends it before the reply to the write that has dropped
 * the question. Many questions that are dropped together are one change of `watched:<key>:`: any question of the key
 * may be among them.
 *
 * A timer does the comparisons for long documents, and frees the memory of many dropped questions, in steps of at most
 * a millisecond.
 *
 * Only the changes by QA.INDEX.PUT, QA.INDEX.DEL and the commands for documents in parts are compared in detail. Every
 * other change of a key (load, restore, rename, move, flush, overwrite) drops all its questions. Questions are only in
 * memory: a restart drops them without a message, and clients notice the lost connection. A replica compares replicated
 * writes as its primary does, because it may have been a primary before. */
#ifndef QA_WATCHED_H
#define QA_WATCHED_H

#include "index/index.h"
#include "server/module_api.h"

typedef struct Watched {
    IndexWatch *watch;
    RedisModuleCtx *ctx; /* of the current call */
    RedisModuleString *key;
    size_t before; /* the number of questions at its start */
} Watched;

typedef struct WatchedTotals {
    uint64_t questions, bytes, dropped;
} WatchedTotals;

int watched_on_load(RedisModuleCtx *ctx);

/* The questions of a key that is about to change, or NULL. watched_end, which also compares the frequencies, must
 * return them. The context of the library's calls is the value itself. Between both calls no key may be opened or
 * signalled. */
Watched *watched_begin(RedisModuleCtx *ctx, RedisModuleString *key);
void watched_end(Watched *watched, Index *index);

/* Watches a question and returns its token. 0: the index has changed so that the answer may change, or the limit is
 * reached and this key has no question to drop. */
uint64_t watched_add(RedisModuleCtx *ctx, RedisModuleString *key, Index *index, IndexWatched *question);
uint64_t watched_token(RedisModuleString *key, const void *name, size_t length);

WatchedTotals watched_totals(void);

#endif
