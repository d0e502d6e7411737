/* Runs one worker at a time, in its own process group. Three things connect it to the server:
 * - The control socket. If it closes, the supervisor kills the worker and starts a new one.
 * - A pipe that copies the worker's output to the server's log.
 * - A token, which is new for each worker. The worker's connections must send it.
 * A timer watches the worker. The supervisor kills a worker that sends no heartbeat for too long, and a worker that
 * ignores a cancellation (jobs/cancelled.c).
 *
 * Every death has the same sequence. supervisor_control_closed schedules on_death in a timer, because ending jobs
 * writes keys. on_death invalidates the token, kills the process group, reaps the worker and closes the links. The jobs
 * that the worker had return to the queue; a job that has now lost its second worker fails (jobs_worker_lost). If
 * workers die repeatedly, the delay before each restart grows. */
#include "worker/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "functions/registry.h"
#include "jobs/jobs.h"
#include "server/blake2b.h"
#include "server/config.h"
#include "server/links.h"
#include "server/server.h"
#include "worker/activity.h"
#include "worker/beat.h"
#include "worker/environment.h"
#include "worker/indexing.h"

enum {
    TICK_MS = 50,
    START_DELAY_MS = 10,
    MAX_BACKOFF_MS = 5000,
    MAX_READY_BACKOFF_MS = 800, /* the maximum delay after the death of a ready worker: shorter, because questions wait
                                 * for the next worker */
    STABLE_MS = 30000,
    MAX_LINE = 900, /* the server cuts log lines at 1024 */
    MAX_ZOMBIES = 16,
    STALE_MS = 500, /* the wait after a session has been loaded, so that several sessions cause one restart */
    READS_PER_EVENT = 16,
    CONTROL_FD = 3,
    START_LINE = 32768,   /* the limit of the start line in bytes; the worker reads at most 65536 */
    ON_TIME_MS = 100,     /* a longer time between two ticks: the server was late, and a heartbeat may be unread */
    MAX_TICK_MS = 200,    /* the most time that a tick adds to the worker's silence: a longer time is a delay of the
                           * server */
    MISSED_BEAT_MS = 100, /* a worker sends a heartbeat every 100 ms */
    BUSY_PERCENT = 10,    /* per cent of a processor; a worker that uses less may hang: threads that wait for the
                           * interpreter use little */
};

static WorkerInfo info = {.last_exit = "none"};
static char token[TOKEN_HEX + 1]; /* empty: no connection can become a link */
static int control = -1;
static const ControlUser *control_user;
static int output = -1;
static int greeted; /* 1: the worker has sent QA.HELLO and a heartbeat; then qa.worker-silence-ms limits its silence */
static int shutting_down;
static int death_scheduled;
static int innocent_death;
static char kill_reason[96]; /* empty: the module has not killed the worker */
static long long backoff_ms;
static long long started_ms, ticked_ms;
static long long silence_ms;        /* the time since the last heartbeat, without delays of the server's event loop */
static long long active_ms, cpu_us; /* see watch_activity */
static char line[MAX_LINE + 1];
static size_t line_length;
static char last_exit[64];
static pid_t zombies[MAX_ZOMBIES];
static int unreachable; /* 1: the server has no address for connections of the worker */

static void on_start(RedisModuleCtx *ctx, void *data);
static void on_tick(RedisModuleCtx *ctx, void *data);

static long long now_ms(void) { return (long long)(RedisModule_MonotonicMicroseconds() / 1000); }

/* Records a sign of life of the worker, such as a heartbeat: its silence starts again at 0. */
static void heard(void) {
    silence_ms = 0;
    active_ms = now_ms();
}

static void set_state(WorkerState state) {
    static const char *const NAMES[] = {"stopped", "backoff", "starting", "ready"};
    info.state = state;
    info.state_name = NAMES[state];
}

const WorkerInfo *supervisor_info(void) { return &info; }

int supervisor_control_socket(void) { return control; }

void supervisor_attach_control(const ControlUser *user) { control_user = user; }

const char *supervisor_refusal(void) {
    if (!*config.worker_command) return "NOWORKER no worker is configured, set qa.worker-command";
    if (unreachable)
        return "NOWORKER the worker cannot connect to this server: set unixsocket (an absolute path), port or tls-port";
    return NULL;
}

long long supervisor_silence_ms(void) { return silence_ms; }

long long supervisor_inactive_ms(void) {
    return silence_ms > MISSED_BEAT_MS && ticked_ms > active_ms ? ticked_ms - active_ms : 0;
}

int supervisor_is_ready(void) { return info.state == WORKER_READY; }

