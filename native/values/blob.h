/* The file of a model: strings of the server, as the client's command or an RDB file brought them. Nothing is copied or
 * joined.
 *
 * Ownership. A blob is counted, because the copies of a model share it; the last release may be on any thread. The
 * server does not count the owners of its strings atomically, so by then each string must be the blob's alone. A
 * command's arguments are also its client's until the command has ended, and a blocked one ends after its job.
 * Therefore code that makes a blob of arguments keeps a reference of its own until all that is over, and ends it with
 * blob_release_later. */
#ifndef QA_BLOB_H
#define QA_BLOB_H

#include <stdatomic.h>
#include <stddef.h>

#include "server/args.h"
#include "server/module_api.h"

typedef struct Blob {
    atomic_uint refs;
    size_t size, n;
    RedisModuleString *chunks[]; /* none is empty */
} Blob;

/* With one reference. The chunks become the blob's too. */
Blob *blob_of(RedisModuleString **chunks, size_t n);
Blob *blob_retain(Blob *blob);
void blob_release(Blob *blob);
/* Releases in the event loop's next turn; the memory of a large one is given back by a thread. Main thread only. */
void blob_release_later(Blob *blob);

/* `length` bytes from `at`, all of which there are: in place, or joined in `room`, which a blob of one chunk does not
 * need. */
const char *blob_part(const Blob *blob, size_t at, size_t length, char *room);

/* The chunks as arguments of a command. */
void blob_add_to(const Blob *blob, ArgList *args);
void blob_save(RedisModuleIO *io, const Blob *blob);
/* NULL: damaged. */
Blob *blob_load(RedisModuleIO *io);
/* The same for the same bytes, whatever the chunks are. */
void blob_digest(RedisModuleDigest *digest, const Blob *blob);
size_t blob_memory(const Blob *blob);

#endif
