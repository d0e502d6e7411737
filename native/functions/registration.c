/* Reads the fields of a registration, checks them, and matches keys and events against them. */
#include "functions/registration.h"

#include <string.h>
#include <strings.h>

#include "functions/hooked_commands.h"
#include "server/args.h"
#include "server/resp.h"

enum { MAX_COST_FROM = 65536 };

int registration_same(RedisModuleString *a, RedisModuleString *b) { return RedisModule_StringCompare(a, b) == 0; }

/* ---- Matching ---- */

int registration_matches_key(const Registration *registration, const char *key, size_t length) {
    if (registration->match_exact ? length != registration->match_length : length < registration->match_length)
        return 0;
    return !memcmp(key, registration->match, registration->match_length);
}

int registration_list_has(RedisModuleString *list, const char *word, size_t length) {
    size_t left, size;
    const char *at = RedisModule_StringPtrLen(list, &left), *each;
    while (list_next(&at, &left, &each, &size))
        if (size == length && !strncasecmp(each, word, length)) return 1;
    return 0;
}

int registration_wants_event(const Registration *registration, const char *event) {
    size_t length;
    RedisModule_StringPtrLen(registration->fields[REG_EVENTS], &length);
    if (!length) return strcasecmp(event, "keymiss") != 0;
    return registration_list_has(registration->fields[REG_EVENTS], event, strlen(event));
}

/* ---- Building and freeing ---- */

void registration_free(Registration *registration) {
    for (int i = 0; i < REG_FIELDS; i++) RedisModule_FreeString(NULL, registration->fields[i]);
    RedisModule_Free(registration->counters.last_error);
    RedisModule_Free(registration);
}

/* Returns the integer that follows `name` in the RESP value `args`, or `preset` if `name` is missing. */
static long long number_of(RedisModuleString *args, const char *name, long long preset) {
    RespReader reader;
    RespToken token;
    size_t length, name_length = strlen(name);
    reader.at = RedisModule_StringPtrLen(args, &length);
    reader.end = reader.at + length;
    while (resp_next(&reader, &token, 0) == 1)
        if (token.type == '$' && !token.null && token.length == name_length && !memcmp(token.text, name, name_length))
            return resp_next(&reader, &token, 0) == 1 && token.type == ':' ? token.integer : preset;
    return preset;
}

Registration *registration_new(RedisModuleString **fields) {
    long long cost_from;
    Registration *registration = RedisModule_Calloc(1, sizeof *registration);
    memcpy(registration->fields, fields, sizeof registration->fields);
    const char *name = RedisModule_StringPtrLen(fields[REG_SOURCE], NULL);
    registration->source = !strcmp(name, "KeysReader")     ? SOURCE_KEYS
                           : !strcmp(name, "StreamReader") ? SOURCE_STREAM
                                                           : SOURCE_COMMAND;
    registration->match = RedisModule_StringPtrLen(fields[REG_MATCH], &registration->match_length);
    registration->match_exact = 1;
    registration->own = !strcmp(RedisModule_StringPtrLen(fields[REG_CLASS], NULL), "own");
    registration->cost_from = arg_count(fields[REG_COST_FROM], MAX_COST_FROM, &cost_from) ? (int)cost_from : 0;
    if (registration->source == SOURCE_COMMAND) {
        registration->in_order = number_of(fields[REG_ARGS], "inorder", 0) != 0;
        registration->timeout_ms = number_of(fields[REG_ARGS], "timeout", 0);
    } else if (registration->match_length && registration->match[registration->match_length - 1] == '*') {
        registration->match_length--;
        registration->match_exact = 0;
    }
    return registration;
}

/* ---- Checks ---- */

static int is_one_of(RedisModuleString *string, const char *a, const char *b, const char *c) {
    const char *text = RedisModule_StringPtrLen(string, NULL);
    return !strcmp(text, a) || !strcmp(text, b) || (c && !strcmp(text, c));
}

/* Checks the mode of a registration. Returns NULL, or an error (to be freed). */
static RedisModuleString *check_mode(RedisModuleString *mode) {
    const char *text = RedisModule_StringPtrLen(mode, NULL);
    if (!strcmp(text, "sync"))
        return RedisModule_CreateStringPrintf(
            NULL, "ERR mode sync is left out: functions run outside the server, use async_local");
    if (!is_one_of(mode, "async", "async_local", NULL))
        return RedisModule_CreateStringPrintf(NULL, "ERR unknown mode: %.100s, expected async or async_local", text);
    return NULL;
}

RedisModuleString *registration_check_class(RedisModuleString *const *fields) {
    long long cost_from;
    if (!is_one_of(fields[REG_CLASS], "own", "user", NULL))
        return RedisModule_CreateStringPrintf(NULL, "ERR unknown class: %.100s, expected own or user",
                                              RedisModule_StringPtrLen(fields[REG_CLASS], NULL));
    if (!arg_count(fields[REG_COST_FROM], MAX_COST_FROM, &cost_from))
        return RedisModule_CreateStringPrintf(NULL, "ERR cost_from must be between 0 and %d, got %.100s", MAX_COST_FROM,
                                              RedisModule_StringPtrLen(fields[REG_COST_FROM], NULL));
    return NULL;
}

RedisModuleString *registration_check(RedisModuleCtx *ctx, const Registration *registration) {
    RedisModuleString *const *fields = registration->fields;
    size_t length;
    if (!is_one_of(fields[REG_SOURCE], "KeysReader", "CommandReader", "StreamReader"))
        return RedisModule_CreateStringPrintf(
            NULL, "ERR unknown reader: %.100s, expected KeysReader, CommandReader or StreamReader",
            RedisModule_StringPtrLen(fields[REG_SOURCE], NULL));
    RedisModuleString *error = check_mode(fields[REG_MODE]);
    if (!error) error = registration_check_class(fields);
    if (error) return error;
    const char *args = RedisModule_StringPtrLen(fields[REG_ARGS], &length);
    if (!resp_valid(args, length, 0))
        return RedisModule_CreateStringPrintf(NULL, "ERR args of a registration is not RESP");
    const char *events = RedisModule_StringPtrLen(fields[REG_EVENTS], &length);
    if (registration->source == SOURCE_STREAM && length && strcmp(events, "xadd"))
        return RedisModule_CreateStringPrintf(NULL, "ERR a StreamReader is called for xadd only, not for: %.100s",
                                              events);
    RedisModule_StringPtrLen(fields[REG_COMMANDS], &length);
    if (!length) return NULL;
    if (registration->source != SOURCE_KEYS || !registration_list_has(fields[REG_EVENTS], "keymiss", 7))
        return RedisModule_CreateStringPrintf(NULL, "ERR Can not hook a command without the keymiss event");
    return hooked_commands_check(ctx, fields[REG_COMMANDS]);
}

static int same_trigger(const Registration *a, const Registration *b) {
    return a->source == SOURCE_COMMAND && b->source == SOURCE_COMMAND &&
           registration_same(a->fields[REG_MATCH], b->fields[REG_MATCH]);
}

RedisModuleString *registration_check_conflict(const Registration *mine, const Registration *other) {
    if (registration_same(other->fields[REG_ID], mine->fields[REG_ID]))
        return RedisModule_CreateStringPrintf(NULL, "ERR registration id is taken: %.100s",
                                              RedisModule_StringPtrLen(mine->fields[REG_ID], NULL));
    if (same_trigger(mine, other))
        return RedisModule_CreateStringPrintf(NULL, "ERR trigger already registered: %.200s", mine->match);
    return NULL;
}
