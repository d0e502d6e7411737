/* The module's side of the worker's links (docs/worker-protocol.md, sections 2 and 3): who is a link, and handing out jobs. */
#ifndef QA_LINK_H
#define QA_LINK_H

#include "server/module_api.h"

/* The module's own user, in no list of the server's. */
#define LINK_USER_NAME "qa-worker"

/* Flags of every internal command (QA.*) but QA.HELLO; module_register lets the worker's user run whatever is named QA.*. */
#define LINK_COMMAND_FLAGS "admin deny-script allow-stale no-slowlog"

/* Types of messages on the cluster bus: from worker to worker; a change of registrations (registry_admin.c). */
enum { CLUSTER_MESSAGE = 1, CLUSTER_ADMIN = 2 };

int link_on_load(RedisModuleCtx *ctx);

/* Gives the worker's user its rights; to be called when all commands are registered. */
int link_create_user(RedisModuleCtx *ctx);
void link_allow_command(const char *name);

/* 1 when the calling client is a link of the present worker; else replies NOPERM and returns 0. */
int link_require(RedisModuleCtx *ctx, const char *command);

/* 1 when the client with this id is a link of the present worker. */
int link_is_link(unsigned long long client_id);
int link_count(void);

/* Jobs are waiting: wakes links that are blocked in QA.NEXT. */
void link_wake(void);

/* The worker has died: its links lose their rights and are closed. */
void link_close_all(RedisModuleCtx *ctx);

RedisModuleUser *link_user(void);

#endif
