/* Sessions and their registrations: which events, triggers and streams call the functions of the shard.
 *
 * This part owns the registrations. It saves them in the RDB file as auxiliary data. The commands that change them are
 * replicated, so that the AOF and the replicas have them too. */
#ifndef QA_REGISTRY_H
#define QA_REGISTRY_H

#include <stdint.h>

#include "server/module_api.h"

/* The arguments of a registration in QA.REGISTER, in this order. */
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
    struct Registration *next; /* in the list of all registrations, in the order of registration */
    Source source;
    const char *match; /* the prefix without the star; the trigger of a CommandReader */
    size_t match_length;
    int match_exact;      /* the pattern has no star */
    int in_order;         /* CommandReader: its jobs run one at a time */
    long long timeout_ms; /* CommandReader: as jobs_submit_blocking takes it */
    int own;              /* the class is `own`: its jobs never wait behind user functions */
    int cost_from;        /* the first argument of a trigger that counts as one unit of cost; 0: no argument counts */
    int overflowed;       /* the queue has dropped events since the last onregistered job */
    int paused;           /* StreamReader: until RG.UNPAUSEREGISTRATIONS */
    /* The number of the last RG.PAUSEREGISTRATIONS (odd) or RG.UNPAUSEREGISTRATIONS (even); 0: no such command has run.
     * The numbers of a registration grow. When shards differ, the greatest number is valid. */
    long long pause_order;
    StreamStatus status;
    RunCounters counters;
} Registration;

/* The ids of removed registrations (scripts/gears/tombstones.h), as the registry sees them. */
typedef struct RegistryTombstones {
    int (*has)(RedisModuleString *id);
    size_t (*count)(void);
    void (*clear)(void);
    void (*save)(RedisModuleIO *rdb);
    int (*load)(RedisModuleIO *rdb);        /* 0: the file is damaged */
    void (*replicate)(RedisModuleCtx *ctx); /* to the replicas and the AOF */
} RegistryTombstones;

int registry_on_load(RedisModuleCtx *ctx);

/* Call it once, at load time. `tombstones` must live as long as the module. */
void registry_attach(const RegistryTombstones *tombstones);

/* For how many milliseconds the registry has had sessions that the worker does not know, because they arrived by
 * replication or from a file. 0: the worker knows all sessions. */
long long registry_stale_ms(void);
void registry_forget_stale(void);

/* Call it when the reply to QA.REGISTRATIONS changes. */
void registry_changed(void);

Registration *registry_first(void);
/* NULL: there is no such registration. */
Registration *registry_find(RedisModuleString *id);
Registration *registry_find_trigger(RedisModuleString *trigger);
size_t registry_sessions(void);
size_t registry_registrations(void);
size_t registry_streams(void);
/* How many sessions were not loaded because their signature was missing or wrong. */
unsigned long long registry_refused(void);
int registry_any_keys(void); /* 1: there is a KeysReader registration */

/* 0: no KeysReader registration matches this key. The check is cheap: it reads only the first byte of the key. */
int registry_may_match_key(const char *key, size_t length);

int registration_matches_key(const Registration *registration, const char *key, size_t length);
int registration_wants_event(const Registration *registration, const char *event);
/* 1: the comma-separated list has `word` (lower case). */
int registration_list_has(RedisModuleString *list, const char *word, size_t length);

/* Removes one registration; 0: no registration has this id. */
int registry_remove(RedisModuleString *id);

#endif
