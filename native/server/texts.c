/* A Text owns its bytes, which always end with a NUL. Loading refuses a text that is longer than its limit. */
#include "server/texts.h"

#include <stdio.h>
#include <string.h>

Text text_new(const char *data, size_t length) {
    Text text = {length, RedisModule_Alloc(length + 1)};
    memcpy(text.data, data, length);
    text.data[length] = '\0';
    return text;
}

Text text_of(RedisModuleString *string) {
    size_t length;
    const char *data = RedisModule_StringPtrLen(string, &length);
    return text_new(data, length);
}

const char *texts_check(RedisModuleString **strings, int n) {
    static char error[100];
    for (int i = 0; i < n; i++) {
        size_t length;
        RedisModule_StringPtrLen(strings[i], &length);
        if (length <= TEXT_MAX) continue;
        snprintf(error, sizeof error, "ERR tag or name of %zu bytes is longer than the limit of %llu bytes", length,
                 TEXT_MAX);
        return error;
    }
    return NULL;
}

void text_set(Text *text, const char *data, size_t length) {
    Text fresh = text_new(data, length);
    RedisModule_Free(text->data);
    *text = fresh;
}

Names names_new(size_t n) {
    Names names = {n, n ? RedisModule_Calloc(n, sizeof(Text)) : NULL};
    for (size_t i = 0; i < n; i++) names.items[i] = text_new("", 0);
    return names;
}

Names names_of(RedisModuleString **strings, int n) {
    Names names = names_new((size_t)n);
    for (size_t i = 0; i < names.n; i++) {
        size_t length;
        const char *data = RedisModule_StringPtrLen(strings[i], &length);
        text_set(&names.items[i], data, length);
    }
    return names;
}

Names names_copy(const Names *names) {
    Names copy = names_new(names->n);
    for (size_t i = 0; i < names->n; i++) text_set(&copy.items[i], names->items[i].data, names->items[i].length);
    return copy;
}

void names_free(Names *names) {
    for (size_t i = 0; i < names->n; i++) RedisModule_Free(names->items[i].data);
    if (names->items) RedisModule_Free(names->items);
    *names = (Names){0, NULL};
}

size_t names_memory(const Names *names) {
    size_t bytes = names->n ? RedisModule_MallocSize(names->items) : 0;
    for (size_t i = 0; i < names->n; i++) bytes += RedisModule_MallocSize(names->items[i].data);
    return bytes;
}

void names_emit(RedisModuleCtx *ctx, const Names *names) {
    for (size_t i = 0; i < names->n; i++)
        RedisModule_ReplyWithStringBuffer(ctx, names->items[i].data, names->items[i].length);
}

void names_reply(RedisModuleCtx *ctx, const Names *names) {
    RedisModule_ReplyWithArray(ctx, (long)names->n);
    names_emit(ctx, names);
}

/* ---- RDB ---- */

void text_save(RedisModuleIO *io, const Text *text) { RedisModule_SaveStringBuffer(io, text->data, text->length); }

void names_save(RedisModuleIO *io, const Names *names) {
    RedisModule_SaveUnsigned(io, names->n);
    for (size_t i = 0; i < names->n; i++) text_save(io, &names->items[i]);
}

int text_load(RedisModuleIO *io, size_t max, Text *text) {
    size_t length;
    char *data = RedisModule_LoadStringBuffer(io, &length);
    if (!data) return 0;
    int good = !RedisModule_IsIOError(io) && length <= max;
    if (good) text_set(text, data, length);
    RedisModule_Free(data);
    return good;
}

int names_load(RedisModuleIO *io, Names *names) {
    uint64_t n = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || n > NAMES_MAX) return 0;
    names_free(names);
    *names = names_new(n);
    for (size_t i = 0; i < names->n; i++)
        if (!text_load(io, TEXT_MAX, &names->items[i])) return 0;
    return 1;
}

void names_digest(RedisModuleDigest *digest, const Names *names) {
    RedisModule_DigestAddLongLong(digest, (long long)names->n);
    for (size_t i = 0; i < names->n; i++)
        RedisModule_DigestAddStringBuffer(digest, names->items[i].data, names->items[i].length);
}
