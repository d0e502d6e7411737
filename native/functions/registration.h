/* A registration: which events, trigger or stream call a function of the shard. Its source is a KeysReader (events of
 * keys), a CommandReader (a trigger: a name that clients call with RG.TRIGGER) or a StreamReader (entries of streams).
 */
#pragma once

#include "server/module_api.h"

/* The arguments of a registration in QA.REGISTER, in order. */
enum {
    REG_ID,
    REG_SOURCE,
    REG_MODE,
    REG_DESCRIPTION,
    REG_MATCH,
    REG_EVENTS,
    REG_COMMANDS,
    REG_ARGS,
    REG_PRIVATE_DATA,
    REG_CLASS,
    REG_COST_FROM,
    REG_FIELDS
};

typedef enum { SOURCE_KEYS, SOURCE_COMMAND, SOURCE_STREAM } Source;

/* The status of a StreamReader. scripts/gears/stream.c has the names, in the same order. */
typedef enum { STREAM_OK, STREAM_WAITING, STREAM_ABORTED, STREAM_PAUSED } StreamStatus;

#define MAX_PAUSE_ORDER (1LL << 60) /* far above any clock in milliseconds */

typedef struct RunCounters {
    unsigned long long triggered, succeeded, failed, aborted;
    long long last_run_us, total_run_us, last_lag_ms, total_lag_ms;
    char *last_error;
} RunCounters;

typedef struct Registration {
    RedisModuleString *fields[REG_FIELDS];
    struct Registration *next; /* in the list of all registrations, oldest first */
    Source source;
    const char *match; /* the prefix of keys, from a pattern such as `prefix*`; for a CommandReader the trigger */
    size_t match_length;
    int match_exact;      /* 1: the pattern has no star, so `match` is the whole key */
    int in_order;         /* 1: CommandReader whose jobs run one at a time */
    long long timeout_ms; /* the time limit, in the form that jobs_submit_blocking expects */
    int own; /* 1: REG_CLASS is `own`: a function of qa-cluster, whose jobs never wait for jobs of user functions */
    int cost_from; /* every argument of the trigger from this position on adds 1 to the cost of a job; 0: no argument */
    int overflowed; /* 1: the queue has dropped events since the last onregistered job (registry_stats.h) */
    int paused;     /* StreamReader: 1 until RG.UNPAUSEREGISTRATIONS */
    /* The number of the last RG.PAUSEREGISTRATIONS (odd) or RG.UNPAUSEREGISTRATIONS (even) of this registration. Each
     * of these commands gets a higher number than the commands before. 0: neither command has run. If the numbers of
     * two shards differ, the larger number wins. */
    long long pause_order;
    StreamStatus status;
    RunCounters counters;
} Registration;

/* Makes a registration. Takes ownership of the REG_FIELDS strings of `fields`. Does not check the fields:
 * registration_check does. */
Registration *registration_new(RedisModuleString **fields);
void registration_free(Registration *registration);

/* These checks return NULL, or an error line (to be freed). */
RedisModuleString *registration_check(RedisModuleCtx *ctx, const Registration *registration);
/* Checks REG_CLASS and REG_COST_FROM only. */
RedisModuleString *registration_check_class(RedisModuleString *const *fields);
/* Returns an error if `other` has the same id or the same trigger as `mine`. */
RedisModuleString *registration_check_conflict(const Registration *mine, const Registration *other);

int registration_same(RedisModuleString *a, RedisModuleString *b); /* 1: the strings have the same bytes */
int registration_matches_key(const Registration *registration, const char *key, size_t length);
int registration_wants_event(const Registration *registration, const char *event);
/* 1: the comma-separated list has `word` (lower case). */
int registration_list_has(RedisModuleString *list, const char *word, size_t length);
