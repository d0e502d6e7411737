/* The file of a model: strings of the server, as the client's command or an RDB file brought them. A blob copies and
 * joins nothing.
 *
 * Ownership. A blob has a reference count, because the copies of a model share it; the last release may be on any
 * thread. The server does not count the owners of its strings atomically, so by then each string must belong to the
 * blob alone. A command's arguments also belong to its client until the command has ended, and a blocked command ends
 * after its job. Therefore code that makes a blob of arguments keeps a reference of its own until both have ended, and
 * gives it up with blob_release_later. */
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

/* A blob with one reference. It takes a reference to each chunk. */
Blob *blob_of(RedisModuleString **chunks, size_t n);
Blob *blob_retain(Blob *blob);
void blob_release(Blob *blob);
/* Releases in the event loop's next turn; a thread gives back the memory of a large one. Main thread only. */
void blob_release_later(Blob *blob);

/* `length` bytes from `at` on, which must lie within the blob: in place, or joined in `room`, which a blob of one chunk
 * does not need. */
const char *blob_part(const Blob *blob, size_t at, size_t length, char *room);

/* Adds the chunks to the arguments of a command. */
void blob_add_to(const Blob *blob, ArgList *args);
void blob_save(RedisModuleIO *io, const Blob *blob);
/* NULL: damaged. */
Blob *blob_load(RedisModuleIO *io);
/* Adds the bytes to the digest; the result does not depend on the chunks. */
void blob_digest(RedisModuleDigest *digest, const Blob *blob);
size_t blob_memory(const Blob *blob);

#endif
