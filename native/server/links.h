/* The worker's links, which are its connections to the server, and the user of the links (docs/worker-protocol.md,
 * section 2). A client becomes a link when it sends QA.HELLO with the token of the current worker. It is a link until
 * it closes or authenticates as another user, or until the worker dies. */
#pragma once

#include "server/module_api.h"

/* The module's own user. ACL LIST does not show it. */
#define LINK_USER_NAME "qa-worker"

/* The common flags of the commands that require a link. commands_register allows the worker's user to run these
 * commands. */
#define LINK_COMMAND_FLAGS "admin deny-script allow-stale no-slowlog"

int link_on_load(RedisModuleCtx *ctx);

/* Gives the worker's user its rights. Call it after all commands are registered. */
int link_create_user(RedisModuleCtx *ctx);

/* Allows the worker's user to run the command with this name. Call it before link_create_user. `name` must live as long
 * as the module. */
void link_allow_command(const char *name);

/* 1: the worker's user may run this command of the module, regardless of its ACL categories. These are the AI.* and
 * QA.* commands, and the commands that unregister, pause and resume registrations. The commands for registrations give
 * functions no additional rights, because every user who may store functions may run these commands, too. */
int link_may_run(const char *command);

RedisModuleUser *link_user(void);

/* Makes the calling client a link with the rights of the worker's user. 0: the server does not allow the change of the
 * client's user. */
int link_add(RedisModuleCtx *ctx);

/* 1: the calling client is a link of the current worker. 0: it is not, and the function has replied NOPERM. */
int link_require(RedisModuleCtx *ctx, const char *command);

/* Call it when an atomic block of the worker (scripts/gears/atomic.c) starts (1) or ends (0) a command. */
void link_set_in_block(int in_block);
int link_in_block(void);

/* 1: the client with this id is a link of the current worker. */
int link_is_link(unsigned long long client_id);
int link_count(void);

/* Closes the links of a dead worker. They lose their rights at once. */
void link_close_all(RedisModuleCtx *ctx);
