/* The watched questions of index keys (index.h tells what they are): they belong to the name of a key, because an
 * answer may also rest on there being nothing under it.
 *
 * Clients that track keys (CLIENT TRACKING .. BCAST PREFIX watched:) learn of a dropped question as the change of
 * a key `watched:<key>:<name>` that never has a value. The server writes that before it answers the write that has
 * dropped the question, so whoever has the reply and then looks knows it. Many questions that are dropped together are
 * the change of `watched:<key>:`: any question of the key may be among them.
 *
 * What a write has to compare about a long document is compared by a timer, in steps of at most a millisecond. So is
 * freed what many questions leave.
 *
 * Only what QA.INDEX.PUT, QA.INDEX.DEL and the commands for a document in parts do is looked at closely. Whatever else
 * happens to a key (it is loaded, restored, renamed, moved, flushed, overwritten) drops all its questions. They are in
 * memory only: a restart drops them without a word, which connections notice. On a replica replicated writes are looked
 * at as on its primary, which it may have been before. */
#ifndef QA_WATCHED_H
#define QA_WATCHED_H

#include "index/index.h"
#include "server/module_api.h"

typedef struct Watched {
    IndexWatch *watch;
    RedisModuleCtx *ctx; /* of the call that is under way */
    RedisModuleString *key;
    size_t before; /* how many there were when it began */
} Watched;

typedef struct WatchedTotals {
    uint64_t questions, bytes, dropped;
} WatchedTotals;

int watched_on_load(RedisModuleCtx *ctx);

/* The questions of a key that is about to be changed, or NULL; to be given back with watched_end, which also compares
 * the frequencies. The context of the library's calls is the value itself. No key is
 * opened or announced in between. */
Watched *watched_begin(RedisModuleCtx *ctx, RedisModuleString *key);
void watched_end(Watched *watched, Index *index);

/* Watches a question; its token, or 0 when the index has changed in a way that may change the answer, or there are as
 * many questions as may be and none of this key. */
uint64_t watched_add(RedisModuleCtx *ctx, RedisModuleString *key, Index *index, IndexWatched *question);
uint64_t watched_token(RedisModuleString *key, const void *name, size_t length);

WatchedTotals watched_totals(void);

#endif
