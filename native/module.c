/* The module qa: its entry point, and a description of its rooms, its threads and its ownership.
 *
 * ROOMS. server/ holds what the module needs from the server: the API, settings, keys, arguments and replies, the links
 * of the worker. jobs/ is the queue of what the worker has to do. values/ holds the tensors, models and scripts behind
 * keys, ai/ the AI.* commands on them. index/ is a library that knows nothing of the server; corpus/ puts its indexes
 * behind keys, has the QA.INDEX.* commands, and notes which texts have changed. functions/ holds registrations and what
 * calls them: events, the keymiss hook, triggers, streams. worker/ holds the worker process and its commands. Each room
 * knows only rooms before it (functions/ neither values/ nor ai/, corpus/ only server/ and index/). What a lower room
 * needs from a higher one, it gets at load time: jobs_attach, atomic_attach.
 *
 * THREADS. Other threads only free memory. All else happens on the server's main thread: in commands, in the replies of
 * blocked clients, in keyspace notifications, in timers and in event loop callbacks (the control socket and the output
 * of the worker). So nothing ever sees a state half changed. The server may free values of deleted keys on a background
 * thread of its own: there the `free` of a data type gives up what its value alone owns and leaves the rest to the main
 * thread, on a list under a lock (runnable.c). A second lock guards the list of all indexes (stored_index.c). A
 * short-lived thread of ours gives back the memory of a large model (blob.c).
 *
 * The worker, a process of its own, does what takes long. supervisor.c starts it with posix_spawn (not fork: the data
 * set may be large, and the time to copy its page tables grows with it). It talks to the server as an ordinary client
 * and can crash, hang or lie. A crash closes the control socket; a hang shows as silence or as a job that outlives its
 * deadline; a lie is a reply that does not parse. Each ends the jobs concerned with an error and, if need be, the
 * worker.
 *
 * OWNERSHIP. A Job (jobs.c) owns its data, and the client that waits for it. It is in one place at a time: in a lane of
 * the queue, in the list of running jobs, or ended and waiting for the server to write its client's reply. Only jobs.c
 * moves it. A client that leaves ends its job; if the worker has begun it, a tombstone remembers the id until the
 * worker says that it is done, or until the module kills a worker that does not say so. A Registration (registry.c)
 * belongs to its Session; jobs refer to it by id, never by pointer, because it may be gone when they end. A link
 * (links.c) is no more than a client id; its rights hang on the token of the current worker and end with it.
 *
 * ORDER. The module blocks a client before the worker can see its job, so no answer can come too early. Jobs leave the
 * queue when the module writes the reply to QA.NEXT and not when it wakes a waiting link: a link that dies in between
 * takes no job with it. A job writes in the context of QA.DONE (or of a timer), where replication is in order; the
 * client's reply follows in the same round of the event loop. A timer handles a worker's death for the same reason.
 *
 * REJECTED. Threads that run models in the server: a crash there would crash the data set. A socket of our own for
 * jobs: it would be a second protocol to frame, authenticate and bound, and save a few microseconds. Forking workers.
 * Blocking the server for a function's answer; the one exception is QA.ATOMIC, which has a lease in milliseconds
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
#include "corpus/cmd_index_parts.h"
#include "corpus/cmd_index_read.h"
#include "corpus/cmd_index_watch.h"
#include "corpus/cmd_index_write.h"
#include "corpus/notes.h"
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

/* Each part comes after those that it needs. The worker's user gets the commands registered before it, and the
 * supervisor comes last, because it will start a worker. */
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
    index_parts_on_load,
    index_read_on_load,
    index_watch_on_load,
    notes_on_load,
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

/* Keys of our types, blocked clients and the worker process cannot do without this code. */
EXPORTED int RedisModule_OnUnload(RedisModuleCtx *ctx) {
    RedisModule_Log(ctx, "warning", "the module qa cannot be unloaded");
    return REDISMODULE_ERR;
}
