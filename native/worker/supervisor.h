/* The shard's worker process: starts it, watches it, kills it and starts it again. Main thread only. */
#ifndef QA_SUPERVISOR_H
#define QA_SUPERVISOR_H

#include <stddef.h>
#include <sys/types.h>

#include "server/module_api.h"

typedef enum { WORKER_STOPPED, WORKER_BACKOFF, WORKER_STARTING, WORKER_READY } WorkerState;

typedef struct WorkerBeat {
    long long rss_bytes, batches, batched_items, batched_tokens, padded_tokens, queue_depth;
    long long function_threads, functions_running, functions_waiting, functions_stuck;
    long long inference_workers, inference_ready, inference_restarts, inference_batches, inference_retries;
    long long inference_rss_bytes, inference_missing, inference_file_bytes;
} WorkerBeat;

/* A model runtime of the worker's environment. */
enum { WORKER_BACKENDS = 8, BACKEND_TEXT = 48 };
typedef struct WorkerBackend {
    char name[BACKEND_TEXT], version[BACKEND_TEXT];
} WorkerBackend;

typedef struct WorkerInfo {
    WorkerState state;
    const char *state_name;
    long long number; /* how many workers have started: the current one's number */
    pid_t pid;        /* 0: none */
    unsigned long long restarts, killed;
    long long peak_rss_bytes;
    const char *last_exit;
    WorkerBeat beat;
    WorkerBackend backends[WORKER_BACKENDS]; /* those with an empty name are none */
} WorkerInfo;

enum { TOKEN_HEX = 64 };

/* The version of docs/worker-protocol.md; a worker of another one is refused. */
enum { WORKER_PROTOCOL = 6 };

int supervisor_on_load(RedisModuleCtx *ctx);
const WorkerInfo *supervisor_info(void);

/* NULL, or why there can be no worker: the error of every command that needs one. */
const char *supervisor_refusal(void);

/* 1 when `token` is that of the running worker. Takes the same time wherever the tokens differ. */
int supervisor_check_token(const char *token, size_t length);

/* Signs of life. */
void supervisor_hello(void);
void supervisor_beat(const WorkerBeat *beat);
void supervisor_ready(void);
/* What the current worker's environment has: name and version by turns. The next worker has its own. 0: more than
 * WORKER_BACKENDS of them, or a text that is empty, too long or not plain. */
int supervisor_backends(RedisModuleString **argv, int argc);
int supervisor_is_ready(void);

/* Kills the worker; a timer then does the rest (jobs, restart). */
void supervisor_kill(const char *reason, int innocent);

#endif
