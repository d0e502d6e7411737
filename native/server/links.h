/* The worker's links: its connections to the server, and the user whose rights they have (docs/worker-protocol.md, 2).
 *
 * A link is no more than the id of a client that has said QA.HELLO with the current worker's token. It stays one until
 * it closes, authenticates as another user, or the worker dies. qa_commands.c has the commands that links send. Main
 * thread only. */
#ifndef QA_LINKS_H
#define QA_LINKS_H

#include "server/module_api.h"

/* The module's own user, which ACL LIST does not show. */
#define LINK_USER_NAME "qa-worker"

/* Flags of every internal command (QA.*) but QA.HELLO; commands_register lets the worker's user run all of them. */
#define LINK_COMMAND_FLAGS "admin deny-script allow-stale no-slowlog"

int link_on_load(RedisModuleCtx *ctx);

/* Gives the worker's user its rights. Call it when all commands are registered. */
int link_create_user(RedisModuleCtx *ctx);

/* `name` must live as long as the module. */
void link_allow_command(const char *name);

/* Does the worker's user get this command of the module, whatever its categories? It gets AI.* and QA.*, and what
 * functions do with registrations: whoever stores a function may do that, too. */
int link_may_run(const char *command);

RedisModuleUser *link_user(void);

/* Makes the calling client a link, with the rights of the worker's user. 0: the server does not let it change users. */
int link_add(RedisModuleCtx *ctx);

/* 1 when the calling client is a link of the current worker; else replies NOPERM and returns 0. */
int link_require(RedisModuleCtx *ctx, const char *command);

/* Says that an atomic block of the worker runs a command (1), or that the command has ended (0). */
void link_set_in_block(int in_block);
int link_in_block(void);

/* 1 when the client with this id is a link of the current worker. */
int link_is_link(unsigned long long client_id);
int link_count(void);

/* Closes the links of a worker that has died; they lose their rights at once. */
void link_close_all(RedisModuleCtx *ctx);

#endif
