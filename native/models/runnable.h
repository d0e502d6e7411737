/* What models and scripts have in common: they live behind a key, run in the worker and have a reference count.
 *
 * Ownership. The key of a Runnable holds one reference and every job that names it holds one, so a DEL or an overwrite
 * during a run does not disturb the run. Each has a number of its own, `ref`, by which the worker knows it; nothing
 * reuses the number. The server may drop a key's reference on a background thread. Therefore the count is atomic and
 * the last release frees only the bytes; the rest goes onto a list for the main thread, which takes the value out of
 * the registry and sends the worker a notice (model.drop). Other threads may only release. */
#ifndef QA_RUNNABLE_H
#define QA_RUNNABLE_H

#include <stdatomic.h>
#include <stdint.h>

#include "server/texts.h"

#define DEVICE_MAX 9

typedef struct RunStats {
    long long duration_us, samples, calls, errors;
} RunStats;

typedef struct Runnable Runnable;

typedef struct RunnableClass {
    const char *type;                                    /* as AI.INFO says it: MODEL, SCRIPT */
    const char *noun;                                    /* in errors */
    const char *backend;                                 /* of all of them; NULL: each has its own */
    const char *(*backend_of)(const Runnable *runnable); /* when `backend` is NULL */
    int counts_samples;
    void (*free_bytes)(Runnable *runnable); /* on any thread: the part that is large */
    void (*free)(Runnable *runnable);       /* on the main thread: all the rest, and the memory itself */
} RunnableClass;

/* The first member of a Model and of a Script. */
struct Runnable {
    const RunnableClass *class;
    atomic_uint refs;
    uint64_t ref;
    char device[DEVICE_MAX + 1]; /* upper case */
    Text tag;
    RunStats stats;
    Text key;         /* the name under which it was last seen */
    int worker_knows; /* its ref was given to a worker */
    Runnable *next;   /* in the registry */
    Runnable *next_dead;
};

/* Gives it a fresh ref and one reference, and registers it. */
void runnable_init(Runnable *runnable, const RunnableClass *class, const char *device);
Runnable *runnable_retain(Runnable *runnable);
void runnable_release(Runnable *runnable);

/* A new reference to the live one of that class with the ref that the worker gave; NULL when it sent an error. */
Runnable *runnable_by_ref_or_reply(RedisModuleCtx *ctx, const RunnableClass *class, RedisModuleString *number);
/* Calls `visit` for every registered one of the class. `visit` must not read the bytes: the last reference may just
 * have gone. */
void runnable_each(const RunnableClass *class, void (*visit)(Runnable *runnable, void *data), void *data);

void runnable_remember_key(Runnable *runnable, const char *name, size_t length);
/* For the rename_to event: gives the value of this type at `name`, if there is one, that name. */
void runnable_renamed(RedisModuleCtx *ctx, RedisModuleType *type, RedisModuleString *name);
/* Reads device and tag from an RDB file and notes the key's name. 0: damaged. */
int runnable_load(RedisModuleIO *io, Runnable *runnable);
void runnable_save(RedisModuleIO *io, const Runnable *runnable);
/* The memory that a Runnable itself owns outside its struct. */
size_t runnable_memory(const Runnable *runnable);

const char *runnable_backend(const Runnable *runnable);

/* Counts a run that has ended. `duration_us` and `samples` count when it did not fail. */
void runnable_count(Runnable *runnable, int failed, long long duration_us, long long samples);

/* Takes CPU, GPU, CPU:n, GPU:n in any case and puts it in upper case. `device` has room for DEVICE_MAX + 1. */
int device_parse(const char *text, size_t length, char *device);

#endif
