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
 *   scripts/gears/  RG.* commands, the administration of registrations, streams, atomic blocks
 *   scripts/ai/     tensors, TorchScript, model runs, DAGs
 * Each folder is a room. The scripts wing may include the question wing, but the question wing must not include the
 * scripts wing. A room only includes the rooms that tests/contract/test_native_rooms.py lists for it. If a lower room
 * must call a higher room, it gets a table of functions at load time: jobs_attach and
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

#include "scripts/gears/settings.h"
#include "server/config.h"
#include "server/server.h"

#define EXPORTED __attribute__((visibility("default")))

/* The load functions of the parts. Each part follows the parts that it needs. link_create_user allows the worker's user
 * to run the commands of the parts above it. The supervisor is last, because it starts a worker. */
/* clang-format off */
#define PARTS(X)                                                                                                      \
    /* the question wing */                                                                                           \
    X(jobs_on_load) X(link_on_load) X(calling_on_load) X(tombstones_on_load) X(registry_files_on_load) X(register_on_load)                  \
    X(trigger_on_load) X(from_primary_on_load) X(hook_on_load) X(model_on_load) X(index_write_on_load)                \
    X(index_parts_on_load) X(index_read_on_load) X(index_watch_on_load) X(index_vectors_on_load) X(document_on_load)  \
    X(notes_on_load) X(qa_commands_on_load) X(indexing_on_load)                                                       \
    /* the scripts wing */                                                                                            \
    X(atomic_on_load) X(registry_admin_on_load) X(registry_dump_on_load) X(stream_on_load)      \
    X(settings_on_load) X(rg_on_load) X(tensor_on_load) X(model_run_on_load) X(script_on_load) X(script_run_on_load)  \
    X(runnable_on_load) X(dag_on_load) X(ai_config_on_load)                                                           \
    /* both wings */                                                                                                  \
    X(info_on_load) X(link_create_user) X(supervisor_on_load)
/* clang-format on */

#define DECLARE(part) int part(RedisModuleCtx *ctx);
PARTS(DECLARE)
#undef DECLARE

EXPORTED int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    const char *missing = module_api_load(ctx);
    if (missing) {
        fprintf(stderr, "qa: this server has no RedisModule_%s: Redis 7.0 or Valkey 8 is needed\n", missing);
        return REDISMODULE_ERR;
    }
    if (server_on_load(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (config_on_load(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (settings_load_arguments(ctx, argv, argc) != REDISMODULE_OK) return REDISMODULE_ERR;
#define LOAD(part)                                                                                                     \
    if (part(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    PARTS(LOAD)
#undef LOAD
    return REDISMODULE_OK;
}

/* Refuses to unload the module: keys of the module's types, blocked clients and the worker need its code. */
EXPORTED int RedisModule_OnUnload(RedisModuleCtx *ctx) {
    RedisModule_Log(ctx, "warning", "the module qa cannot be unloaded");
    return REDISMODULE_ERR;
}
