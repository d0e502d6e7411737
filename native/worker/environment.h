/* Which variables of the server's environment a worker gets. */
#ifndef QA_WORKER_ENVIRONMENT_H
#define QA_WORKER_ENVIRONMENT_H

/* A new array, up to NULL, of the variables (NAME=VALUE) that a worker gets; free it with RedisModule_Free, not the
 * texts. */
char **environment_for_worker(void);

#endif
