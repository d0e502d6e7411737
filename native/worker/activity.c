/* On Linux, a thread that waits for a processor has the same state (R) as a running thread. So a process that gets no
 * processor time on a busy host counts as active. */
#include "worker/activity.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, STAT_BYTES = 512 };

long long activity_cpu_us(pid_t pid) {
#ifdef __linux__
    clockid_t clock;
    struct timespec used;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &used) < 0) return -1;
    return (long long)used.tv_sec * 1000000 + used.tv_nsec / 1000;
#else
    return -1;
#endif
}

/* Returns the state of a thread: the letter after the name in parentheses. '\0': the thread has ended. */
static char state_of(int folder, const char *thread) {
    char path[64], line[STAT_BYTES];
    snprintf(path, sizeof path, "%.40s/stat", thread);
    int file = openat(folder, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return '\0';
    ssize_t length = read(file, line, sizeof line - 1);
    close(file);
    if (length <= 0) return '\0';
    line[length] = '\0';
    const char *after = strrchr(line, ')');
    return after && after[1] == ' ' ? after[2] : '\0';
}

int activity_all_sleep(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    if (!folder) return 0;
    int threads = 0, active = 0;
    for (struct dirent *entry; !active && (entry = readdir(folder));) {
        if (*entry->d_name == '.') continue;
        char state = state_of(dirfd(folder), entry->d_name);
        active = state == 'R' || state == 'D' || ++threads > MAX_THREADS;
    }
    closedir(folder);
    return threads && !active;
}
