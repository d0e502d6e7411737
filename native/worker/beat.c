/* docs/worker-protocol.md says what each value means. */
#include "worker/beat.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;  /* in QA.BEAT */
    const char *field; /* in INFO */
    BeatSection section;
} VALUES[] = {
    {"rss_bytes", "worker_rss_bytes", BEAT_OF_WORKER}, /* first: see RSS_BYTES */
    {"loop_silence_ms", "worker_loop_silence_ms", BEAT_OF_WORKER},
    {"batches", "worker_batches", BEAT_OF_WORKER},
    {"batched_items", "worker_batched_items", BEAT_OF_WORKER},
    {"batched_tokens", "worker_batched_tokens", BEAT_OF_WORKER},
    {"padded_tokens", "worker_padded_tokens", BEAT_OF_WORKER},
    {"queue_depth", "worker_queue_depth", BEAT_OF_WORKER},
    {"function_threads", "worker_function_threads", BEAT_OF_WORKER},
    {"functions_running", "worker_functions_running", BEAT_OF_WORKER},
    {"functions_waiting", "worker_functions_waiting", BEAT_OF_WORKER},
    {"functions_stuck", "worker_functions_stuck", BEAT_OF_WORKER},
    {"failed_documents", "failed_documents", BEAT_OF_WORKER},
    {"unembedded_documents", "unembedded_documents", BEAT_OF_WORKER},
    {"inference_workers", "inference_workers", BEAT_OF_INFERENCE},
    {"inference_ready", "inference_ready", BEAT_OF_INFERENCE},
    {"inference_restarts", "inference_restarts", BEAT_OF_INFERENCE},
    {"inference_batches", "inference_batches", BEAT_OF_INFERENCE},
    {"inference_retries", "inference_retries", BEAT_OF_INFERENCE},
    {"inference_rss_bytes", "inference_rss_bytes", BEAT_OF_INFERENCE},
    {"inference_missing", "inference_missing", BEAT_OF_INFERENCE},
    {"inference_file_bytes", "inference_file_bytes", BEAT_OF_INFERENCE},
    {"model_processes", "model_processes", BEAT_OF_INFERENCE},
    {"model_rss_bytes", "model_rss_bytes", BEAT_OF_INFERENCE},
    {"model_failures", "model_failures", BEAT_OF_INFERENCE},
};
enum { COUNT = sizeof VALUES / sizeof *VALUES, RSS_BYTES = 0 };

static long long values[COUNT];
static long long peak_rss_bytes;

int beat_read(RedisModuleString **argv, int argc, char *error, size_t size) {
    long long read[COUNT];
    memcpy(read, values, sizeof read);
    for (int i = 0; i + 1 < argc; i += 2) {
        const char *name = RedisModule_StringPtrLen(argv[i], NULL);
        int row = 0;
        while (row < COUNT && strcmp(VALUES[row].name, name)) row++;
        if (row == COUNT) {
            snprintf(error, size, "ERR QA.BEAT has no value of this name: %.64s", name);
            return 0;
        }
        if (RedisModule_StringToLongLong(argv[i + 1], &read[row]) != REDISMODULE_OK || read[row] < 0) {
            snprintf(error, size, "ERR %s of QA.BEAT must be a non-negative integer, got %.64s", name,
                     RedisModule_StringPtrLen(argv[i + 1], NULL));
            return 0;
        }
    }
    memcpy(values, read, sizeof values);
    if (values[RSS_BYTES] > peak_rss_bytes) peak_rss_bytes = values[RSS_BYTES];
    return 1;
}

void beat_reset(void) { memset(values, 0, sizeof values); }

void beat_add_info(RedisModuleInfoCtx *info, BeatSection section) {
    for (int i = 0; i < COUNT; i++)
        if (VALUES[i].section == section) RedisModule_InfoAddFieldLongLong(info, VALUES[i].field, values[i]);
}

long long beat_rss_bytes(void) { return values[RSS_BYTES]; }

long long beat_peak_rss_bytes(void) { return peak_rss_bytes; }