/* ---- Output ---- */

static void log_line(void) {
    line[line_length] = '\0';
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    if (line_length) RedisModule_Log(server_ctx(), "notice", "worker: %s", line);
    line_length = 0;
}

static void close_output(void) {
    if (output < 0) return;
    log_line();
    RedisModule_EventLoopDel(output, REDISMODULE_EVENTLOOP_READABLE);
    close(output);
    output = -1;
}

/* Reads at most READS_PER_EVENT buffers of the output, so that a worker that writes much output does not block the
 * server. */
static void on_output(int fd, void *data, int mask) {
    char buffer[4096];
    for (int i = 0; i < READS_PER_EVENT; i++) {
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) {
            close_output();
            return;
        }
        for (ssize_t j = 0; j < got; j++) {
            if (buffer[j] != '\n') line[line_length++] = buffer[j];
            if (buffer[j] == '\n' || line_length == MAX_LINE) log_line();
        }
    }
}

/* ---- Death ---- */

static void describe_exit(int status) {
    if (WIFSIGNALED(status)) snprintf(last_exit, sizeof last_exit, "signal %d", WTERMSIG(status));
    else snprintf(last_exit, sizeof last_exit, "exit %d", WEXITSTATUS(status));
    info.last_exit = last_exit;
}

/* Reaps a process that has ended. 1: the process has ended. ECHILD also means that the process has ended, because the
 * server reaps child processes too. */
static int reap(pid_t pid) {
    int status;
    pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == pid) describe_exit(status);
    return got == pid || (got < 0 && errno == ECHILD);
}

static void reap_later(pid_t pid) {
    for (int i = 0; i < MAX_ZOMBIES; i++) {
        if (zombies[i]) continue;
        zombies[i] = pid;
        return;
    }
}

static void kill_group(pid_t pid) {
    if (pid <= 0) return;
    kill(-pid, SIGKILL); /* the worker is the leader of its process group */
    kill(pid, SIGKILL);
}

static void schedule_start(RedisModuleCtx *ctx, int was_ready) {
    long long limit = was_ready ? MAX_READY_BACKOFF_MS : MAX_BACKOFF_MS;
    long long delay = backoff_ms ? backoff_ms : config.worker_backoff_ms;
    if (delay > limit) delay = limit;
    backoff_ms = delay * 2 < limit ? delay * 2 : limit;
    RedisModule_CreateTimer(ctx, delay, on_start, NULL);
}

/* Handles the death of the worker, as the top of this file describes. Runs in a timer, because ending jobs writes
 * keys. */
static void on_death(RedisModuleCtx *ctx, void *data) {
    death_scheduled = 0;
    token[0] = '\0';
    pid_t pid = info.pid;
    info.pid = 0;
    snprintf(last_exit, sizeof last_exit, "control socket closed");
    info.last_exit = last_exit;
    kill_group(pid);
    if (pid && !reap(pid)) reap_later(pid);
    if (output >= 0) on_output(output, NULL, 0);
    close_output();
    if (now_ms() - started_ms >= STABLE_MS) backoff_ms = 0;
    RedisModule_Log(ctx, "warning", "worker %lld (pid %d) has ended: %s", info.number, (int)pid, info.last_exit);
    int was_ready = info.state == WORKER_READY;
    set_state(WORKER_BACKOFF);
    link_close_all(ctx);
    indexing_worker_lost(ctx, *kill_reason ? kill_reason : info.last_exit, innocent_death);
    jobs_worker_lost(ctx, innocent_death);
    innocent_death = 0;
    kill_reason[0] = '\0';
    if (!shutting_down) schedule_start(ctx, was_ready);
}

void supervisor_control_closed(void) {
    if (control >= 0) {
        RedisModule_EventLoopDel(control, REDISMODULE_EVENTLOOP_READABLE);
        close(control);
        control = -1;
    }
    if (death_scheduled) return;
    death_scheduled = 1;
    RedisModule_CreateTimer(server_ctx(), 0, on_death, NULL);
}

void supervisor_kill(const char *reason, int innocent) {
    if (!info.pid || death_scheduled) return;
    RedisModule_Log(server_ctx(), "warning", "worker %lld (pid %d) %s: killed", info.number, (int)info.pid, reason);
    info.killed++;
    innocent_death = innocent;
    snprintf(kill_reason, sizeof kill_reason, "%s", reason);
    kill_group(info.pid);
    supervisor_control_closed();
}

static void on_control(int fd, void *data, int mask) {
    if (!control_user->readable(fd)) supervisor_control_closed();
}

/* ---- Start ---- */

