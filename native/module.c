/* The entry point of the module qa. docs/design/rooms.md describes its wings and rooms.
 *
 * THREADS. All code runs on the server's main thread: in commands, in the replies of blocked clients, in keyspace
 * notifications, in timers and in event loop callbacks (the control socket and the output of the worker). So no code
 * reads a partly changed state. Other threads only free memory:
 *   - The server may free the value of a deleted key on a background thread. On this thread, the `free` of a data type
 *     releases only memory that no other value shares. A list with a lock passes the other parts of a model or script
 *     to the main thread, which frees them (runnable.c).
 *   - Before the server frees an index on this thread, `free` removes the index from the list of all indexes. A second
 *     lock guards this list (stored_index.c).
 *   - A short-lived thread of the module frees the memory of a large model (blob.c).
 *
 * THE WORKER is a separate process for long work, and an ordinary client of the server. It can crash, hang or send
 * wrong replies. Then the affected jobs end with an error or are tried once more, and the module kills the worker if
 * necessary. supervisor.c starts the worker with posix_spawn, because the duration of a fork grows with the data set.
 *
 * OWNERSHIP. A Job owns its data and the client that waits for it (jobs.c). A Registration belongs to its Session. Jobs
 * refer to a registration by id, never by pointer, because the registration may be removed before the job ends. A link
 * (links.c) is a client id, whose rights are valid while the token of its worker is valid.
 *
 * ORDER. The module blocks a client before the worker can get its job, so no answer arrives too early. A job leaves the
 * queue when the module writes the reply to QA.NEXT, so no job is lost if the link dies before. A job writes keys in
 * the context of QA.DONE or of a timer, where replication is in order. A timer handles a worker's death, because the
 * module also writes keys then, for example the failures of documents.
 *
 * Only QA.ATOMIC blocks the server while a function runs, at most until the end of a lease (atomic.c). */
#include <stdio.h>

#include "scripts/gears/settings.h"
#include "server/config.h"
#include "server/server.h"

#define EXPORTED __attribute__((visibility("default")))

/* The load functions of the parts: files that register commands or data types, or subscribe to events. Each part
 * follows the parts that it needs. link_create_user allows the worker's user to run commands of the parts in the lines
 * before it. The supervisor is last, because it starts a worker. */
/* clang-format off */
#define PARTS(X)                                                                                                      \
    /* the question wing */                                                                                           \
    X(jobs_on_load) X(link_on_load) X(calling_on_load) X(tombstones_on_load) X(registry_files_on_load)                \
    X(register_on_load) X(trigger_on_load) X(from_primary_on_load) X(hook_on_load) X(model_on_load)                   \
    X(index_write_on_load) X(index_parts_on_load) X(index_read_on_load) X(index_watch_on_load)                        \
    X(index_vectors_on_load) X(document_on_load) X(notes_on_load) X(qa_commands_on_load) X(indexing_on_load)          \
    /* the scripts wing */                                                                                            \
    X(atomic_on_load) X(registry_admin_on_load) X(registry_dump_on_load) X(stream_on_load) X(settings_on_load)        \
    X(rg_on_load) X(tensor_on_load) X(model_run_on_load) X(script_on_load) X(script_run_on_load) X(runnable_on_load)  \
    X(dag_on_load) X(ai_config_on_load)                                                                               \
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
