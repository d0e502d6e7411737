/* The module's sections of INFO. A crash report contains only the sections of the worker and the queue. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "corpus/notes.h"
#include "corpus/stored_index.h"
#include "corpus/watched.h"
#include "functions/hook.h"
#include "functions/registry.h"
#include "functions/tombstones.h"
#include "jobs/jobs.h"
#include "models/model.h"
#include "scripts/gears/stream.h"
#include "server/bus.h"
#include "server/config.h"
#include "server/links.h"
#include "server/server.h"
#include "worker/beat.h"
#include "worker/supervisor.h"

static void number(RedisModuleInfoCtx *info, const char *field, unsigned long long value) {
    RedisModule_InfoAddFieldULongLong(info, field, value);
}

static void add_worker(RedisModuleInfoCtx *info) {
    const WorkerInfo *worker = supervisor_info();
    RedisModule_InfoAddSection(info, "worker");
    RedisModule_InfoAddFieldCString(info, "worker_state", worker->state_name);
    RedisModule_InfoAddFieldLongLong(info, "worker_pid", worker->pid);
    RedisModule_InfoAddFieldLongLong(info, "worker_number", worker->number);
    number(info, "worker_restarts", worker->restarts);
    number(info, "worker_killed", worker->killed);
    RedisModule_InfoAddFieldCString(info, "worker_last_exit", worker->last_exit);
    RedisModule_InfoAddFieldLongLong(info, "worker_silence_ms", supervisor_silence_ms());
    RedisModule_InfoAddFieldLongLong(info, "worker_inactive_ms", supervisor_inactive_ms());
    number(info, "worker_links", (unsigned long long)link_count());
    RedisModule_InfoAddFieldLongLong(info, "worker_peak_rss_bytes", beat_peak_rss_bytes());
    beat_add_info(info, BEAT_OF_WORKER);
}

enum { REFUSED_SHOWN = 16, REFUSED_TEXT = 400 };

typedef struct Refused {
    RedisModuleInfoCtx *info;
    int found;
} Refused;

/* Adds the key of a model or script that the worker refuses after repeated failures (models/runnable.h), with the
 * reason of the last failure. Replaces bytes that are not printable, because a key can contain any bytes. Also replaces
 * `=`, because clients read a value with `=` as a dictionary. */
static void add_refused(const Runnable *runnable, void *data) {
    Refused *refused = data;
    char field[32], text[REFUSED_TEXT];
    if (refused->found++ >= REFUSED_SHOWN) return;
    snprintf(field, sizeof field, "model_refused_%d", refused->found);
    snprintf(text, sizeof text, "%s: %s", runnable->key.data, runnable->failure.data);
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || (unsigned char)*at > '~' || *at == '=') *at = '?';
    RedisModule_InfoAddFieldCString(refused->info, field, text);
}

static void add_inference(RedisModuleInfoCtx *info) {
    RedisModule_InfoAddSection(info, "inference");
    beat_add_info(info, BEAT_OF_INFERENCE);
    Refused refused = {info, 0};
    runnable_each_refused(add_refused, &refused);
    number(info, "models_refused", (unsigned long long)refused.found);
}

static void add_queue(RedisModuleInfoCtx *info) {
    RedisModule_InfoAddSection(info, "queue");
    number(info, "queued_clients", jobs_queued_clients());
    number(info, "queued_bulk", queues_bulk());
    number(info, "queue_users", queues_users());
    number(info, "queue_pushed_out", jobs_pushed_out());
    number(info, "worker_ahead", queues_ahead());
    number(info, "queued_events", jobs_queued_events());
    number(info, "queued_notices", queues_length(QUEUE_OF_NOTICES));
    number(info, "in_flight", jobs_running());
    RedisModule_InfoAddFieldLongLong(info, "max_queue", config.max_queue);
    RedisModule_InfoAddFieldLongLong(info, "max_events", config.max_events);
    number(info, "sessions", registry_sessions());
    number(info, "registrations", registry_registrations());
    number(info, "unregistered_ids", tombstones_count());
    number(info, "sessions_refused", sessions_refused());
    number(info, "hook_hits", hook_stats.hits);
    number(info, "hook_misses", hook_stats.misses);
    number(info, "hook_inferences", hook_stats.inferences);
    number(info, "events_dropped", hook_stats.dropped_events);
}

static void add_index(RedisModuleInfoCtx *info) {
    StoredTotals totals = stored_index_totals();
    RedisModule_InfoAddSection(info, "index");
    number(info, "indexes", totals.indexes);
    number(info, "index_documents", totals.documents);
    number(info, "index_sentences", totals.sentences);
    number(info, "index_bytes", totals.bytes);
    WatchedTotals watched = watched_totals();
    number(info, "watched_questions", watched.questions);
    number(info, "watched_bytes", watched.bytes);
    number(info, "watched_dropped", watched.dropped);
    RedisModule_InfoAddFieldCString(info, "text_notes", note_stats.noting ? "on" : "off");
    number(info, "text_notes_made", note_stats.made);
    number(info, "text_notes_refused", note_stats.refused);
}

static void add_bus(RedisModuleInfoCtx *info) {
    BusInfo bus = bus_info();
    RedisModule_InfoAddSection(info, "bus");
    RedisModule_InfoAddFieldCString(info, "bus_key", bus.key);
    number(info, "bus_messages_sent", bus.sent);
    number(info, "bus_messages_received", bus.received);
    number(info, "bus_messages_refused", bus.refused);
}

/* Adds fields with RedisGears' names. The memory fields show the worker's resident memory. RedisGears shows the memory
 * of its allocator. */
