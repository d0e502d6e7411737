/* The module qa: its entry point, and the story of its rooms, its threads and its ownership.
 *
 * ROOMS. server/ is what the module needs of the server: the API, settings, keys, arguments and replies, the links of
 * the worker. jobs/ is the queue of what the worker is asked to do. values/ are the tensors, models and scripts behind
 * keys, ai/ the AI.* commands on them. index/ is a library that knows nothing of the server, corpus/ its indexes behind
 * keys and the QA.INDEX.* commands. functions/ are registrations and what calls them: events, the keymiss hook,
 * triggers, streams. worker/ is the worker process and what it says. Each knows only rooms before it (functions/
 * neither values/ nor ai/, corpus/ only server/ and index/); what a lower room needs of a higher one, it is given at
 * load time: jobs_attach, atomic_attach.
 *
 * THREADS. None that does anything but free memory. Whatever the module does happens on the server's main thread: in
 * commands, in the replies of blocked clients, in keyspace notifications, in timers and in event loop callbacks (the
 * control socket and the output of the worker). So no state is ever seen half changed. The server may free values of
 * deleted keys on a background thread of its own: there the `free` of a data type gives up what its value alone owns
 * and leaves the rest to the main thread, on a list under a lock (runnable.c). The other lock is that of the list of
 * all indexes (stored_index.c). The memory of a large model is given back by a short-lived thread of ours (blob.c).
 *
 * What takes long is done elsewhere: the worker, a process of its own, started by supervisor.c with posix_spawn (not
 * fork: the data set may be large, and a fork's page tables cost time in proportion). It talks to the server as an
 * ordinary client and can crash, hang or lie: a crash shows as the control socket's closing, a hang as silence or as a
 * job that outlives its deadline, a lie as a reply that does not parse. Each costs the jobs concerned an error and, if
 * need be, the worker its life.
 *
 * OWNERSHIP. A Job (jobs.c) owns its data, and the client that waits for it. It is in one place at a time: in a lane of
 * the queue, in the list of running jobs, or ended and waiting for the server to write its client's reply. Only jobs.c
 * moves it. A client that leaves ends its job; if the worker was on it already, a tombstone remembers the id until the
 * worker says that it is done, or is killed for not saying so. A Registration (registry.c) belongs to its Session; jobs
 * refer to it by id, never by pointer, because it may be gone when they end. A link (links.c) is no more than a client
 * id; its rights hang on the token of the current worker and end with it.
 *
 * ORDER. A client is blocked before its job can be seen by the worker, so no answer can come too early. Jobs leave the
 * queue when the reply to QA.NEXT is written and not when a waiting link is woken: a link that dies in between takes
 * none with it. What a job writes, it writes in the context of QA.DONE (or of a timer), where replication is in order;
 * the client's reply follows in the same round of the event loop. A worker's death is handled in a timer for the same
 * reason.
 *
 * REJECTED. Threads that run models in the server: a crash there is a crash of the data set. A socket of our own for
 * jobs: a second protocol to frame, authenticate and bound, for a saving of few microseconds. Forking workers. Blocking
 * the server for a function's answer, with the one exception of QA.ATOMIC, which is leased by the millisecond
 * (atomic.c). */
#include <stdio.h>

#include "ai/cmd_ai_config.h"
#include "ai/cmd_dag.h"
#include "ai/cmd_model.h"
#include "ai/cmd_modelrun.h"
#include "ai/cmd_runnable.h"
#include "ai/cmd_script.h"
#include "ai/cmd_scriptrun.h"
#include "ai/cmd_tensor.h"
#include "cmd_rg.h"
#include "corpus/cmd_index_read.h"
#include "corpus/cmd_index_watch.h"
#include "corpus/cmd_index_write.h"
#include "functions/atomic.h"
#include "functions/calling.h"
#include "functions/hook.h"
#include "functions/registry.h"
#include "functions/registry_admin.h"
#include "functions/registry_stats.h"
#include "functions/stream.h"
#include "info.h"
#include "jobs/jobs.h"
#include "server/config.h"
#include "server/links.h"
#include "server/server.h"
#include "worker/qa_commands.h"
#include "worker/supervisor.h"

#define EXPORTED __attribute__((visibility("default")))

/* Each part comes after those that it needs. The worker's user is made of the commands registered before it, and the
 * supervisor, which will start a worker, comes last. */
/* clang-format off */
static int (*const PARTS[])(RedisModuleCtx *) = {
    jobs_on_load,
    link_on_load,
    calling_on_load,
    atomic_on_load,
    registry_on_load,
    registry_stats_on_load,
    registry_admin_on_load,
    hook_on_load,
    stream_on_load,
    tensor_on_load,
    model_on_load,
    model_run_on_load,
    script_on_load,
    script_run_on_load,
    runnable_on_load,
    dag_on_load,
    ai_config_on_load,
    index_write_on_load,
    index_read_on_load,
    index_watch_on_load,
    qa_commands_on_load,
    rg_on_load,
    info_on_load,
    link_create_user,
    supervisor_on_load,
};
/* clang-format on */

EXPORTED int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    const char *missing = module_api_load(ctx);
    if (missing) {
        fprintf(stderr, "qa: this server has no RedisModule_%s; Redis 7.0 or Valkey 8 is needed\n", missing);
        return REDISMODULE_ERR;
    }
    if (server_on_load(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (config_on_load(ctx, argv, argc) != REDISMODULE_OK) return REDISMODULE_ERR;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (PARTS[i](ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return REDISMODULE_OK;
}

/* Keys of our types, blocked clients and a process of ours do not outlive the code. */
EXPORTED int RedisModule_OnUnload(RedisModuleCtx *ctx) {
    RedisModule_Log(ctx, "warning", "the module qa cannot be unloaded");
    return REDISMODULE_ERR;
}
