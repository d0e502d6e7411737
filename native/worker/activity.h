/* Asks the kernel whether a process is active. Works only on Linux. On other systems, the functions return
 * "unknown". */
#pragma once

#include <sys/types.h>

/* Returns the processor time that the process has used, in microseconds. -1: unknown. */
long long activity_cpu_us(pid_t pid);

/* 1: all threads of the process sleep or are stopped. 0: a thread runs, or waits for a processor or a disk, or the
 * state is unknown. Reads one small file for each thread. */
int activity_all_sleep(pid_t pid);
