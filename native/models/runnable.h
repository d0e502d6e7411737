/* The common part of models and scripts. A script is a TorchScript (AI.SCRIPTSTORE). Models and scripts are values of
 * keys, run in the worker, and have a reference count.
 *
 * OWNERSHIP. A Runnable has a reference count: the key of a Runnable has one reference, and each job that uses the
 * Runnable has one reference. So DEL or an overwrite does not affect a current run. Each Runnable also has a unique
 * number `ref`, which identifies the Runnable in messages to the worker. The server may release a key's reference on a
 * background thread, so the count is atomic. Background threads may only release. The last release frees the bytes and
 * adds the Runnable to a list of dead Runnables. The main thread then removes the Runnable from the registry (the list
 * of all Runnables). If the worker has got the ref, the module sends the worker a notice (model.drop). */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "server/texts.h"

#define DEVICE_MAX 9
/* After this number of consecutive failures, the worker refuses the model or script until it is stored again or the
 * server restarts. */
#define REFUSED_AFTER 2

typedef struct RunStats {
    long long duration_us, samples, calls, errors;
} RunStats;

typedef struct Runnable Runnable;

typedef struct RunnableClass {
    const char *type;    /* the type that AI.INFO shows: MODEL, SCRIPT */
    const char *noun;    /* the word for a value of the class in errors: model, script */
    const char *backend; /* the backend of all values of the class; NULL: `backend_of`
                          * returns the backend of each value */
    const char *(*backend_of)(const Runnable *runnable); /* used if `backend` is NULL */
    int counts_samples;                                  /* 1: AI.INFO shows the number of samples; 0: it shows -1 */
    void (*free_bytes)(Runnable *runnable);              /* on any thread: frees the large part */
    void (*free)(Runnable *runnable);                    /* on the main thread: frees the remaining memory */
} RunnableClass;

/* The first member of a Model and of a Script. */
struct Runnable {
    const RunnableClass *class;
    atomic_uint refs;
    uint64_t ref;
    char device[DEVICE_MAX + 1]; /* upper case */
    Text tag;
    RunStats stats;
    Text key;         /* the last known name of its key */
    int worker_knows; /* 1: a worker has got its ref */
    int failures;     /* how many loads and runs in a row have ended the model's process or exceeded a limit */
    Text failure;     /* the reason of the last failure */
    int passed;       /* 1: it was loaded and run within the limits (QA.TRIAL with PASSED) */
    Runnable *next;   /* the next in the registry */
    Runnable *next_dead;
};

/* Gives the runnable a new ref and one reference, and adds it to the registry. */
void runnable_init(Runnable *runnable, const RunnableClass *class, const char *device);
Runnable *runnable_retain(Runnable *runnable);
void runnable_release(Runnable *runnable);

/* Replies with three elements: the number of failures in a row, the reason of the last failure, and `passed`. */
void runnable_reply_trial(RedisModuleCtx *ctx, const Runnable *runnable);

/* Returns a new reference to the value with this class (NULL: any class) and the ref in `number`. NULL: there is no
 * such value, and the function has replied with an error. */
Runnable *runnable_by_ref_or_reply(RedisModuleCtx *ctx, const RunnableClass *class, RedisModuleString *number);
/* Calls `visit` with `data` for every registered value of the class. `visit` must not read the bytes of the value,
 * because they may already be freed. */
void runnable_each(const RunnableClass *class, void (*visit)(Runnable *runnable, void *data), void *data);

/* Calls `visit` with `data` for every model and script that the worker refuses (REFUSED_AFTER). */
void runnable_each_refused(void (*visit)(const Runnable *runnable, void *data), void *data);

/* Stores the name of the value's key in `runnable`. The worker loads a model or script before the module stores it in
 * its key. Call this function before that load, so that an error of the load can name the key. */
void runnable_remember_key(Runnable *runnable, const RedisModuleString *name);
/* Handles the event rename_to: if the key `name` has a value of this type, stores the new name in the value. */
void runnable_renamed(RedisModuleCtx *ctx, RedisModuleType *type, RedisModuleString *name);
/* Reads device and tag from an RDB file and remembers the name of the key. 0: the file is damaged. */
int runnable_load(RedisModuleIO *io, Runnable *runnable);
void runnable_save(RedisModuleIO *io, const Runnable *runnable);
/* Returns the bytes of memory that a Runnable owns outside its struct. */
size_t runnable_memory(const Runnable *runnable);

const char *runnable_backend(const Runnable *runnable);

/* Counts a run that has ended, for AI.INFO. If the run failed, `duration_us` and `samples` are ignored. */
void runnable_count(Runnable *runnable, int failed, long long duration_us, long long samples);

/* Writes a device in upper case to `device`, which must have DEVICE_MAX + 1 bytes. `text` is CPU, GPU, CPU:n or GPU:n,
 * in upper or lower case; n is a number. Returns 0 if `text` is not such a device, else 1. */
int device_parse(const char *text, size_t length, char *device);