static void close_pair(int pair[2]) {
    if (pair[0] >= 0) close(pair[0]);
    if (pair[1] >= 0) close(pair[1]);
}

static int set_flags(int fd, int non_blocking) {
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return -1;
    return non_blocking ? fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) : 0;
}

/* Moves the worker's end of a pipe or socket to a descriptor above 9, so that dup2 onto 0 to 3 does not close it.
 * Returns 0, or -1 if no descriptor is left. */
static int raise_end(int *fd) {
    int raised = fcntl(*fd, F_DUPFD_CLOEXEC, 10);
    if (raised < 0) return -1;
    close(*fd);
    *fd = raised;
    return 0;
}

static int open_channels(int sockets[2], int pipes[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) < 0) return -1;
    if (set_flags(sockets[0], 1) < 0 || raise_end(&sockets[1]) < 0) return -1;
    if (pipe(pipes) < 0) return -1;
    return set_flags(pipes[0], 1) < 0 || raise_end(&pipes[1]) < 0 ? -1 : 0;
}

static int spawn(char **words, int socket_fd, int pipe_fd, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, pipe_fd, 1);
    posix_spawn_file_actions_adddup2(&actions, pipe_fd, 2);
    posix_spawn_file_actions_adddup2(&actions, socket_fd, CONTROL_FD);
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
    posix_spawn_file_actions_addclosefrom_np(&actions, CONTROL_FD + 1);
#endif
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    char **variables = environment_for_worker();
    int error = posix_spawnp(pid, words[0], &actions, &attributes, words, variables);
    RedisModule_Free(variables);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

static void new_token(void) {
    unsigned char bytes[TOKEN_HEX / 2];
    RedisModule_GetRandomBytes(bytes, sizeof bytes);
    hex_text(token, bytes, sizeof bytes);
}

/* Returns a port of the server. `name` is the setting of the port: port or tls-port. 0: the server does not listen on
 * this kind of port, or was built without TLS. */
static int listening_port(RedisModuleCtx *ctx, const char *name) {
    RedisModuleString *text = server_setting(ctx, name);
    int port = atoi(RedisModule_StringPtrLen(text, NULL));
    RedisModule_FreeString(NULL, text);
    return port;
}

/* 1: the worker cannot connect, because there is neither a port nor a unix socket with an absolute path. */
static int is_unreachable(RedisModuleCtx *ctx) {
    RedisModuleString *path = server_setting(ctx, "unixsocket");
    int has_socket = *RedisModule_StringPtrLen(path, NULL) == '/';
    RedisModule_FreeString(NULL, path);
    return !has_socket && !listening_port(ctx, "port") && !listening_port(ctx, "tls-port");
}

/* Chooses the address for the worker's connections: the first address of `bind`, or 127.0.0.1 for a wildcard. */
static void choose_host(const char *bind, char *host, size_t size) {
    snprintf(host, size, "127.0.0.1");
    char word[64];
    int used = 0;
    for (; sscanf(bind, "%63s%n", word, &used) == 1; bind += used) {
        const char *address = *word == '-' ? word + 1 : word;
        if (!strcmp(address, "*") || !strcmp(address, "0.0.0.0") || !strncmp(address, "::", 2)) return;
        snprintf(host, size, "%s", address);
        return;
    }
}

static void add_text(RedisModuleString *to, const char *text) {
    RedisModule_StringAppendBuffer(NULL, to, text, strlen(text));
}

static void add_json(RedisModuleString *to, const char *name, const char *text) {
    char escaped[8];
    add_text(to, ", \"");
    add_text(to, name);
    add_text(to, "\": \"");
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') snprintf(escaped, sizeof escaped, "\\%c", byte);
        else if (byte < ' ') snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        else snprintf(escaped, sizeof escaped, "%c", byte);
        add_text(to, escaped);
    }
    add_text(to, "\"");
}

static void add_setting(RedisModuleCtx *ctx, RedisModuleString *to, const char *name, const char *setting) {
    RedisModuleString *value = server_setting(ctx, setting);
    add_json(to, name, RedisModule_StringPtrLen(value, NULL));
    RedisModule_FreeString(NULL, value);
}

/* Adds the data for a TLS connection to the first line (introduce): the port, the certificate authorities that the
 * server trusts, and the certificate of the server as a client. */
