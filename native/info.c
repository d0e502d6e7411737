#include "info.h"

#include <stdio.h>

#include "config.h"
#include "hook.h"
#include "jobs.h"
#include "link.h"
#include "registry.h"
#include "supervisor.h"

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
    number(info, "worker_links", (unsigned long long)link_count());
    RedisModule_InfoAddFieldLongLong(info, "worker_rss_bytes", worker->beat.rss_bytes);
    RedisModule_InfoAddFieldLongLong(info, "worker_peak_rss_bytes", worker->peak_rss_bytes);
    RedisModule_InfoAddFieldLongLong(info, "worker_batches", worker->beat.batches);
    RedisModule_InfoAddFieldLongLong(info, "worker_batched_items", worker->beat.batched_items);
    RedisModule_InfoAddFieldLongLong(info, "worker_batched_tokens", worker->beat.batched_tokens);
    RedisModule_InfoAddFieldLongLong(info, "worker_padded_tokens", worker->beat.padded_tokens);
    RedisModule_InfoAddFieldLongLong(info, "worker_queue_depth", worker->beat.queue_depth);
}

static void add_queue(RedisModuleInfoCtx *info) {
    RedisModule_InfoAddSection(info, "queue");
    number(info, "queued_clients", jobs_queued_clients());
    number(info, "queued_events", jobs_queued_events());
    number(info, "queued_notices", jobs_queued_notices());
    number(info, "in_flight", jobs_running());
    RedisModule_InfoAddFieldLongLong(info, "max_queue", config.max_queue);
    RedisModule_InfoAddFieldLongLong(info, "max_events", config.max_events);
    number(info, "sessions", registry_sessions());
    number(info, "registrations", registry_registrations());
    number(info, "hook_hits", hook_stats.hits);
    number(info, "hook_misses", hook_stats.misses);
    number(info, "hook_inferences", hook_stats.inferences);
    number(info, "events_dropped", hook_stats.dropped_events);
}

static void add_jobs(RedisModuleInfoCtx *info) {
    const JobKindStats *stats;
    const char *kind;
    RedisModule_InfoAddSection(info, "jobs");
    for (int i = 0; (stats = jobs_kind_stats(i, &kind)); i++) {
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
        number(info, "refused", stats->refused);
        number(info, "retried", stats->retried);
        RedisModule_InfoEndDictField(info);
    }
}

/* The upper bound, in microseconds, of the bucket that holds the p-th of the counted durations. */
static unsigned long long percentile(const unsigned long long *buckets, double p) {
    unsigned long long total = 0, seen = 0;
    for (int i = 0; i < JOB_LATENCY_BUCKETS; i++) total += buckets[i];
    for (int i = 0; i < JOB_LATENCY_BUCKETS; i++) {
        seen += buckets[i];
        if (total && (double)seen >= p * (double)total) return 1ULL << i;
    }
    return 0;
}

/* Only buckets that are not empty, named by their upper bound. */
static void add_histogram(RedisModuleInfoCtx *info, const char *kind, const char *what, const unsigned long long *buckets) {
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
    for (int i = 0; (stats = jobs_kind_stats(i, &kind)); i++) {
        if (!stats->submitted) continue;
        add_histogram(info, kind, "queue", stats->queue_us);
        add_histogram(info, kind, "run", stats->run_us);
    }
}

static void on_info(RedisModuleInfoCtx *info, int for_crash_report) {
    add_worker(info);
    add_queue(info);
    if (for_crash_report) return;
    add_jobs(info);
    add_latency(info);
}

int info_on_load(RedisModuleCtx *ctx) { return RedisModule_RegisterInfoFunc(ctx, on_info); }
