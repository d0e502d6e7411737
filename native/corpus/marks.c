/* The type qa-mark__, its commands, and the events that end a mark. The essay is in marks.h. */
#include "corpus/marks.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "server/args.h"
#include "server/commands.h"
#include "server/keyspace.h"

/* Version 1 is 1 or 0 for a mark that stands or not, the text, the number of prefixes, each prefix. */
enum { MARK_ENCVER = 1, MAX_MARKS = 1024, MAX_TEXT = 1024, MAX_PREFIXES = 16, MAX_PREFIX = 256 };

typedef struct Mark {
    struct Mark *next, *previous;
    bool stands;
    unsigned prefixes;
    size_t lengths[MAX_PREFIXES + 1]; /* of the text, then of the prefixes; their bytes follow each other */
    char bytes[];
} Mark;

static RedisModuleType *mark_type;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Mark *first;  /* guarded by lock, with the links of each */
static size_t count; /* guarded by lock */

/* ---- The list ---- */

static size_t bytes_of(const Mark *mark) {
    size_t bytes = 0;
    for (unsigned i = 0; i <= mark->prefixes; i++) bytes += mark->lengths[i];
    return bytes;
}

/* Of a text and prefixes, which stand in this order. */
static Mark *mark_new(const char *const *parts, const size_t *lengths, unsigned prefixes, bool stands) {
    size_t bytes = 0, at = 0;
    for (unsigned i = 0; i <= prefixes; i++) bytes += lengths[i];
    Mark *mark = RedisModule_Calloc(1, sizeof *mark + bytes);
    mark->stands = stands;
    mark->prefixes = prefixes;
    for (unsigned i = 0; i <= prefixes; at += lengths[i++]) {
        mark->lengths[i] = lengths[i];
        memcpy(mark->bytes + at, parts[i], lengths[i]);
    }
    pthread_mutex_lock(&lock);
    mark->next = first;
    if (first) first->previous = mark;
    first = mark;
    count++;
    pthread_mutex_unlock(&lock);
    return mark;
}

static void mark_free(void *value) {
    Mark *mark = value;
    pthread_mutex_lock(&lock);
    if (mark->previous) mark->previous->next = mark->next;
    else first = mark->next;
    if (mark->next) mark->next->previous = mark->previous;
    count--;
    pthread_mutex_unlock(&lock);
    RedisModule_Free(mark);
}

static size_t marks_count(void) {
    pthread_mutex_lock(&lock);
    size_t now = count;
    pthread_mutex_unlock(&lock);
    return now;
}

static bool is_about(const Mark *mark, const char *key, size_t length) {
    const char *prefix = mark->bytes + mark->lengths[0];
    for (unsigned i = 1; i <= mark->prefixes; prefix += mark->lengths[i++])
        if (length >= mark->lengths[i] && !memcmp(key, prefix, mark->lengths[i])) return true;
    return false;
}

/* Whichever database it is in. */
static int on_key(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    (void)ctx;
    (void)type;
    (void)event;
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    pthread_mutex_lock(&lock);
    for (Mark *mark = first; mark; mark = mark->next)
        if (mark->stands && is_about(mark, text, length)) mark->stands = false;
    pthread_mutex_unlock(&lock);
    return REDISMODULE_OK;
}

/* ---- The type ---- */

static void mark_rdb_save(RedisModuleIO *io, void *value) {
    const Mark *mark = value;
    const char *part = mark->bytes;
    RedisModule_SaveUnsigned(io, mark->stands);
    RedisModule_SaveUnsigned(io, mark->prefixes);
    for (unsigned i = 0; i <= mark->prefixes; part += mark->lengths[i++])
        RedisModule_SaveStringBuffer(io, part, mark->lengths[i]);
}

static bool is_data_set(RedisModuleIO *io) {
    int flags = RedisModule_GetContextFlags(RedisModule_GetContextFromIO(io));
    return flags & (REDISMODULE_CTX_FLAGS_LOADING | REDISMODULE_CTX_FLAGS_ASYNC_LOADING);
}

static void *mark_rdb_load(RedisModuleIO *io, int encver) {
    char *parts[MAX_PREFIXES + 1] = {0};
    size_t lengths[MAX_PREFIXES + 1];
    uint64_t stands = encver == MARK_ENCVER ? RedisModule_LoadUnsigned(io) : 2;
    uint64_t prefixes = stands <= 1 && !RedisModule_IsIOError(io) ? RedisModule_LoadUnsigned(io) : 0;
    bool good = prefixes >= 1 && prefixes <= MAX_PREFIXES && !RedisModule_IsIOError(io);
    for (unsigned i = 0; good && i <= prefixes; i++) {
        parts[i] = RedisModule_LoadStringBuffer(io, &lengths[i]);
        good = parts[i] && !RedisModule_IsIOError(io) && lengths[i] && lengths[i] <= (i ? MAX_PREFIX : MAX_TEXT);
    }
    Mark *mark = NULL;
    if (good) mark = mark_new((const char *const *)parts, lengths, (unsigned)prefixes, stands && is_data_set(io));
    else RedisModule_LogIOError(io, "warning", "the payload of a mark is damaged, or of encoding version %d", encver);
    for (unsigned i = 0; i <= MAX_PREFIXES; i++)
        if (parts[i]) RedisModule_Free(parts[i]);
    return mark;
}

