/* The environment variables of a worker. */
#ifndef QA_WORKER_ENVIRONMENT_H
#define QA_WORKER_ENVIRONMENT_H

/* A new array, ending with NULL, of variables (NAME=VALUE) for the worker. Free the array with RedisModule_Free, but
 * not the texts. */
char **environment_for_worker(void);

#endif
