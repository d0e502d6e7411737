/* Sessions and their registrations: what the shard's functions have asked to be called for. Owns them, persists them in the
 * RDB file (auxiliary data) and, by replicating QA.REGISTER and RG.UNREGISTER, in the AOF and on replicas. */
#ifndef QA_REGISTRY_H
#define QA_REGISTRY_H

#include "jobs.h"
#include "module_api.h"

enum {
    REG_ID, REG_READER, REG_MODE, REG_DESCRIPTION, REG_MATCH, REG_EVENTS, REG_COMMANDS, REG_ARGS, REG_PRIVATE_DATA,
    REG_FIELDS
};

typedef struct Registration {
    RedisModuleString *fields[REG_FIELDS];
    struct Registration *next; /* of all, in order of registration */
    int is_keys;               /* KeysReader; else CommandReader */
    const char *match;         /* KeysReader: the prefix, without the star; CommandReader: the trigger */
    size_t match_length;
    int match_exact; /* KeysReader: no star */
    int overflowed;  /* events were dropped since its last onregistered job */
    unsigned long long triggered, succeeded, failed, aborted;
    long long last_run_us, total_run_us;
    char *last_error;
} Registration;

int registry_on_load(RedisModuleCtx *ctx);

/* For how long the worker has not known of sessions that came by replication or from a file; 0: it knows all. */
long long registry_stale_ms(void);
void registry_forget_stale(void);

Registration *registry_first(void);
Registration *registry_find(RedisModuleString *id);
Registration *registry_find_trigger(RedisModuleString *trigger);
size_t registry_sessions(void);
size_t registry_registrations(void);

int registration_matches_key(const Registration *registration, const char *key, size_t length);
int registration_wants_event(const Registration *registration, const char *event);
/* Is `word` (lower case) in the comma separated list? */
int registration_list_has(RedisModuleString *list, const char *word, size_t length);

/* A job of this registration was queued, or dropped because the queue was full; a job has ended. */
void registry_triggered(Registration *registration, int queued);
void registry_ended(RedisModuleString *id, const JobResult *result);

/* Queues the onregistered jobs of registrations that lost events, once the queue has drained to half. */
void registry_repair(RedisModuleCtx *ctx);

int registry_register_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);   /* QA.REGISTER */
int registry_sessions_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);   /* QA.SESSIONS */
int registry_dump_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);       /* RG.DUMPREGISTRATIONS */
int registry_unregister_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc); /* RG.UNREGISTER */

/* RG.UNREGISTER came over the cluster bus. */
void registry_unregister_message(RedisModuleCtx *ctx, const char *id, size_t length);

#endif
