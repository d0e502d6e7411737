/* Models: lifetime and registry. The ownership story is in model.h. */
#include "model.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "jobs.h"

static Model *registry; /* every model whose memory exists; few, so a list */
static uint64_t next_ref = 1;

static pthread_mutex_t dead_lock = PTHREAD_MUTEX_INITIALIZER;
static Model *dead; /* guarded by dead_lock */

/* ---- texts and names ---- */

Text text_new(const char *data, size_t length) {
    Text text = {length, RedisModule_Alloc(length + 1)};
    memcpy(text.data, data, length);
    text.data[length] = '\0';
    return text;
}

Names names_new(size_t n) {
    Names names = {n, n ? RedisModule_Calloc(n, sizeof(Text)) : NULL};
    for (size_t i = 0; i < n; i++) names.items[i] = text_new("", 0);
    return names;
}

void names_free(Names *names) {
    for (size_t i = 0; i < names->n; i++) RedisModule_Free(names->items[i].data);
    if (names->items) RedisModule_Free(names->items);
    *names = (Names){0, NULL};
}

/* ---- bytes ---- */

ModelBlob *model_blob_new(size_t size) {
    char *data = RedisModule_TryAlloc(size);
    if (!data) return NULL;
    ModelBlob *blob = RedisModule_Alloc(sizeof(*blob));
    atomic_init(&blob->refs, 1);
    blob->size = size;
    blob->data = data;
    return blob;
}

void model_blob_release(ModelBlob *blob) {
    if (atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) != 1) return;
    RedisModule_Free(blob->data);
    RedisModule_Free(blob);
}

/* ---- lifetime ---- */

Model *model_new(ModelBackend backend, const char *device, ModelBlob *blob) {
    Model *model = RedisModule_Calloc(1, sizeof(*model));
    atomic_init(&model->refs, 1);
    model->ref = next_ref++;
    model->backend = backend;
    snprintf(model->device, sizeof(model->device), "%s", device);
    model->tag = text_new("", 0);
    model->key = text_new("", 0);
    model->blob = blob;
    model->next = registry;
    registry = model;
    return model;
}

Model *model_retain(Model *model) {
    atomic_fetch_add_explicit(&model->refs, 1, memory_order_relaxed);
    return model;
}

static int drop_emit(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithLongLong(ctx, *(long long *)data);
    return 1;
}

static void drop_free(void *data) {
    RedisModule_Free(data);
}

static const JobClass drop_class = {.kind = "model.drop", .emit = drop_emit, .free = drop_free, .before_ready = 1};

static void notify_drop(uint64_t ref) {
    long long *data = RedisModule_Alloc(sizeof(*data));
    *data = (long long)ref;
    jobs_notify(&drop_class, data);
}

static void bury(Model *model) {
    Model **link = &registry;
    while (*link != model) link = &(*link)->next;
    *link = model->next;
    if (model->worker_knows) notify_drop(model->ref);
    names_free(&model->inputs);
    names_free(&model->outputs);
    RedisModule_Free(model->tag.data);
    RedisModule_Free(model->key.data);
    RedisModule_Free(model);
}

static void bury_dead(void *unused) {
    (void)unused;
    pthread_mutex_lock(&dead_lock);
    Model *list = dead;
    dead = NULL;
    pthread_mutex_unlock(&dead_lock);
    while (list) {
        Model *model = list;
        list = model->next_dead;
        bury(model);
    }
}

void model_release(Model *model) {
    if (atomic_fetch_sub_explicit(&model->refs, 1, memory_order_acq_rel) != 1) return;
    model_blob_release(model->blob);
    pthread_mutex_lock(&dead_lock);
    int first = dead == NULL;
    model->next_dead = dead;
    dead = model;
    pthread_mutex_unlock(&dead_lock);
    if (first) RedisModule_EventLoopAddOneShot(bury_dead, NULL); /* may be called from any thread */
}

/* ---- registry ---- */

/* A reference, unless the last one is gone: another thread may release it at any moment. */
static int try_retain(Model *model) {
    unsigned refs = atomic_load_explicit(&model->refs, memory_order_relaxed);
    while (refs > 0)
        if (atomic_compare_exchange_weak_explicit(&model->refs, &refs, refs + 1, memory_order_acquire, memory_order_relaxed))
            return 1;
    return 0;
}

Model *model_by_ref(uint64_t ref) {
    for (Model *model = registry; model; model = model->next)
        if (model->ref == ref) return try_retain(model) ? model : NULL;
    return NULL;
}

void model_each(void (*visit)(Model *model, void *data), void *data) {
    for (Model *model = registry; model; model = model->next) visit(model, data);
}

void model_remember_key(Model *model, const char *name, size_t length) {
    if (model->key.length == length && !memcmp(model->key.data, name, length)) return;
    RedisModule_Free(model->key.data);
    model->key = text_new(name, length);
}

const char *model_backend_name(ModelBackend backend) {
    return backend == MODEL_TORCH ? "TORCH" : "ONNX";
}

int model_device_parse(const char *text, size_t length, char *device) {
    if (length < 3 || length > MODEL_MAX_DEVICE) return 0;
    for (size_t i = 0; i < length; i++) device[i] = (char)toupper((unsigned char)text[i]);
    device[length] = '\0';
    if (strncmp(device, "CPU", 3) && strncmp(device, "GPU", 3)) return 0;
    if (length == 3) return 1;
    if (device[3] != ':' || length == 4) return 0;
    return strspn(device + 4, "0123456789") == length - 4;
}
