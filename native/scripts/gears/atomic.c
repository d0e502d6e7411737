/* QA.ATOMIC: during a short lease, the server serves only the commands that the worker sends over the control socket.
 * The block ends when the worker sends END, when the lease ends, or when the socket closes.
 *
 * This is the only place where the server's main thread waits for the worker: in poll(), until the end of the lease at
 * the latest. The supervisor owns the control socket, which is non-blocking.
 *
 * `buffer` contains the bytes of an incomplete command. The worker may send commands after its lease has ended.
 * read_stray answers each of these with an error, so that each request gets a reply. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "functions/calling.h"
#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/links.h"
#include "server/resp.h"
#include "worker/supervisor.h"

enum { MAX_COMMAND = 16 << 20, MAX_ARGS = 65536, CHUNK = 16 * 1024 };

static char *buffer;
static size_t length, capacity;

static const char OVER[] = "-ATOMICEND atomic block is over\r\n";

static void reset(void) {
    RedisModule_Free(buffer);
    buffer = NULL;
    length = capacity = 0;
}

/* Returns the number of bytes read; 0: the socket is closed; -1: no bytes have arrived yet. */
static int receive(int fd) {
    if (capacity - length < CHUNK) {
        capacity = capacity ? capacity * 2 : 4 * CHUNK;
        buffer = RedisModule_Realloc(buffer, capacity);
    }
    ssize_t got = read(fd, buffer + length, CHUNK);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    length += (size_t)got;
    return (int)got;
}

/* Removes the first command, which has this number of bytes, from the buffer. */
static void consume(size_t bytes) {
    length -= bytes;
    memmove(buffer, buffer + bytes, length);
    if (!length) reset();
}

/* Answers the commands in the buffer with an error. 0: the bytes are not a command, or writing to the socket fails. */
static int answer_strays(int fd) {
    for (;;) {
        if (!length) return 1;
        long long command = resp_command_length(buffer, length, MAX_COMMAND, MAX_ARGS);
        if (command < 0) return 0;
        if (command == 0) return 1;
        consume((size_t)command);
        /* This is the only pending reply, so the buffer of the socket has space for it. */
        if (write(fd, OVER, sizeof OVER - 1) < 0) return 0;
    }
}

/* Handles bytes that arrive outside an atomic block. 0: the socket is closed, or the bytes are not a command. */
static int read_stray(int fd) {
    int got = receive(fd);
    return got > 0 ? answer_strays(fd) : got < 0;
}

/* How a wait ended. READY: the socket or a command is ready. EXPIRED: the lease has ended. CLOSED: the socket is
 * closed, or its bytes are not a command. */
typedef enum { READY, EXPIRED, CLOSED } Wait;

static Wait wait_for(int fd, short what, uint64_t end_us) {
    for (;;) {
        uint64_t now = RedisModule_MonotonicMicroseconds();
        if (now >= end_us) return EXPIRED;
        struct pollfd poll_fd = {.fd = fd, .events = what};
        int got = poll(&poll_fd, 1, (int)((end_us - now + 999) / 1000));
        if (got < 0 && errno != EINTR) return CLOSED;
        if (got > 0) return READY;
    }
}

/* Sends a reply. Returns READY, or CLOSED if the reply cannot be sent completely before the end of the lease, `end_us`.
 * After a partial reply, the worker could not match replies to requests. */
static Wait send_all(int fd, const char *data, size_t size, uint64_t end_us) {
    while (size) {
        ssize_t sent = write(fd, data, size);
        if (sent > 0) {
            data += sent;
            size -= (size_t)sent;
            continue;
        }
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return CLOSED;
        if (wait_for(fd, POLLOUT, end_us) != READY) return CLOSED;
    }
    return READY;
}

/* Waits until a whole command is in the buffer, and sets *size to its length in bytes. `end_us` is the end of the
 * lease. */
static Wait next_command(int fd, uint64_t end_us, size_t *size) {
    for (;;) {
        if (RedisModule_MonotonicMicroseconds() >= end_us) return EXPIRED;
        long long command = length ? resp_command_length(buffer, length, MAX_COMMAND, MAX_ARGS) : 0;
        if (command < 0) return CLOSED;
        if (command > 0) {
            *size = (size_t)command;
            return READY;
        }
        Wait wait = wait_for(fd, POLLIN, end_us);
        if (wait != READY) return wait;
        if (receive(fd) == 0) return CLOSED;
    }
}

