/* The server notifies the module when a link closes or changes its user. When a worker dies, the module closes all its
 * links. */
#include "server/links.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static RedisModuleUser *user;
static int in_block;             /* 1 while an atomic block runs a command */
static RedisModuleDict *links;   /* the keys are client ids */
static RedisModuleDict *allowed; /* the commands to which the worker's user gets the right by name (link_create_user) */

RedisModuleUser *link_user(void) { return user; }

int link_is_link(unsigned long long client_id) {
    int missing = 1;
    if (links && client_id) RedisModule_DictGetC(links, &client_id, sizeof client_id, &missing);
    return !missing;
}

void link_set_in_block(int is_in_block) { in_block = is_in_block; }

int link_in_block(void) { return in_block; }

int link_count(void) { return (int)RedisModule_DictSize(links); }

int link_require(RedisModuleCtx *ctx, const char *command) {
    char error[128];
    if (link_is_link(RedisModule_GetClientId(ctx))) return 1;
    snprintf(error, sizeof error, "NOPERM %s is internal to the worker", command);
    RedisModule_ReplyWithError(ctx, error);
    return 0;
}

/* ---- Adding and closing ---- */

static void on_user_changed(uint64_t client_id, void *data) {
    unsigned long long id = client_id;
    RedisModule_DictDelC(links, &id, sizeof id, NULL);
}

int link_add(RedisModuleCtx *ctx) {
    uint64_t client_id = 0;
    if (RedisModule_AuthenticateClientWithUser(ctx, user, on_user_changed, NULL, &client_id) != REDISMODULE_OK)
        return 0;
    unsigned long long id = RedisModule_GetClientId(ctx);
    RedisModule_DictReplaceC(links, &id, sizeof id, links);
    return 1;
}

void link_close_all(RedisModuleCtx *ctx) {
    size_t count = RedisModule_DictSize(links), n = 0, length;
    unsigned long long *ids = RedisModule_Alloc((count + 1) * sizeof *ids);
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(links, "^", NULL, 0);
    for (void *key; n < count && (key = RedisModule_DictNextC(iterator, &length, NULL));)
        memcpy(&ids[n++], key, sizeof *ids);
    RedisModule_DictIteratorStop(iterator);
    for (size_t i = 0; i < n; i++) {
        RedisModule_DictDelC(links, &ids[i], sizeof ids[i], NULL);
        RedisModule_DeauthenticateAndCloseClient(ctx, ids[i]);
    }
    RedisModule_Free(ids);
}

/* ---- Rights ---- */

int link_may_run(const char *command) {
    static const char *const OTHERS[] = {"rg.unregister", "rg.pauseregistrations", "rg.unpauseregistrations"};
    if (!strncasecmp(command, "qa.", 3) || !strncasecmp(command, "ai.", 3)) return 1;
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (!strcasecmp(command, OTHERS[i])) return 1;
    return 0;
}

void link_allow_command(const char *name) {
    if (!allowed) allowed = RedisModule_CreateDict(NULL);
    RedisModule_DictReplaceC(allowed, (void *)name, strlen(name), (void *)name);
}

/* The internal commands are administrator commands, so that other users cannot run them. The worker's user is not an
 * administrator. So it gets the right to each internal command by name. */
int link_create_user(RedisModuleCtx *ctx) {
    static const char *const RIGHTS[] = {"on", "allkeys", "allchannels", "+@all", "-@admin"};
    user = RedisModule_CreateModuleUser(LINK_USER_NAME);
    for (size_t i = 0; i < sizeof RIGHTS / sizeof *RIGHTS; i++)
        if (RedisModule_SetModuleUserACL(user, RIGHTS[i]) != REDISMODULE_OK) return REDISMODULE_ERR;
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(allowed, "^", NULL, 0);
    int failed = 0;
    void *name;
    while (RedisModule_DictNextC(iterator, NULL, &name)) {
        char right[64];
        snprintf(right, sizeof right, "+%s", (const char *)name);
        if (RedisModule_SetModuleUserACL(user, right) == REDISMODULE_OK) continue;
        RedisModule_Log(ctx, "warning", "the server refuses the right %s for the worker's user", right);
        failed = 1;
    }
    RedisModule_DictIteratorStop(iterator);
    return failed ? REDISMODULE_ERR : REDISMODULE_OK;
}

int link_on_load(RedisModuleCtx *ctx) {
    links = RedisModule_CreateDict(NULL);
    return REDISMODULE_OK;
}
