/* Cleans the index in steps. Does overdue work first (documents.c). Then sweeps all terms if at least MIN_DEAD postings
 * and at least an eighth of all postings are dead.
 *
 * A sweep (not the worker's sweep of pending documents) removes dead postings. For each term, it compares the number of
 * postings with the document frequency. The sweep reads the postings only if a term has more postings than its
 * frequency. If a term has no postings left, the sweep frees the number of the term. A removed document with overdue
 * work still has this number in its forward list. So the sweep runs only when no work is overdue. */
#include "index/structure.h"

#include "index/dictionary.h"
#include "index/documents.h"
#include "index/postings.h"

enum { MIN_DEAD = 64, HASH_UNITS = 10 };

static bool is_due(const Index *index) {
    return index->dead_postings >= MIN_DEAD && index->dead_postings >= index->postings / 8;
}

static void sweep(Index *index, int64_t *budget) {
    while (index->sweep_term < index->entries.items && *budget > 0) {
        Entry *entry = entry_at(index, index->sweep_term);
        --*budget;
        if (entry->form != FORM_FREE) {
            if (postings_count(entry) > entry->df && !postings_purge(index, entry, &index->sweep_block, budget)) return;
            if (!postings_count(entry)) *budget -= HASH_UNITS * (int64_t)dictionary_remove(index, index->sweep_term);
        }
        index->sweep_term++;
        index->sweep_block = 0;
    }
    if (index->sweep_term == index->entries.items) index->sweeping = false;
}

bool index_maintain(Index *index, int64_t budget) {
    if (budget < 1) budget = 1;
    documents_work(index, &budget);
    if (index->work) return true;
    if (!index->sweeping && is_due(index)) {
        index->sweeping = true;
        index->sweep_term = index->sweep_block = 0;
    }
    if (index->sweeping && budget > 0) sweep(index, &budget);
    return index->sweeping || is_due(index);
}
