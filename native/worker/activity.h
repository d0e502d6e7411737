/* Whether a process is active, as the kernel sees it. Linux only: elsewhere nothing is known about a process. */
#ifndef QA_ACTIVITY_H
#define QA_ACTIVITY_H

#include <sys/types.h>

/* The processor time that the process has used, in microseconds; -1: unknown. */
long long activity_cpu_us(pid_t pid);

/* 1: no thread of the process runs or waits for a processor or a disk: all threads sleep or are stopped. 0: a thread
 * does, or nothing is known. It reads one small file for each thread. */
int activity_all_sleep(pid_t pid);

#endif
