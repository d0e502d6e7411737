/* A client chooses its class by its name: clients named `bulk` or `bulk:..` are in the class of bulk work, like all
 * clients of the users in qa.bulk-users. The keys for users and names are hashes. If two names have the same hash, the
 * jobs of both share a flow. */
#include "jobs/flows.h"

#include <string.h>

#include "server/caller.h"
#include "server/config.h"

static uint64_t hash_of(const char *text, size_t length) {
    uint64_t hash = 14695981039346656037ULL;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211ULL;
    return hash;
}

static int is_bulk_name(const char *name, size_t length) {
    static const char WORD[] = "bulk";
    size_t word = sizeof WORD - 1;
    return length >= word && !memcmp(name, WORD, word) && (length == word || name[word] == ':');
}

QueuePlace flows_of_caller(RedisModuleCtx *ctx) {
    QueuePlace place = {{QUEUE_INTERACTIVE, 0, 0, RedisModule_GetClientId(ctx)}};
    size_t length;
    RedisModuleString *user = caller_name(ctx);
    if (user) {
        const char *text = RedisModule_StringPtrLen(user, &length);
        place.keys[1] = hash_of(text, length);
        if (config_is_bulk_user(text, length)) place.keys[0] = QUEUE_BULK;
        RedisModule_FreeString(ctx, user);
    }
    /* Redis before 7.0.3 does not report a client's name. */
    RedisModuleString *name = RedisModule_GetClientNameById ? RedisModule_GetClientNameById(ctx, place.keys[3]) : NULL;
    if (name) {
        const char *text = RedisModule_StringPtrLen(name, &length);
        place.keys[2] = hash_of(text, length);
        if (is_bulk_name(text, length)) place.keys[0] = QUEUE_BULK;
        RedisModule_FreeString(ctx, name);
    }
    return place;
}

QueuePlace flows_of_name(RedisModuleString *name) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(name, &length);
    return (QueuePlace){{hash_of(text, length)}};
}