static void add_tls(RedisModuleCtx *ctx, RedisModuleString *to, int port) {
    char text[48];
    RedisModuleString *own = server_setting(ctx, "tls-client-cert-file");
    int is_client = *RedisModule_StringPtrLen(own, NULL) != '\0';
    RedisModule_FreeString(NULL, own);
    snprintf(text, sizeof text, ", \"tls\": {\"port\": %d", port);
    add_text(to, text);
    add_setting(ctx, to, "ca", "tls-ca-cert-file");
    add_setting(ctx, to, "ca_folder", "tls-ca-cert-dir");
    add_setting(ctx, to, "server", "tls-cert-file");
    add_setting(ctx, to, "cert", is_client ? "tls-client-cert-file" : "tls-cert-file");
    add_setting(ctx, to, "key", is_client ? "tls-client-key-file" : "tls-key-file");
    add_setting(ctx, to, "key_password", is_client ? "tls-client-key-file-pass" : "tls-key-file-pass");
    add_text(to, "}");
}

/* Sends the first line on the control socket: the worker's token and number, and the server's addresses. Returns 0, or
 * -1 if the line is too long or cannot be written. */
static int introduce(RedisModuleCtx *ctx) {
    RedisModuleString *path = server_setting(ctx, "unixsocket"), *bind = server_setting(ctx, "bind");
    int port = listening_port(ctx, "port"), tls_port = listening_port(ctx, "tls-port");
    char host[64], text[160];
    const char *socket_path = RedisModule_StringPtrLen(path, NULL);
    choose_host(RedisModule_StringPtrLen(bind, NULL), host, sizeof host);
    RedisModuleString *to = RedisModule_CreateStringPrintf(
        NULL, "{\"protocol\": %d, \"token\": \"%s\", \"worker\": %lld", WORKER_PROTOCOL, token, info.number);
    /* The worker cannot use a relative path, because the server may have changed its directory since it created the
     * socket. */
    add_json(to, "socket", *socket_path == '/' ? socket_path : "");
    add_json(to, "host", host);
    snprintf(text, sizeof text, ", \"port\": %d", port);
    add_text(to, text);
    if (tls_port && !port && *socket_path != '/') add_tls(ctx, to, tls_port);
    add_text(to, "}\n");
    RedisModule_FreeString(NULL, path);
    RedisModule_FreeString(NULL, bind);
    size_t length;
    const char *start = RedisModule_StringPtrLen(to, &length);
    int sent = length < START_LINE && write(control, start, length) == (ssize_t)length;
    RedisModule_FreeString(NULL, to);
    return sent ? 0 : -1;
}

static void start_failed(RedisModuleCtx *ctx, const char *what, int error) {
    RedisModule_Log(ctx, "warning", "worker cannot be started: %s: %s", what, strerror(error));
    snprintf(last_exit, sizeof last_exit, "not started");
    info.last_exit = last_exit;
    set_state(WORKER_BACKOFF);
    schedule_start(ctx, 0);
}

static void start(RedisModuleCtx *ctx) {
    int count, sockets[2] = {-1, -1}, pipes[2] = {-1, -1};
    char **words = config_split_command(config.worker_command, &count);
    if (!words) {
        set_state(WORKER_STOPPED);
        return;
    }
    int error = open_channels(sockets, pipes) < 0 ? errno : spawn(words, sockets[1], pipes[1], &info.pid);
    if (error) {
        info.pid = 0;
        close_pair(sockets);
        close_pair(pipes);
        start_failed(ctx, words[0], error);
        RedisModule_Free(words);
        return;
    }
    RedisModule_Free(words);
    close(sockets[1]);
    close(pipes[1]);
    control = sockets[0];
    output = pipes[0];
    if (info.number++) info.restarts++;
    beat_reset();
    greeted = 0;
    heard();
    started_ms = now_ms();
    set_state(WORKER_STARTING);
    control_user->reset();
    new_token();
    if (RedisModule_EventLoopAdd(control, REDISMODULE_EVENTLOOP_READABLE, on_control, NULL) != REDISMODULE_OK ||
        RedisModule_EventLoopAdd(output, REDISMODULE_EVENTLOOP_READABLE, on_output, NULL) != REDISMODULE_OK ||
        introduce(ctx) < 0) {
        supervisor_kill("cannot be reached", 1);
        return;
    }
    RedisModule_Log(ctx, "notice", "worker %lld started, pid %d", info.number, (int)info.pid);
}

static void on_start(RedisModuleCtx *ctx, void *data) {
    if (shutting_down || info.pid) return;
    if (RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_LOADING) {
        RedisModule_CreateTimer(ctx, TICK_MS, on_start, NULL);
        return;
    }
    int known = unreachable;
    unreachable = *config.worker_command && is_unreachable(ctx);
    if (!unreachable) {
        start(ctx);
        return;
    }
    if (!known) RedisModule_Log(ctx, "warning", "no worker is started: %s", supervisor_refusal());
    set_state(WORKER_STOPPED);
    RedisModule_CreateTimer(ctx, MAX_BACKOFF_MS, on_start, NULL); /* CONFIG SET port may make the server reachable */
}

