/* What a worker gets of the server's environment. Variables of a server often hold passwords (QA_CLUSTER_PASSWORD,
 * those of a container), and the worker, its inference workers and whatever a function starts would carry them on. So
 * there is a list of what programs and runtimes need; an administrator adds names with qa.worker-environment.
 *
 * QA_* settings are none of the worker's business: the module tells it what it must know (QA.HELLO). LD_PRELOAD is
 * meant for the server. QA_TEST_* are how tests find what they have left. */
#include "worker/environment.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "server/config.h"
#include "server/module_api.h"

/* A name that ends with a star stands for all that begin like it. */
static const char *const ALLOWED[] = {
    /* where programs, files and texts are */
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

/* Is it among the names of qa.worker-environment? */
static int is_added(const char *name, size_t length) {
    for (const char *at = config.worker_environment; *at;) {
        size_t size = strcspn(at, ",");
        if (size == length && !memcmp(at, name, length)) return 1;
        at += size + (at[size] == ',');
    }
    return 0;
}

/* Valkey loads modules with RTLD_DEEPBIND. `environ` is libc's own then, and NULL: the program has a copy of the
 * variable, to which libc refers, too, but no module does. So the program is asked for it. */
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
