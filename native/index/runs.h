/* Finds the document of a sentence id. A run is a range of consecutive ids of one document; the first id of the
 * document's first run is the document's own id. The struct Place is a range of ids here, and not the `place` of a
 * document (index.h). */
#pragma once

#include "index/structure.h"

/* A range of ids that belong to one document, or to no document. */
typedef struct Place {
    uint64_t first, end; /* the first id, and the first id after the range */
    uint32_t document;   /* NO_ITEM: the ids belong to no document */
    uint32_t sentence; /* the number of the sentence with the id `first`, from 1; 0: `first` is the document's own id */
} Place;

/* Returns the run that contains the id. If no run contains the id, returns a range of this id and no document. */
Place runs_find(const Index *index, uint64_t id);
/* Returns the first run that ends after the id. If there is no such run, `document` is NO_ITEM. */
Place runs_from(const Index *index, uint64_t id);
/* A position in the runs, for a loop over many runs. It is valid until the runs change. */
typedef struct RunsAt {
    uint32_t chunk, run;
} RunsAt;

/* Returns the position of the first run that contains this id or a higher id. */
RunsAt runs_at(const Index *index, uint64_t id);
/* Reads the run at the position and moves to the next run. False: there is no run at the position. */
bool runs_next(const Index *index, RunsAt *at, Place *place);
/* Adds a run of `count` ids at the end, starting with the id `first`. `sentence` has the same meaning as in Place. If
 * the last run is of the same document and ends directly before `first`, extends the last run instead. */
void runs_append(Index *index, uint64_t first, uint32_t count, uint32_t document, uint32_t sentence);
/* Removes the run that contains the id. */
void runs_remove(Index *index, uint64_t id);
void runs_free(Index *index);

/* True: the id belongs to a live document. `place` caches the last range, so ascending ids rarely need a search. */
static inline bool id_is_live(const Index *index, uint64_t id, Place *place) {
    if (id < place->first || id >= place->end) *place = runs_find(index, id);
    if (place->document == NO_ITEM) return false;
    /* Usually no document is open (index->pending), and no work of a commit, an abort or a removal is queued
     * (index->work). Then all documents in the runs are live. */
    return (!index->pending && !index->work) || document_at(index, place->document)->state == DOCUMENT_LIVE;
}

/* True: the id belongs to a live or an open document. `place` caches the last range, as in id_is_live(). */
static inline bool id_is_kept(const Index *index, uint64_t id, Place *place) {
    if (id < place->first || id >= place->end) *place = runs_find(index, id);
    if (place->document == NO_ITEM) return false;
    return !index->work || document_at(index, place->document)->state != DOCUMENT_DEAD;
}
