/* Sessions and their registrations: which events, triggers and streams call the shard's functions. This part owns them
 * and persists them in the RDB file (auxiliary data) and, by replicating the commands that change them, in the AOF and
 * on replicas. */
#ifndef QA_REGISTRY_H
#define QA_REGISTRY_H

#include "server/module_api.h"

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
    REG_FIELDS
};

typedef enum { SOURCE_KEYS, SOURCE_COMMAND, SOURCE_STREAM } Source;

/* The state of a StreamReader; the order is that of the names in registry_stats.c. */
typedef enum { STREAM_OK, STREAM_WAITING, STREAM_ABORTED, STREAM_PAUSED } StreamStatus;

#define MAX_PAUSE_ORDER (1LL << 60) /* no time in milliseconds comes near it */

typedef struct RunCounters {
    unsigned long long triggered, succeeded, failed, aborted;
    long long last_run_us, total_run_us, last_lag_ms, total_lag_ms;
    char *last_error;
} RunCounters;

typedef struct Registration {
    RedisModuleString *fields[REG_FIELDS];
    struct Registration *next; /* of all, in order of registration */
    Source source;
    const char *match; /* the prefix, without the star; CommandReader: the trigger */
    size_t match_length;
    int match_exact;      /* no star */
    int in_order;         /* CommandReader: one job at a time */
    long long timeout_ms; /* CommandReader: as jobs_submit_blocking takes it */
    int own;              /* a function of qa-cluster itself: it waits for no user's functions */
    int overflowed;       /* events were dropped since its last onregistered job */
    int paused;           /* StreamReader: until RG.UNPAUSEREGISTRATIONS */
    /* The number of the last RG.PAUSEREGISTRATIONS or RG.UNPAUSEREGISTRATIONS: it grows, and is odd for a pause. 0:
     * there was none. When shards differ, the greatest holds. */
    long long pause_order;
    StreamStatus status;
    RunCounters counters;
} Registration;

int registry_on_load(RedisModuleCtx *ctx);

/* How long ago sessions came by replication or from a file that the worker does not know; 0: it knows all of them. */
long long registry_stale_ms(void);
void registry_forget_stale(void);

/* Call it when the reply to QA.REGISTRATIONS changes. */
void registry_changed(void);

Registration *registry_first(void);
Registration *registry_find(RedisModuleString *id);
Registration *registry_find_trigger(RedisModuleString *trigger);
size_t registry_sessions(void);
size_t registry_registrations(void);
size_t registry_streams(void);
int registry_any_keys(void); /* is there a KeysReader registration? */

/* 0: no KeysReader registration takes this key. It is cheap, by the key's first byte, because most keys concern no
 * registration. */
int registry_may_match_key(const char *key, size_t length);

int registration_matches_key(const Registration *registration, const char *key, size_t length);
int registration_wants_event(const Registration *registration, const char *event);
/* Is `word` (lower case) in the comma separated list? */
int registration_list_has(RedisModuleString *list, const char *word, size_t length);

/* Forgets one registration; 0 when there is none with this id. */
int registry_remove(RedisModuleString *id);

#endif
