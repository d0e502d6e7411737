/* Starts, watches, kills and restarts the shard's worker process. Main thread only. */
#pragma once

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
    long long number; /* the number of workers started so far, which is also the number of the current worker */
    pid_t pid;        /* 0: there is no worker */
    unsigned long long restarts, killed;
    const char *last_exit;
    WorkerBackend backends[WORKER_BACKENDS]; /* unused entries have an empty name */
} WorkerInfo;

enum { TOKEN_HEX = 64 };

/* The version of docs/worker-protocol.md. The module refuses workers with a different version. */
enum { WORKER_PROTOCOL = 9 };

int supervisor_on_load(RedisModuleCtx *ctx);
const WorkerInfo *supervisor_info(void);

/* Returns NULL, or an error line that says why there can be no worker. Every command that needs a worker replies with
 * this error. */
const char *supervisor_refusal(void);

/* 1: `token` is the token of the current worker. Compares in constant time, because a client may try tokens. */
int supervisor_check_token(const char *token, size_t length);

/* Call supervisor_hello, supervisor_beat or supervisor_ready when the worker has sent QA.HELLO, QA.BEAT or QA.READY. */
void supervisor_hello(void);
void supervisor_beat(void);
void supervisor_ready(void);
/* Sets the runtimes of the current worker from alternating names and versions. 0: there are more than WORKER_BACKENDS
 * runtimes, or a text is empty, too long or contains special characters. */
int supervisor_backends(RedisModuleString **argv, int argc);
int supervisor_is_ready(void);
/* Returns the milliseconds since the worker's last heartbeat, without delays of the server's event loop. */
long long supervisor_silence_ms(void);
/* Returns the milliseconds since a silent worker was last active. A worker is inactive if it uses almost no processor
 * time, and no thread runs or waits for a processor or a disk. An inactive worker is stopped or hangs. 0: the worker is
 * not silent, is active, or its state is unknown. */
long long supervisor_inactive_ms(void);

/* The functions of scripts/gears/atomic.c, which reads the control socket. */
typedef struct ControlUser {
    /* Called when bytes have arrived. Returns 0 if the socket is closed, or if the bytes are not a command. */
    int (*readable)(int fd);
    void (*reset)(void); /* called when a new worker starts; drops the bytes of an incomplete command */
} ControlUser;

/* Call it once, at load time. `user` must live as long as the module. */
void supervisor_attach_control(const ControlUser *user);
/* Returns the server's end of the control socket. -1: there is no worker. */
int supervisor_control_socket(void);
/* Call it when the control socket is closed, or its bytes are invalid. The module then kills the worker and starts a
 * new one. */
void supervisor_control_closed(void);

/* Kills the worker. A timer then handles its jobs and the restart. `innocent` 1: the death is not counted as a failed
 * attempt of the running jobs, or of the documents in work. */
void supervisor_kill(const char *reason, int innocent);
