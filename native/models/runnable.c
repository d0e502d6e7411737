/* runnable.h explains the ownership of models and scripts. */
#include "models/runnable.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "jobs/jobs.h"
#include "server/keyspace.h"

static Runnable *registry; /* all existing values; they are few, so a list is enough */
static uint64_t next_ref = 1;

static pthread_mutex_t dead_lock = PTHREAD_MUTEX_INITIALIZER;
static Runnable *dead; /* guarded by dead_lock */

void runnable_init(Runnable *runnable, const RunnableClass *class, const char *device) {
    atomic_init(&runnable->refs, 1);
    runnable->class = class;
    runnable->ref = next_ref++;
    snprintf(runnable->device, sizeof runnable->device, "%s", device);
    runnable->tag = text_new("", 0);
    runnable->key = text_new("", 0);
    runnable->failure = text_new("", 0);
    runnable->next = registry;
    registry = runnable;
}

Runnable *runnable_retain(Runnable *runnable) {
    atomic_fetch_add_explicit(&runnable->refs, 1, memory_order_relaxed);
    return runnable;
}

/* ---- Freeing ---- */

static int emit_drop(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithLongLong(ctx, *(long long *)data);
    return 1;
}

static void free_drop(void *data) { RedisModule_Free(data); }

static const JobClass DROP = {.kind = "model.drop", .emit = emit_drop, .free = free_drop, .before_ready = 1};

static void notify_drop(uint64_t ref) {
    long long *data = RedisModule_Alloc(sizeof *data);
    *data = (long long)ref;
    jobs_notify(&DROP, data);
}

static void bury(Runnable *runnable) {
    Runnable **link = &registry;
    while (*link != runnable) link = &(*link)->next;
    *link = runnable->next;
    if (runnable->worker_knows) notify_drop(runnable->ref);
    RedisModule_Free(runnable->tag.data);
    RedisModule_Free(runnable->key.data);
    RedisModule_Free(runnable->failure.data);
    runnable->class->free(runnable);
}

static void bury_dead(void *unused) {
    (void)unused;
    pthread_mutex_lock(&dead_lock);
    Runnable *list = dead;
    dead = NULL;
    pthread_mutex_unlock(&dead_lock);
    while (list) {
        Runnable *runnable = list;
        list = runnable->next_dead;
        bury(runnable);
    }
}

void runnable_release(Runnable *runnable) {
    if (atomic_fetch_sub_explicit(&runnable->refs, 1, memory_order_acq_rel) != 1) return;
    runnable->class->free_bytes(runnable);
    pthread_mutex_lock(&dead_lock);
    int first = dead == NULL;
    runnable->next_dead = dead;
    dead = runnable;
    pthread_mutex_unlock(&dead_lock);
    if (first) RedisModule_EventLoopAddOneShot(bury_dead, NULL); /* allowed on any thread */
}

/* ---- Registry ---- */

/* Adds a reference and returns 1. 0: the last reference was already released. (Another thread may release a reference
 * at any time.) */
static int try_retain(Runnable *runnable) {
    unsigned refs = atomic_load_explicit(&runnable->refs, memory_order_relaxed);
    while (refs > 0)
        if (atomic_compare_exchange_weak_explicit(&runnable->refs, &refs, refs + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return 1;
    return 0;
}

/* Returns a new reference to the value with this ref and this class (NULL: any class). Returns NULL if there is no such
 * value, or if its last reference was already released. */
static Runnable *by_ref(const RunnableClass *class, uint64_t ref) {
    for (Runnable *runnable = registry; runnable; runnable = runnable->next)
        if (runnable->ref == ref && (!class || runnable->class == class)) return try_retain(runnable) ? runnable : NULL;
    return NULL;
}

Runnable *runnable_by_ref_or_reply(RedisModuleCtx *ctx, const RunnableClass *class, RedisModuleString *number) {
    long long ref;
    char error[64];
    const char *noun = class ? class->noun : "model or script";
    Runnable *runnable = NULL;
    if (RedisModule_StringToLongLong(number, &ref) != REDISMODULE_OK || ref < 1)
        snprintf(error, sizeof error, "ERR %s ref must be a positive integer", noun);
    else if (!(runnable = by_ref(class, (uint64_t)ref)))
        snprintf(error, sizeof error, "ERR no such %s: %lld", noun, ref);
    if (!runnable) RedisModule_ReplyWithError(ctx, error);
    return runnable;
}

void runnable_each(const RunnableClass *class, void (*visit)(Runnable *runnable, void *data), void *data) {
    for (Runnable *runnable = registry; runnable; runnable = runnable->next)
        if (runnable->class == class) visit(runnable, data);
}

void runnable_each_refused(void (*visit)(const Runnable *runnable, void *data), void *data) {
    for (Runnable *runnable = registry; runnable; runnable = runnable->next)
        if (runnable->failures >= REFUSED_AFTER) visit(runnable, data);
}

void runnable_reply_trial(RedisModuleCtx *ctx, const Runnable *runnable) {
    RedisModule_ReplyWithLongLong(ctx, runnable->failures);
    RedisModule_ReplyWithStringBuffer(ctx, runnable->failure.data, runnable->failure.length);
    RedisModule_ReplyWithLongLong(ctx, runnable->passed);
}

void runnable_remember_key(Runnable *runnable, const RedisModuleString *name) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(name, &length);
    if (runnable->key.length == length && !memcmp(runnable->key.data, text, length)) return;
    text_set(&runnable->key, text, length);
}

void runnable_renamed(RedisModuleCtx *ctx, RedisModuleType *type, RedisModuleString *name) {
    void *value;
    if (keyspace_peek(ctx, name, type, &value) != KEY_FOUND) return;
    runnable_remember_key(value, name);
}

int runnable_load(RedisModuleIO *io, Runnable *runnable) {
    Text device = text_new("", 0);
    int good = text_load(io, DEVICE_MAX, &device) && device_parse(device.data, device.length, runnable->device);
    RedisModule_Free(device.data);
    if (!good || !text_load(io, TEXT_MAX, &runnable->tag)) return 0;
    const RedisModuleString *name = RedisModule_GetKeyNameFromIO(io);
    if (name) runnable_remember_key(runnable, name);
    return 1;
}

void runnable_save(RedisModuleIO *io, const Runnable *runnable) {
    RedisModule_SaveStringBuffer(io, runnable->device, strlen(runnable->device));
    text_save(io, &runnable->tag);
}

size_t runnable_memory(const Runnable *runnable) {
    return RedisModule_MallocSize(runnable->tag.data) + RedisModule_MallocSize(runnable->key.data) +
           RedisModule_MallocSize(runnable->failure.data);
}

const char *runnable_backend(const Runnable *runnable) {
    return runnable->class->backend ? runnable->class->backend : runnable->class->backend_of(runnable);
}

void runnable_count(Runnable *runnable, int failed, long long duration_us, long long samples) {
    runnable->stats.calls++;
    if (failed) {
        runnable->stats.errors++;
        return;
    }
    runnable->stats.duration_us += duration_us;
    runnable->stats.samples += samples;
}

int device_parse(const char *text, size_t length, char *device) {
    if (length < 3 || length > DEVICE_MAX) return 0;
    for (size_t i = 0; i < length; i++) device[i] = (char)toupper((unsigned char)text[i]);
    device[length] = '\0';
    if (strncmp(device, "CPU", 3) && strncmp(device, "GPU", 3)) return 0;
    if (length == 3) return 1;
    if (device[3] != ':' || length == 4) return 0;
    return strspn(device + 4, "0123456789") == length - 4;
}