static RedisModuleString **parse(size_t size, int *argc) {
    RespReader reader = {buffer, buffer + size};
    RespToken token;
    resp_next(&reader, &token, 0);
    *argc = (int)token.integer;
    RedisModuleString **argv = RedisModule_Alloc((size_t)*argc * sizeof *argv);
    for (int i = 0; i < *argc; i++) {
        resp_next(&reader, &token, 0);
        argv[i] = RedisModule_CreateString(NULL, token.text, token.length);
    }
    return argv;
}

static Wait run(RedisModuleCtx *ctx, int fd, RedisModuleString **argv, int argc, uint64_t end_us) {
    const char *error = "ERR command cannot be run in an atomic block";
    RedisModuleCallReply *reply;
    link_set_in_block(1);
    if (arg_is(argv[0], "qa.as")) {
        reply = calling_in_block(ctx, argv, argc, &error);
    } else {
        RedisModule_SetContextUser(ctx, link_user());
        reply = RedisModule_Call(ctx, RedisModule_StringPtrLen(argv[0], NULL), "!CSEv", argv + 1, (size_t)argc - 1);
        RedisModule_SetContextUser(ctx, NULL);
    }
    link_set_in_block(0);
    if (!reply) {
        char line[300];
        int size = snprintf(line, sizeof line, "-%.290s\r\n", error);
        return send_all(fd, line, (size_t)size, end_us);
    }
    size_t size;
    const char *proto = RedisModule_CallReplyProto(reply, &size);
    Wait wait = send_all(fd, proto, size, end_us);
    RedisModule_FreeCallReply(reply);
    return wait;
}

static Wait serve(RedisModuleCtx *ctx, int fd, uint64_t end_us) {
    size_t size;
    Wait wait = send_all(fd, "+GO\r\n", 5, end_us);
    for (int last = 0; wait == READY && !last;) {
        wait = next_command(fd, end_us, &size);
        if (wait != READY) return wait;
        int argc;
        RedisModuleString **argv = parse(size, &argc);
        last = argc == 1 && !strcasecmp(RedisModule_StringPtrLen(argv[0], NULL), "END");
        if (!last) wait = run(ctx, fd, argv, argc, end_us);
        for (int i = 0; i < argc; i++) RedisModule_FreeString(NULL, argv[i]);
        RedisModule_Free(argv);
        consume(size);
    }
    return wait;
}

static int QA_ATOMIC_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long lease_ms;
    if (!link_require(ctx, "QA.ATOMIC")) return REDISMODULE_OK;
    if (argc != 2) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &lease_ms) != REDISMODULE_OK || lease_ms < 1)
        return RedisModule_ReplyWithError(ctx, "ERR lease_ms must be a positive integer");
    if (caller_blocking_denied(ctx))
        return RedisModule_ReplyWithError(ctx, "ERR QA.ATOMIC cannot run within a transaction or a script");
    if (lease_ms > config.atomic_lease_ms) lease_ms = config.atomic_lease_ms;
    int fd = supervisor_control_socket();
    if (fd < 0) return RedisModule_ReplyWithError(ctx, "ERR the worker's control socket is closed");
    uint64_t end_us = RedisModule_MonotonicMicroseconds() + (uint64_t)lease_ms * 1000;
    Wait wait = serve(ctx, fd, end_us);
    if (wait == EXPIRED && !answer_strays(fd)) wait = CLOSED;
    switch (wait) {
    case READY: return RedisModule_ReplyWithSimpleString(ctx, "OK");
    case CLOSED:
        supervisor_control_closed();
        return RedisModule_ReplyWithError(ctx, "ERR the control socket closed during the atomic block");
    case EXPIRED: break;
    }
    char error[64];
    snprintf(error, sizeof error, "ERR atomic block exceeded its lease of %lld ms", lease_ms);
    return RedisModule_ReplyWithError(ctx, error);
}

int atomic_on_load(RedisModuleCtx *ctx) {
    static const ControlUser USER = {.readable = read_stray, .reset = reset};
    static const CommandSpec COMMANDS[] = {
        {"qa.atomic", QA_ATOMIC_RedisCommand, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous write"},
    };
    supervisor_attach_control(&USER);
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}
