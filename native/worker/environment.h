/* The environment variables of a worker. */
#pragma once

/* Returns a new array of NAME=VALUE texts that ends with NULL. Free the array with RedisModule_Free, but do not free
 * the texts. */
char **environment_for_worker(void);