/* ---- Watching ---- */

/* Records the last time when a silent worker was active. `since` is the time since the last tick. Both times are in
 * milliseconds. A slow worker is active: its threads use processor time, or wait for a processor or a disk. After a
 * late tick, the worker counts as active, because an unread heartbeat may have arrived. */
static void watch_activity(long long now, long long since) {
    long long before_us = cpu_us;
    int is_late = since > ON_TIME_MS, is_silent = silence_ms >= MISSED_BEAT_MS;
    cpu_us = silence_ms < MISSED_BEAT_MS / 2 ? -1 : activity_cpu_us(info.pid);
    int is_busy = before_us < 0 || cpu_us < 0 || (cpu_us - before_us) * 100 > since * 1000 * BUSY_PERCENT;
    if (is_late || (is_silent && (is_busy || !activity_all_sleep(info.pid)))) active_ms = now;
}

static void on_tick(RedisModuleCtx *ctx, void *data) {
    RedisModule_CreateTimer(ctx, TICK_MS, on_tick, NULL);
    for (int i = 0; i < MAX_ZOMBIES; i++)
        if (zombies[i] && reap(zombies[i])) zombies[i] = 0;
    long long now = now_ms(), since = now - ticked_ms;
    ticked_ms = now;
    if (!info.pid) return;
    silence_ms += since < MAX_TICK_MS ? since : MAX_TICK_MS;
    watch_activity(now, since);
    /* After sessions have arrived by replication or from a file, the supervisor starts a new worker, which reads all
     * sessions. A replica does this at once, so that its worker is already warm when the replica is promoted. */
    if (info.state == WORKER_READY && registry_stale_ms() > STALE_MS) {
        registry_forget_stale();
        supervisor_kill("does not know the loaded sessions", 1);
        return;
    }
    long long limit = greeted ? config.worker_silence_ms : config.worker_start_ms;
    if (RedisModule_AvoidReplicaTraffic()) heard(); /* CLIENT PAUSE delays heartbeats */
    if (silence_ms <= limit) return;
    char reason[96];
    snprintf(reason, sizeof reason, "has been silent for more than %lld ms (%s)", limit,
             greeted ? "qa.worker-silence-ms" : "qa.worker-start-ms");
    supervisor_kill(reason, 0);
}

int supervisor_check_token(const char *given, size_t length) {
    return length == TOKEN_HEX && token[0] && blake2b_equal((const uint8_t *)given, (const uint8_t *)token, TOKEN_HEX);
}

void supervisor_hello(void) { heard(); }

void supervisor_beat(void) {
    greeted = 1;
    heard();
}

void supervisor_ready(void) {
    if (info.state == WORKER_READY) return;
    heard();
    set_state(WORKER_READY);
    RedisModule_Log(server_ctx(), "notice", "worker %lld is ready", info.number);
}

static int take_text(char *to, RedisModuleString *text) {
    static const char PLAIN[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+";
    size_t length;
    const char *from = RedisModule_StringPtrLen(text, &length);
    if (!length || length >= BACKEND_TEXT || strspn(from, PLAIN) != length) return 0;
    memcpy(to, from, length + 1);
    return 1;
}

int supervisor_backends(RedisModuleString **argv, int argc) {
    WorkerBackend backends[WORKER_BACKENDS] = {0};
    if (argc % 2 || argc > 2 * WORKER_BACKENDS) return 0;
    for (int i = 0; i < argc / 2; i++)
        if (!take_text(backends[i].name, argv[2 * i]) || !take_text(backends[i].version, argv[2 * i + 1])) return 0;
    memcpy(info.backends, backends, sizeof backends);
    return 1;
}

static void on_shutdown(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    shutting_down = 1;
    kill_group(info.pid);
}

int supervisor_on_load(RedisModuleCtx *ctx) {
    set_state(WORKER_STOPPED);
    RedisModuleEvent shutdown = {REDISMODULE_EVENT_SHUTDOWN, 1};
    if (RedisModule_SubscribeToServerEvent(ctx, shutdown, on_shutdown) != REDISMODULE_OK) return REDISMODULE_ERR;
    RedisModule_CreateTimer(ctx, START_DELAY_MS, on_start, NULL);
    RedisModule_CreateTimer(ctx, TICK_MS, on_tick, NULL);
    return REDISMODULE_OK;
}
