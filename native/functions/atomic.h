/* QA.ATOMIC: for a short, leased time the server serves the worker only, over the control socket. */
#ifndef QA_ATOMIC_H
#define QA_ATOMIC_H

#include "server/module_api.h"

int atomic_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc); /* QA.ATOMIC */

/* 1 while an atomic block runs a command. */
int atomic_running(void);

/* Reads what arrives on the control socket outside a block: commands of a block whose lease is over are told so.
 * Returns 0 when the socket is closed or what came is not a command. */
int atomic_read_stray(int fd);

/* A new worker: forgets what the last one left half said. */
void atomic_reset(void);

#endif
