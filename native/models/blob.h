/* The file of a model: a list of strings of the server, in the form in which a client's command or an RDB file
 * delivered them. A blob does not copy or join the strings.
 *
 * OWNERSHIP. A blob has a reference count, because copies of a model share it. The last release may happen on any
 * thread. The server does not count the owners of its strings atomically, so at the last release the blob must be the
 * only owner of each string. The arguments of a command also belong to its client until the command has ended, and a
 * blocked command ends after its job. So code that makes a blob of arguments keeps a reference of its own until both
 * the command and the job have ended. It releases this reference with blob_release_later. */
#ifndef QA_BLOB_H
#define QA_BLOB_H

#include <stdatomic.h>
#include <stddef.h>

#include "server/args.h"
#include "server/module_api.h"

typedef struct Blob {
    atomic_uint refs;
    size_t size, n;
    RedisModuleString *chunks[]; /* no chunk is empty */
} Blob;

/* Returns a blob with one reference. The blob adds a reference to each chunk. */
Blob *blob_of(RedisModuleString **chunks, size_t n);
Blob *blob_retain(Blob *blob);
void blob_release(Blob *blob);
/* Releases the blob in the next round of the event loop. A thread frees the memory of a large blob. Main thread
 * only. */
void blob_release_later(Blob *blob);

/* Returns the `length` bytes that start at `at`, which must be within the blob. If they are in several chunks, they are
 * joined in `room`, which must have `length` bytes. A blob of one chunk does not need `room`. */
const char *blob_part(const Blob *blob, size_t at, size_t length, char *room);

/* Adds the chunks to the arguments of a command. */
void blob_add_to(const Blob *blob, ArgList *args);
void blob_save(RedisModuleIO *io, const Blob *blob);
/* NULL: the file is damaged. */
Blob *blob_load(RedisModuleIO *io);
/* Adds the bytes to the digest; the result does not depend on the chunks. */
void blob_digest(RedisModuleDigest *digest, const Blob *blob);
size_t blob_memory(const Blob *blob);

#endif
