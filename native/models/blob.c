/* blob.h explains the ownership of blobs. */
#include "models/blob.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#define SAVED_PIECE                                                                                                    \
    (64UL << 20) /* the size of every piece in an RDB file except the last; a change needs a new encoding version */
#define MORE_CHUNKS 64
#define LARGE (1UL << 20) /* freeing a larger blob takes long */

static Blob *blob_new(size_t room) {
    Blob *blob = RedisModule_Alloc(sizeof *blob + room * sizeof *blob->chunks);
    atomic_init(&blob->refs, 1);
    blob->size = blob->n = 0;
    return blob;
}

/* Adds a chunk of `length` bytes. Takes ownership of the caller's reference to the string. */
static void add_chunk(Blob *blob, RedisModuleString *chunk, size_t length) {
    blob->chunks[blob->n++] = chunk;
    blob->size += length;
}

Blob *blob_of(RedisModuleString **chunks, size_t n) {
    Blob *blob = blob_new(n);
    for (size_t i = 0; i < n; i++) {
        size_t length;
        RedisModule_StringPtrLen(chunks[i], &length);
        if (length) add_chunk(blob, RedisModule_HoldString(NULL, chunks[i]), length);
    }
    return blob;
}

Blob *blob_retain(Blob *blob) {
    atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
    return blob;
}

/* ---- Freeing ---- */

static void *free_blob(void *data) {
    Blob *blob = data;
    for (size_t i = 0; i < blob->n; i++) RedisModule_FreeString(NULL, blob->chunks[i]);
    RedisModule_Free(blob);
    return NULL;
}

static int is_last(Blob *blob) { return atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) == 1; }

void blob_release(Blob *blob) {
    if (is_last(blob)) free_blob(blob);
}

/* Frees the blob on a new thread. 0: no thread could start. The new thread blocks all signals, because the server's own
 * threads handle signals. */
static int free_elsewhere(Blob *blob) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, free_blob, blob);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(thread);
    return !failed;
}

static void release_now(void *data) {
    Blob *blob = data;
    if (!is_last(blob)) return;
    if (blob->size < LARGE || !free_elsewhere(blob)) free_blob(blob);
}

void blob_release_later(Blob *blob) { RedisModule_EventLoopAddOneShot(release_now, blob); }

/* ---- Reading ---- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

const char *blob_part(const Blob *blob, size_t at, size_t length, char *room) {
    size_t chunk_length, done = 0, i = 0;
    const char *chunk = RedisModule_StringPtrLen(blob->chunks[0], &chunk_length);
    while (at >= chunk_length) {
        at -= chunk_length;
        chunk = RedisModule_StringPtrLen(blob->chunks[++i], &chunk_length);
    }
    if (length <= chunk_length - at) return chunk + at;
    for (;;) {
        size_t more = least(length - done, chunk_length - at);
        memcpy(room + done, chunk + at, more);
        done += more;
        if (done == length) return room;
        at = 0;
        chunk = RedisModule_StringPtrLen(blob->chunks[++i], &chunk_length);
    }
}

void blob_add_to(const Blob *blob, ArgList *args) {
    for (size_t i = 0; i < blob->n; i++) arg_list_hold(args, blob->chunks[i]);
}

/* Calls `visit` for each piece of SAVED_PIECE bytes of the blob (the last piece may be shorter). RDB files have these
 * pieces. The pieces do not depend on the blob's division into chunks. */
static void each_piece(const Blob *blob, void (*visit)(void *to, const char *data, size_t length), void *to) {
    char *room = blob->n > 1 ? RedisModule_Alloc(least(blob->size, SAVED_PIECE)) : NULL;
    for (size_t at = 0; at < blob->size; at += SAVED_PIECE) {
        size_t length = least(blob->size - at, SAVED_PIECE);
        visit(to, blob_part(blob, at, length, room), length);
    }
    RedisModule_Free(room);
}

static void save_piece(void *io, const char *data, size_t length) { RedisModule_SaveStringBuffer(io, data, length); }

void blob_save(RedisModuleIO *io, const Blob *blob) {
    RedisModule_SaveUnsigned(io, blob->size);
    each_piece(blob, save_piece, io);
}

static void digest_piece(void *digest, const char *data, size_t length) {
    RedisModule_DigestAddStringBuffer(digest, data, length);
}

void blob_digest(RedisModuleDigest *digest, const Blob *blob) { each_piece(blob, digest_piece, digest); }

/* The total length of the pieces must equal the size at the start. Memory grows only with the bytes that were read. So
 * a damaged file with a wrong size does no harm. */
Blob *blob_load(RedisModuleIO *io) {
    uint64_t size = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || size == 0 || size > SIZE_MAX / 2) return NULL;
    size_t pieces = (size - 1) / SAVED_PIECE + 1, room = 0;
    Blob *blob = blob_new(room);
    while (blob->n < pieces) {
        size_t length;
        RedisModuleString *piece = RedisModule_LoadString(io);
        if (!piece) break;
        RedisModule_StringPtrLen(piece, &length);
        if (RedisModule_IsIOError(io) || length != least(size - blob->size, SAVED_PIECE)) {
            RedisModule_FreeString(NULL, piece);
            break;
        }
        if (blob->n == room) {
            room += MORE_CHUNKS;
            blob = RedisModule_Realloc(blob, sizeof *blob + room * sizeof *blob->chunks);
        }
        add_chunk(blob, piece, length);
    }
    if (blob->size == size) return blob;
    blob_release(blob);
    return NULL;
}

size_t blob_memory(const Blob *blob) {
    size_t bytes = RedisModule_MallocSize((void *)blob);
    for (size_t i = 0; i < blob->n; i++) bytes += RedisModule_MallocSizeString(blob->chunks[i]);
    return bytes;
}
