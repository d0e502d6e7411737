/* A run is a range of consecutive ids of one document. Ids ascend and are never reused. The runs are in an array of
 * chunks, in ascending order, with binary search. After a run is removed, its ids belong to no document, and the
 * postings with these ids are dead. */
#include "index/runs.h"

#include "index/memory.h"

enum { FIRST_RUNS = 8, CHUNK_RUNS = 256 };

static void insert_chunk(Index *index, Runs *runs, uint64_t base) {
    if (runs->count == runs->capacity) {
        uint32_t wanted = runs->capacity ? runs->capacity * 2 : 1;
        runs->chunks = memory_resize(index, runs->chunks, runs->capacity * sizeof *runs->chunks,
                                     wanted * sizeof *runs->chunks);
        runs->capacity = wanted;
    }
    uint16_t capacity = runs->count ? CHUNK_RUNS : FIRST_RUNS;
    runs->chunks[runs->count++] = (RunChunk){
        .base = base, .runs = memory_alloc(index, capacity * sizeof(Run)), .capacity = capacity};
}

void runs_append(Index *index, uint64_t first, uint32_t count, uint32_t document, uint32_t sentence) {
    Runs *runs = &index->runs;
    RunChunk *chunk = runs->count ? &runs->chunks[runs->count - 1] : NULL;
    if (chunk && chunk->count) {
        Run *last = &chunk->runs[chunk->count - 1];
        uint64_t total = (uint64_t)last->count + count;
        if (last->document == document && chunk->base + last->first + last->count == first && total <= UINT32_MAX) {
            last->count = (uint32_t)total;
            return;
        }
    }
    if (!chunk || chunk->count == CHUNK_RUNS || first - chunk->base > UINT32_MAX) {
        insert_chunk(index, runs, first);
        chunk = &runs->chunks[runs->count - 1];
    } else if (chunk->count == chunk->capacity) {
        chunk->runs = memory_resize(index, chunk->runs, chunk->capacity * sizeof(Run),
                                    chunk->capacity * 2 * sizeof(Run));
        chunk->capacity *= 2;
    }
    chunk->runs[chunk->count++] = (Run){(uint32_t)(first - chunk->base), count, sentence, document};
}

/* Returns the last chunk whose base is at or below the id, or chunk 0. */
static uint32_t chunk_of(const Runs *runs, uint64_t id) {
    uint32_t low = 0, high = runs->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (runs->chunks[middle].base <= id) low = middle;
        else high = middle;
    }
    return low;
}

/* Returns how many runs of the chunk start at or before the id. */
static uint32_t runs_until(const RunChunk *chunk, uint64_t id) {
    if (id < chunk->base) return 0;
    uint64_t offset = id - chunk->base;
    uint32_t low = 0, high = chunk->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (chunk->runs[middle].first <= offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

static Place place_of(const RunChunk *chunk, uint32_t run) {
    const Run *found = &chunk->runs[run];
    uint64_t first = chunk->base + found->first;
    return (Place){first, first + found->count, found->document, found->sentence};
}

Place runs_find(const Index *index, uint64_t id) {
    const Runs *runs = &index->runs;
    if (runs->count) {
        const RunChunk *chunk = &runs->chunks[chunk_of(runs, id)];
        uint32_t until = runs_until(chunk, id);
        if (until) {
            Place place = place_of(chunk, until - 1);
            if (id < place.end) return place;
        }
    }
    return (Place){id, id + 1, NO_ITEM, 0};
}

RunsAt runs_at(const Index *index, uint64_t id) {
    const Runs *runs = &index->runs;
    if (!runs->count) return (RunsAt){0, 0};
    uint32_t chunk = chunk_of(runs, id), run = runs_until(&runs->chunks[chunk], id);
    if (run && id < place_of(&runs->chunks[chunk], run - 1).end) run--;
    return (RunsAt){chunk, run};
}

bool runs_next(const Index *index, RunsAt *at, Place *place) {
    const Runs *runs = &index->runs;
    for (; at->chunk < runs->count; at->chunk++, at->run = 0) {
        const RunChunk *chunk = &runs->chunks[at->chunk];
        if (at->run == chunk->count) continue;
        *place = place_of(chunk, at->run++);
        return true;
    }
    return false;
}

Place runs_from(const Index *index, uint64_t id) {
    RunsAt at = runs_at(index, id);
    Place place;
    return runs_next(index, &at, &place) ? place : (Place){NO_ID, NO_ID, NO_ITEM, 0};
}

static void drop_chunk(Index *index, Runs *runs, uint32_t at) {
    memory_free(index, runs->chunks[at].runs, runs->chunks[at].capacity * sizeof(Run));
    memmove(runs->chunks + at, runs->chunks + at + 1, (runs->count - at - 1) * sizeof *runs->chunks);
    runs->count--;
}

/* Moves the runs of the next chunk into chunk number `at`, if the runs of both chunks fill at most half a chunk. */
static void join_next(Index *index, Runs *runs, uint32_t at) {
    if (at + 1 >= runs->count) return;
    RunChunk *chunk = &runs->chunks[at], *next = chunk + 1;
    uint64_t shift = next->base - chunk->base;
    if (chunk->count + next->count > CHUNK_RUNS / 2 || next->capacity != CHUNK_RUNS) return;
    if (next->count && shift + next->runs[next->count - 1].first > UINT32_MAX) return;
    if (chunk->capacity < CHUNK_RUNS) {
        chunk->runs = memory_resize(index, chunk->runs, chunk->capacity * sizeof(Run), CHUNK_RUNS * sizeof(Run));
        chunk->capacity = CHUNK_RUNS;
    }
    for (uint32_t i = 0; i < next->count; i++) {
        chunk->runs[chunk->count] = next->runs[i];
        chunk->runs[chunk->count++].first += (uint32_t)shift;
    }
    drop_chunk(index, runs, at + 1);
}

void runs_remove(Index *index, uint64_t id) {
    Runs *runs = &index->runs;
    uint32_t at = chunk_of(runs, id);
    RunChunk *chunk = &runs->chunks[at];
    uint32_t run = runs_until(chunk, id) - 1;
    memmove(chunk->runs + run, chunk->runs + run + 1, (chunk->count - run - 1) * sizeof(Run));
    if (--chunk->count) {
        join_next(index, runs, at);
        if (at) join_next(index, runs, at - 1);
    } else {
        drop_chunk(index, runs, at);
    }
    if (runs->capacity > 8 && runs->count < runs->capacity / 4) {
        runs->chunks = memory_resize(index, runs->chunks, runs->capacity * sizeof *runs->chunks,
                                     runs->capacity / 2 * sizeof *runs->chunks);
        runs->capacity /= 2;
    }
}

void runs_free(Index *index) {
    while (index->runs.count) drop_chunk(index, &index->runs, index->runs.count - 1);
    memory_free(index, index->runs.chunks, index->runs.capacity * sizeof *index->runs.chunks);
}
