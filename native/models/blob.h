/* The file of a model, as a list of strings of the server. The strings are the arguments of a client's command, or
 * pieces of an RDB file. A blob does not copy or join the strings.
 *
 * OWNERSHIP. A blob has a reference count, because copies of a model share it. The last release may happen on any
 * thread. The server's reference counts of strings are not atomic, so at the last release the blob must be the only
 * owner of each string. The arguments of a command also belong to its client until the command has ended, and a blocked
 * command ends after its job. So code that creates a blob of arguments has its own reference to the blob until the
 * command and the job have ended. It releases this reference with blob_release_later. */
#pragma once

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

/* Returns the `length` bytes at `at`, which must be within the blob. If several chunks contain these bytes, joins them
 * in `room`, a buffer of `length` bytes. A blob of one chunk does not need `room`. */
const char *blob_part(const Blob *blob, size_t at, size_t length, char *room);

/* Adds the chunks to the arguments of a command. */
void blob_add_to(const Blob *blob, ArgList *args);
void blob_save(RedisModuleIO *io, const Blob *blob);
/* NULL: the file is damaged. */
Blob *blob_load(RedisModuleIO *io);
/* Adds the bytes to the digest; the result does not depend on the chunks. */
void blob_digest(RedisModuleDigest *digest, const Blob *blob);
size_t blob_memory(const Blob *blob);
