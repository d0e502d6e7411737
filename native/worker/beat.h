/* The values that the worker reports with its heartbeat (QA.BEAT), and their names in INFO. To add a value, add a row
 * in beat.c. */
#pragma once

#include <stddef.h>

#include "server/module_api.h"

typedef enum { BEAT_OF_WORKER, BEAT_OF_INFERENCE } BeatSection;

/* Reads the arguments of QA.BEAT: pairs of a name and a value. A value without a pair does not change. 0: a name is
 * unknown or a value is invalid. Then no value changes, and `error` has an error line. */
int beat_read(RedisModuleString **argv, int argc, char *error, size_t size);

/* Sets all values to 0. Call it when a new worker starts. */
void beat_reset(void);

/* Adds the values of a section to INFO. */
void beat_add_info(RedisModuleInfoCtx *info, BeatSection section);

/* The resident memory of the worker at its last heartbeat, and the maximum of all workers since the module was
 * loaded. */
long long beat_rss_bytes(void);
long long beat_peak_rss_bytes(void);