/* One that does not stand is as good as none. */
static void mark_aof_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    const Mark *mark = value;
    if (!mark->stands) return;
    const char *part = mark->bytes + mark->lengths[0];
    ArgList prefixes = arg_list_new(mark->prefixes);
    for (unsigned i = 1; i <= mark->prefixes; part += mark->lengths[i++])
        arg_list_add(&prefixes, part, mark->lengths[i]);
    RedisModule_EmitAOF(io, "QA.MARK.SET", "sbclv", key, mark->bytes, mark->lengths[0], "PREFIX",
                        (long long)mark->prefixes, prefixes.items, prefixes.n);
    arg_list_free(&prefixes);
}

static size_t mark_mem_usage(const void *value) { return sizeof(Mark) + bytes_of(value); }

static void mark_digest(RedisModuleDigest *digest, void *value) {
    const Mark *mark = value;
    if (mark->stands) RedisModule_DigestAddStringBuffer(digest, mark->bytes, bytes_of(mark));
    RedisModule_DigestEndSequence(digest);
}

/* ---- Commands ---- */

static bool is_text(const Mark *mark, const char *text, size_t length) {
    return mark && mark->stands && mark->lengths[0] == length && !memcmp(mark->bytes, text, length);
}

typedef struct Arguments {
    const char *parts[MAX_PREFIXES + 1], *before;
    size_t lengths[MAX_PREFIXES + 1], before_length;
    unsigned prefixes;
} Arguments;

/* text [IF before] PREFIX n prefix{n} */
static const char *parse(Cursor *cursor, Arguments *arguments) {
    long long prefixes;
    size_t key_length;
    const char *key = RedisModule_StringPtrLen(cursor->argv[1], &key_length);
    arguments->parts[0] = RedisModule_StringPtrLen(cursor->argv[cursor->at++], &arguments->lengths[0]);
    if (!arguments->lengths[0] || arguments->lengths[0] > MAX_TEXT) return "ERR a mark must have 1 to 1024 bytes";
    if (cursor->argc - cursor->at > 1 && cursor_accept(cursor, "IF"))
        arguments->before = RedisModule_StringPtrLen(cursor->argv[cursor->at++], &arguments->before_length);
    if (!cursor_accept(cursor, "PREFIX")) return "ERR syntax error: PREFIX is missing, or in another place";
    if (!cursor_count(cursor, MAX_PREFIXES, &prefixes) || !prefixes)
        return "ERR number of prefixes must be between 1 and 16";
    if (cursor->argc - cursor->at != prefixes) return "ERR number of prefixes does not match the arguments";
    for (unsigned i = 1; i <= prefixes; i++) {
        size_t *length = &arguments->lengths[i];
        arguments->parts[i] = RedisModule_StringPtrLen(cursor->argv[cursor->at++], length);
        if (!*length || *length > MAX_PREFIX) return "ERR a prefix must have 1 to 256 bytes";
        if (key_length >= *length && !memcmp(key, arguments->parts[i], *length))
            return "ERR the key of a mark must not begin with one of its prefixes";
    }
    arguments->prefixes = (unsigned)prefixes;
    return NULL;
}

static const char *found(KeyState state) { return state == KEY_WRONGTYPE ? REDISMODULE_ERRORMSG_WRONGTYPE : NULL; }

/* QA.MARK.SET key text [IF before] PREFIX n prefix{n} */
static int QA_MARK_SET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 6) return RedisModule_WrongArity(ctx);
    Cursor cursor = {argv, argc, 2};
    Arguments arguments = {0};
    void *value;
    const char *error = parse(&cursor, &arguments);
    if (!error) error = found(keyspace_peek(ctx, argv[1], mark_type, &value));
    if (!error && !value && marks_count() >= MAX_MARKS)
        error = "ERR there are 1024 marks already, the most that may be";
    if (error) return RedisModule_ReplyWithError(ctx, error);
    bool set = !arguments.before || is_text(value, arguments.before, arguments.before_length);
    if (set) {
        Mark *mark = mark_new(arguments.parts, arguments.lengths, arguments.prefixes, true);
        keyspace_store(ctx, argv[1], mark_type, mark, "qa.mark.set");
        RedisModule_ReplicateVerbatim(ctx);
    }
    return RedisModule_ReplyWithLongLong(ctx, set);
}

/* QA.MARK.GET key */
static int QA_MARK_GET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return RedisModule_WrongArity(ctx);
    void *value;
    const char *error = found(keyspace_read(ctx, argv[1], mark_type, &value));
    if (error) return RedisModule_ReplyWithError(ctx, error);
    const Mark *mark = value;
    if (!mark || !mark->stands) return RedisModule_ReplyWithNull(ctx);
    return RedisModule_ReplyWithStringBuffer(ctx, mark->bytes, mark->lengths[0]);
}

int marks_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"QA.MARK.SET", QA_MARK_SET_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"QA.MARK.GET", QA_MARK_GET_RedisCommand, "readonly fast", 1, 1, 1, NULL},
    };
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = mark_rdb_load,
        .rdb_save = mark_rdb_save,
        .aof_rewrite = mark_aof_rewrite,
        .mem_usage = mark_mem_usage,
        .digest = mark_digest,
        .free = mark_free,
    };
    mark_type = RedisModule_CreateDataType(ctx, "qa-mark__", MARK_ENCVER, &methods);
    if (!mark_type || commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS) != REDISMODULE_OK)
        return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_ALL, on_key);
}
