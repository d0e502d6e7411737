/* The environment variables of a server often contain passwords, such as QA_CLUSTER_PASSWORD. So the worker gets only
 * the variables of a list, and the names that an administrator adds with qa.worker-environment.
 *
 * Of the variables QA_*, the list includes only QA_TEST_*, which tests use to find remaining processes. The worker gets
 * its settings from QA.HELLO. The list does not include LD_PRELOAD, because LD_PRELOAD is meant for the server only. */
#include "worker/environment.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "server/config.h"
#include "server/module_api.h"

/* The names of the variables that every worker gets. A name that ends with a star stands for all names with this
 * prefix. */
static const char *const ALLOWED[] = {
    /* paths, locale and time zone */
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "TZ", "LANG", "LANGUAGE", "LC_*", "XDG_CACHE_HOME",
    /* how Python and libraries are found and loaded */
    "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
    "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
    "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONFAULTHANDLER", "PYTHONWARNINGS",
    /* model runtimes */
    "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "TBB_*", "ONEDNN_*", "DNNL_*", "ORT_*", "OV_*", "OPENVINO_*",
    "TORCH_*", "PYTORCH_*", "CUDA_*", "NVIDIA_*",
    /* tests */
    "QA_TEST_*"};

static int is_listed(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof ALLOWED / sizeof *ALLOWED; i++) {
        size_t wanted = strlen(ALLOWED[i]);
        int open = ALLOWED[i][wanted - 1] == '*';
        if (open ? length >= wanted - 1 && !memcmp(name, ALLOWED[i], wanted - 1)
                 : length == wanted && !memcmp(name, ALLOWED[i], wanted))
            return 1;
    }
    return 0;
}

/* 1: qa.worker-environment contains the name. */
static int is_added(const char *name, size_t length) {
    for (const char *at = config.worker_environment; *at;) {
        size_t size = strcspn(at, ",");
        if (size == length && !memcmp(at, name, length)) return 1;
        at += size + (at[size] == ',');
    }
    return 0;
}

/* Valkey loads modules with RTLD_DEEPBIND. Then the module's `environ` is libc's own variable, which is NULL, because
 * libc uses the variable in the server program. So this function looks up the `environ` of the program. */
static char **variables_of_server(void) {
    extern char **environ;
    void *program = dlopen(NULL, RTLD_LAZY);
    char ***found = program ? dlsym(program, "environ") : NULL;
    char **variables = found ? *found : environ;
    if (program) dlclose(program);
    return variables;
}

char **environment_for_worker(void) {
    char **variables = variables_of_server();
    size_t count = 0, kept = 0;
    while (variables && variables[count]) count++;
    char **found = RedisModule_Alloc((count + 1) * sizeof *found);
    for (size_t i = 0; i < count; i++) {
        size_t length = strcspn(variables[i], "=");
        if (variables[i][length] && (is_listed(variables[i], length) || is_added(variables[i], length)))
            found[kept++] = variables[i];
    }
    found[kept] = NULL;
    return found;
}