static void add_gears(RedisModuleInfoCtx *info) {
    const JobKindStats *stats;
    const char *kind;
    unsigned long long executions = stream_batches();
    for (int i = 0; (stats = job_stats_at(i, &kind)); i++)
        if (!strcmp(kind, "script") || !strcmp(kind, "trigger") || !strcmp(kind, "event"))
            executions += stats->submitted;
    RedisModule_InfoAddSection(info, "rg");
    number(info, "rg_nexecutions", executions);
    number(info, "rg_nregistrations", registry_registrations());
    RedisModule_InfoAddFieldLongLong(info, "rg_TotalAllocated", beat_peak_rss_bytes());
    RedisModule_InfoAddFieldLongLong(info, "rg_PeakAllocated", beat_peak_rss_bytes());
    RedisModule_InfoAddFieldLongLong(info, "rg_CurrAllocated", beat_rss_bytes());
}

/* Returns the processor time of the worker in seconds: fields 14 and 15 of its /proc stat line. Counts the fields after
 * the last parenthesis, because the name of the process may contain spaces. */
static double worker_cpu_seconds(pid_t pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = pid ? fopen(path, "r") : NULL;
    if (!file) return 0;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    const char *after = strrchr(line, ')');
    unsigned long long user = 0, system = 0;
    if (!after || sscanf(after, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        return 0;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* Adds fields with RedisAI's names. RedisAI shows the processor time of each queue, one for each device. This module
 * shows the processor time of the worker as the time of the queue for the CPU. */
static void add_ai(RedisModuleInfoCtx *info) {
    RedisModule_InfoAddSection(info, "ai");
    number(info, "ai_RedisAI_version", QA_MODULE_VERSION);
    number(info, "ai_low_level_API_version", QA_MODULE_VERSION);
    number(info, "ai_rdb_version", MODEL_ENCVER);
    const WorkerBackend *backends = supervisor_info()->backends;
    for (int i = 0; i < WORKER_BACKENDS && *backends[i].name; i++) {
        char field[BACKEND_TEXT + 16];
        /* RedisAI writes Torch with a capital letter */
        const char *name = strcmp(backends[i].name, "torch") ? backends[i].name : "Torch";
        snprintf(field, sizeof field, "ai_%s_version", name);
        RedisModule_InfoAddFieldCString(info, field, backends[i].version);
    }
    RedisModule_InfoAddFieldDouble(info, "ai_queue_CPU_bthread_n1_used_cpu_total",
                                   worker_cpu_seconds(supervisor_info()->pid));
}

static void add_jobs(RedisModuleInfoCtx *info) {
    const JobKindStats *stats;
    const char *kind;
    RedisModule_InfoAddSection(info, "jobs");
    for (int i = 0; (stats = job_stats_at(i, &kind)); i++) {
        char field[64];
        snprintf(field, sizeof field, "jobs_%s", kind);
        RedisModule_InfoBeginDictField(info, field);
        number(info, "submitted", stats->submitted);
        number(info, "ok", stats->ok);
        number(info, "overridden", stats->overridden);
        number(info, "skipped", stats->skipped);
        number(info, "failed", stats->failed);
        number(info, "deadline", stats->expired);
        number(info, "lost", stats->lost);
        number(info, "client_gone", stats->client_gone);
        number(info, "aborted", stats->aborted);
        number(info, "refused", stats->refused);
        number(info, "retried", stats->retried);
        RedisModule_InfoEndDictField(info);
    }
}

/* Returns the quantile `p` (0 to 1) of the durations, as the upper bound of its bucket in microseconds. Returns 0 if
 * there are no durations. */
static unsigned long long percentile(const unsigned long long *buckets, double p) {
    unsigned long long total = 0, seen = 0;
    for (int i = 0; i < JOB_LATENCY_BUCKETS; i++) total += buckets[i];
    for (int i = 0; i < JOB_LATENCY_BUCKETS; i++) {
        seen += buckets[i];
        if (total && (double)seen >= p * (double)total) return 1ULL << i;
    }
    return 0;
}

/* Adds the quantiles 0.50 and 0.99, and the non-empty buckets, of one kind of jobs. `what` is queue (the time in the
 * queue) or run (the time after the job was handed out). The name of a bucket contains its upper bound. */
static void add_histogram(RedisModuleInfoCtx *info, const char *kind, const char *what,
                          const unsigned long long *buckets) {
    char field[64], bound[32];
    snprintf(field, sizeof field, "latency_%s_%s_us", kind, what);
    RedisModule_InfoBeginDictField(info, field);
    number(info, "p50", percentile(buckets, 0.50));
    number(info, "p99", percentile(buckets, 0.99));
    for (int i = 0; i < JOB_LATENCY_BUCKETS; i++) {
        if (!buckets[i]) continue;
        snprintf(bound, sizeof bound, "le_%llu", 1ULL << i);
        number(info, bound, buckets[i]);
    }
    RedisModule_InfoEndDictField(info);
}

static void add_latency(RedisModuleInfoCtx *info) {
    const JobKindStats *stats;
    const char *kind;
    RedisModule_InfoAddSection(info, "latency");
    for (int i = 0; (stats = job_stats_at(i, &kind)); i++) {
        if (!stats->submitted) continue;
        add_histogram(info, kind, "queue", stats->queue_us);
        add_histogram(info, kind, "run", stats->run_us);
    }
}

static void on_info(RedisModuleInfoCtx *info, int for_crash_report) {
    add_worker(info);
    add_queue(info);
    if (for_crash_report) return;
    add_inference(info);
    add_bus(info);
    add_index(info);
    add_jobs(info);
    add_gears(info);
    add_ai(info);
    add_latency(info);
}

int info_on_load(RedisModuleCtx *ctx) { return RedisModule_RegisterInfoFunc(ctx, on_info); }
