/* The shard's worker process: starts it, watches it, kills it and starts it again. Main thread only. */
#ifndef QA_SUPERVISOR_H
#define QA_SUPERVISOR_H

#include <stddef.h>
#include <sys/types.h>

#include "server/module_api.h"

typedef enum { WORKER_STOPPED, WORKER_BACKOFF, WORKER_STARTING, WORKER_READY } WorkerState;

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
    const char *last_exit;
    WorkerBackend backends[WORKER_BACKENDS]; /* those with an empty name are none */
} WorkerInfo;

enum { TOKEN_HEX = 64 };

/* The version of docs/worker-protocol.md; a worker of another one is refused. */
enum { WORKER_PROTOCOL = 7 };

int supervisor_on_load(RedisModuleCtx *ctx);
const WorkerInfo *supervisor_info(void);

/* NULL, or why there can be no worker: the error of every command that needs one. */
const char *supervisor_refusal(void);

/* 1 when `token` is that of the running worker. Takes the same time wherever the tokens differ. */
int supervisor_check_token(const char *token, size_t length);

/* Signs of life. */
void supervisor_hello(void);
void supervisor_beat(void);
void supervisor_ready(void);
/* What the current worker's environment has: name and version by turns. The next worker has its own. 0: more than
 * WORKER_BACKENDS of them, or a text that is empty, too long or not plain. */
int supervisor_backends(RedisModuleString **argv, int argc);
int supervisor_is_ready(void);

/* The part that reads the control socket (scripts/gears/atomic.c). */
typedef struct ControlUser {
    int (*readable)(int fd); /* bytes have arrived; 0: the socket is closed, or the bytes are not a command */
    void (*reset)(void);     /* a new worker starts: the bytes of an incomplete command are dropped */
} ControlUser;

/* Call it once, at load time. `user` must live as long as the module. */
void supervisor_attach_control(const ControlUser *user);
/* The server's end of the control socket; -1: there is no worker. */
int supervisor_control_socket(void);
/* The control socket is closed or out of step: the worker counts as dead. */
void supervisor_control_closed(void);

/* Kills the worker; a timer then does the rest (jobs, restart). */
void supervisor_kill(const char *reason, int innocent);

#endif
