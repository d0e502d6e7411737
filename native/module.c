/* The entry point of the module qa, and a description of its wings, threads and ownership.
 *
 * WINGS AND ROOMS. The module has two parts, which are called wings. The question wing serves questions:
 *   index/      an inverted index; a library that does not depend on the server
 *   server/     the API of the server, settings, keys, arguments, replies, and the links of the worker
 *   jobs/       the queue of the work for the worker, and the clients that wait for it
 *   models/     models behind keys, and the commands that store them
 *   corpus/     indexes behind keys, the QA.INDEX.* commands, writes of documents, and notes of changed texts
 *   functions/  registrations, and their callers: events, the keymiss hook, triggers
 *   worker/     the worker process and its commands
 * The scripts wing implements RedisGears and RedisAI for the scripts of users:
 *   scripts/gears/  RG.* commands, their administration of registrations, streams, atomic blocks
 *   scripts/ai/     tensors, TorchScript, model runs, DAGs
 * Each folder is a room. The scripts wing may include the question wing, but the question wing must not include the
 * scripts wing. A room only includes the rooms that tests/contract/test_native_rooms.py lists for it. If a lower room
 * must call a higher room, it gets a table of functions at load time: jobs_attach, registry_attach,
 * supervisor_attach_control.
 *
 * THREADS. All code runs on the server's main thread: in commands, in the replies of blocked clients, in keyspace
 * notifications, in timers and in event loop callbacks (the control socket and the output of the worker). So no code
 * reads a partly changed state. Other threads only free memory:
 *   - The server may free the value of a deleted key on a background thread. On this thread, the `free` of a data type
 *     releases only memory that no other value shares. A list with a lock passes the rest to the main thread
 *     (runnable.c).
 *   - A second lock guards the list of all indexes (stored_index.c).
 *   - A short-lived thread of the module frees the memory of a large model (blob.c).
 *
 * The worker is a separate process for long work. supervisor.c starts it with posix_spawn. It does not use fork,
 * because a fork copies page tables, and its duration grows with the data set. The worker is an ordinary client of the
 * server. It can crash, hang or send wrong replies. A crash closes the control socket. A hang shows as missing
 * heartbeats, or as a job that passes its deadline. A wrong reply causes a parse error. In each case the affected jobs
 * end with an error, and the module kills the worker if necessary.
 *
 * OWNERSHIP. A Job (job.h) owns its data and the client that waits for it. It has one state at a time: queued, running,
 * or ended with a pending reply to its client. When a client leaves, its job ends. If this job was running, cancelled.c
 * has a record of it until the worker reports its end. If the worker does not report its end in time, the module kills
 * the worker. A Registration (registration.h) belongs to its Session. Jobs refer to a registration by id, never by
 * pointer, because the registration may be removed before the job ends. A link (links.c) is a client id. Its rights are
 * valid while the token of its worker is valid.
 *
 * ORDER. The module blocks a client before the worker can get its job, so no answer arrives too early. A job leaves the
 * queue when the module writes the reply to QA.NEXT, not when the module wakes a waiting link. So no job is lost if the
 * link dies in between. A job writes keys in the context of QA.DONE or of a timer, where replication is in order. The
 * client's reply follows in the same round of the event loop. A timer handles a worker's death for the same reason.
 *
 * REJECTED
 *   - Threads that run models in the server: a crash of a model would crash the server.
 *   - A separate socket for jobs: a second protocol needs framing, authentication and limits, and saves only a few
 *     microseconds.
 *   - Workers started with fork: see above.
 *   - Blocking the server until a function answers. The only exception is QA.ATOMIC, with a lease in milliseconds
 *     (atomic.c). */
#include <stdio.h>

#include "corpus/cmd_document.h"
#include "corpus/cmd_index_parts.h"
#include "corpus/cmd_index_read.h"
#include "corpus/cmd_index_vectors.h"
#include "corpus/cmd_index_watch.h"
#include "corpus/cmd_index_write.h"
#include "corpus/notes.h"
#include "functions/calling.h"
#include "functions/cmd_register.h"
#include "functions/cmd_trigger.h"
#include "functions/from_primary.h"
#include "functions/hook.h"
#include "functions/registry_files.h"
#include "info.h"
#include "jobs/jobs.h"
#include "models/cmd_model.h"
#include "scripts/ai/cmd_ai_config.h"
#include "scripts/ai/cmd_dag.h"
#include "scripts/ai/cmd_modelrun.h"
#include "scripts/ai/cmd_runnable.h"
#include "scripts/ai/cmd_script.h"
#include "scripts/ai/cmd_scriptrun.h"
#include "scripts/ai/cmd_tensor.h"
#include "scripts/gears/atomic.h"
#include "scripts/gears/cmd_rg.h"
#include "scripts/gears/registry_admin.h"
#include "scripts/gears/registry_dump.h"
#include "scripts/gears/settings.h"
#include "scripts/gears/stream.h"
#include "scripts/gears/tombstones.h"
#include "server/config.h"
#include "server/links.h"
#include "server/server.h"
#include "worker/indexing.h"
#include "worker/qa_commands.h"
#include "worker/supervisor.h"

#define EXPORTED __attribute__((visibility("default")))

/* Each part follows the parts that it needs. link_create_user allows the worker's user to run the commands of the parts
 * above it. The supervisor is last, because it starts a worker. */
/* clang-format off */
static int (*const PARTS[])(RedisModuleCtx *) = {
    /* the question wing */
    jobs_on_load,
    link_on_load,
    calling_on_load,
    registry_files_on_load,
    register_on_load,
    trigger_on_load,
    from_primary_on_load,
    hook_on_load,
    model_on_load,
    index_write_on_load,
    index_parts_on_load,
    index_read_on_load,
    index_watch_on_load,
    index_vectors_on_load,
    document_on_load,
    notes_on_load,
    qa_commands_on_load,
    indexing_on_load,
    /* the scripts wing */
    atomic_on_load,
    tombstones_on_load,
    registry_admin_on_load,
    registry_dump_on_load,
    stream_on_load,
    settings_on_load,
    rg_on_load,
    tensor_on_load,
    model_run_on_load,
    script_on_load,
    script_run_on_load,
    runnable_on_load,
    dag_on_load,
    ai_config_on_load,
    /* both */
    info_on_load,
    link_create_user,
    supervisor_on_load,
};
/* clang-format on */

EXPORTED int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    const char *missing = module_api_load(ctx);
    if (missing) {
        fprintf(stderr, "qa: this server has no RedisModule_%s: Redis 7.0 or Valkey 8 is needed\n", missing);
        return REDISMODULE_ERR;
    }
    if (server_on_load(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (config_on_load(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (settings_load_arguments(ctx, argv, argc) != REDISMODULE_OK) return REDISMODULE_ERR;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (PARTS[i](ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return REDISMODULE_OK;
}

/* Refuses to unload the module: keys of the module's types, blocked clients and the worker need its code. */
EXPORTED int RedisModule_OnUnload(RedisModuleCtx *ctx) {
    RedisModule_Log(ctx, "warning", "the module qa cannot be unloaded");
    return REDISMODULE_ERR;
}
