/* The file of a model, as a list of strings of the server. The strings are the arguments of a client's command, or
 * pieces of an RDB file. A blob does not copy or join the strings.
 *
 * OWNERSHIP. A blob has a reference count, because copies of a model share the blob. The last release may happen on any
 * thread. The server's reference counts of strings are not atomic, so at the last release the blob must be the only
 * owner of each string. The arguments of a command also belong to the client until the command has ended, and a command
 * that waits for a job ends after the job. So code that creates a blob from arguments must keep a reference of its own
 * to the blob until the command and the job have ended. The code releases this reference with blob_release_later. */
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

/* Returns a blob of these strings, with one reference, which belongs to the caller. The blob adds a reference to each
 * string. */
Blob *blob_of(RedisModuleString **chunks, size_t n);
Blob *blob_retain(Blob *blob);
void blob_release(Blob *blob);
/* Releases the blob in the next round of the event loop. A thread frees the memory of a large blob. Main thread only.
 */
void blob_release_later(Blob *blob);

/* Returns the `length` bytes at `at`, which must be within the blob. If several chunks contain these bytes, joins them
 * in `room`, a buffer of `length` bytes. A blob of one chunk does not need `room`. */
const char *blob_part(const Blob *blob, size_t at, size_t length, char *room);

/* Adds the chunks to the arguments of a command. */
void blob_add_to(const Blob *blob, ArgList *args);
void blob_save(RedisModuleIO *io, const Blob *blob);
/* Reads a blob that blob_save has written. NULL: the file is damaged. */
Blob *blob_load(RedisModuleIO *io);
/* Adds the bytes to the digest; the result does not depend on the chunks. */
void blob_digest(RedisModuleDigest *digest, const Blob *blob);
size_t blob_memory(const Blob *blob);
