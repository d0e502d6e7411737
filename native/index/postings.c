/* The three forms of a term's postings: in the term's entry, in one buffer (Tail), or in packed blocks with a buffer
 * (List). An entry has at most 5 postings in 11 bytes, and a buffer has up to 127 postings. */
#include "index/postings.h"

#include "index/blocks.h"
#include "index/memory.h"
#include "index/runs.h"

enum { TAIL_STEP = 8, INLINE_POSTINGS = 5 };

/* In a block or buffer, the last id minus the first id is less than SPAN. */
static const uint64_t SPAN = UINT64_C(1) << 32;

static void *pointer_of(const Entry *entry) {
    void *pointer;
    memcpy(&pointer, entry->payload, sizeof pointer);
    return pointer;
}

static void set_pointer(Entry *entry, uint8_t form, void *pointer) {
    entry->form = form;
    memset(entry->payload, 0, sizeof entry->payload);
    memcpy(entry->payload, &pointer, sizeof pointer);
}

static size_t tail_bytes(unsigned capacity) { return offsetof(Tail, bytes) + capacity; }

static void tail_free(Index *index, Tail *tail) {
    if (tail) memory_free(index, tail, tail_bytes(tail->capacity));
}

static uint64_t tail_first(const Tail *tail) {
    uint64_t first;
    varint_get(tail->bytes, &first);
    return first;
}

static Tail *tail_put(Index *index, Tail *tail, uint64_t id, uint8_t code) {
    uint64_t difference = tail ? id - tail->last : id;
    unsigned need = varint_bytes(difference) + 1, used = tail ? tail->used : 0;
    if (!tail || used + need > tail->capacity) {
        unsigned header = (unsigned)offsetof(Tail, bytes);
        unsigned wanted = header + used + need;
        wanted = (wanted + wanted / 8 + TAIL_STEP - 1) / TAIL_STEP * TAIL_STEP;
        Tail *larger = memory_alloc(index, wanted);
        if (tail) memcpy(larger, tail, tail_bytes(used));
        else memset(larger, 0, header);
        tail_free(index, tail);
        tail = larger;
        tail->capacity = (uint16_t)(wanted - header);
    }
    uint8_t *at = varint_put(tail->bytes + used, difference);
    *at = code;
    tail->used = (uint16_t)(used + need);
    tail->last = id;
    tail->count++;
    if (code > tail->max) tail->max = code;
    return tail;
}

static void decode_tail(const uint8_t *bytes, uint32_t count, Decoded *out) {
    uint64_t id = 0, difference;
    out->count = count;
    for (uint32_t i = 0; i < count; i++) {
        bytes = varint_get(bytes, &difference);
        id += difference;
        if (!i) out->base = id;
        out->offsets[i] = (uint32_t)(id - out->base);
        out->codes[i] = *bytes++;
    }
}

View postings_view(const Entry *entry) {
    View view = {0};
    if (entry->form == FORM_LIST || entry->form == FORM_TAIL) {
        const List *list = entry->form == FORM_LIST ? pointer_of(entry) : NULL;
        const Tail *tail = list ? list->tail : pointer_of(entry);
        if (list) {
            view.blocks = list->blocks;
            view.block_count = list->block_count;
            view.max = list->max;
        }
        if (tail) {
            view.tail = tail->bytes;
            view.tail_count = tail->count;
            view.tail_last = tail->last;
            view.tail_max = tail->max;
        }
    } else if (entry->form != FORM_FREE) {
        const uint8_t *at = view.tail = entry->payload;
        view.tail_count = entry->form;
        for (unsigned i = 0; i < entry->form; i++) {
            uint64_t difference;
            at = varint_get(at, &difference);
            view.tail_last += difference;
            if (*at > view.tail_max) view.tail_max = *at;
            at++;
        }
    }
    view.total = view.block_count + (view.tail_count ? 1 : 0);
    if (view.tail_max > view.max) view.max = view.tail_max;
    return view;
}

void view_decode(const View *view, uint32_t block, Decoded *out) {
    if (block < view->block_count) block_decode(&view->blocks[block], out);
    else decode_tail(view->tail, view->tail_count, out);
}

uint32_t postings_count(const Entry *entry) {
    if (entry->form == FORM_FREE) return 0;
    if (entry->form == FORM_TAIL) return (uint32_t)((Tail *)pointer_of(entry))->count;
    if (entry->form == FORM_LIST) return ((List *)pointer_of(entry))->postings;
    return entry->form;
}

static void add_block(Index *index, List *list, Block block) {
    if (list->block_count == list->capacity) {
        uint32_t wanted = list->capacity + list->capacity / 4 + 1;
        list->blocks = memory_resize(index, list->blocks, list->capacity * sizeof *list->blocks,
                                     wanted * sizeof *list->blocks);
        list->capacity = wanted;
    }
    list->blocks[list->block_count++] = block;
    if (block.max > list->max) list->max = (uint8_t)block.max;
}

/* Packs the postings of the list's buffer into a block. The list then has no buffer. */
static void pack_tail(Index *index, List *list) {
    Decoded decoded;
    uint64_t ids[BLOCK_POSTINGS];
    decode_tail(list->tail->bytes, (uint32_t)list->tail->count, &decoded);
    for (uint32_t i = 0; i < decoded.count; i++) ids[i] = decoded.base + decoded.offsets[i];
    add_block(index, list, block_new(index, ids, decoded.codes, decoded.count));
    tail_free(index, list->tail);
    list->tail = NULL;
}

static List *make_list(Index *index, Entry *entry) {
    List *list = memory_zeroed(index, sizeof *list);
    list->tail = pointer_of(entry);
    list->postings = (uint32_t)list->tail->count;
    list->max = list->tail->max;
    set_pointer(entry, FORM_LIST, list);
    return list;
}

static bool append_inline(Index *index, Entry *entry, uint64_t id, uint8_t code) {
    uint8_t *at = entry->payload;
    uint64_t last = 0, first = 0, difference;
    for (unsigned i = 0; i < entry->form; i++) {
        at = (uint8_t *)varint_get(at, &difference) + 1;
        last += difference;
        if (!i) first = last;
    }
    if (entry->form && id == last) return false;
    bool near = !entry->form || id - first < SPAN;
    if (entry->form < INLINE_POSTINGS && near && (at - entry->payload) + varint_bytes(id - last) + 1 <= INLINE_BYTES) {
        at = varint_put(at, id - last);
        *at = code;
        entry->form++;
        return true;
    }
    Tail *tail = NULL;
    uint8_t payload[INLINE_BYTES];
    memcpy(payload, entry->payload, sizeof payload);
    const uint8_t *from = payload;
    last = 0;
    for (unsigned i = 0; i < entry->form; i++) {
        from = varint_get(from, &difference);
        last += difference;
        tail = tail_put(index, tail, last, *from++);
    }
    set_pointer(entry, FORM_TAIL, tail);
    return postings_append(index, entry, id, code);
}

bool postings_append(Index *index, Entry *entry, uint64_t id, uint8_t code) {
    if (entry->form != FORM_TAIL && entry->form != FORM_LIST) return append_inline(index, entry, id, code);
    if (entry->form == FORM_TAIL) {
        Tail *tail = pointer_of(entry);
        if (id == tail->last) return false;
        if (tail->count < BLOCK_POSTINGS - 1 && id - tail_first(tail) < SPAN) {
            set_pointer(entry, FORM_TAIL, tail_put(index, tail, id, code));
            return true;
        }
        make_list(index, entry);
    }
    List *list = pointer_of(entry);
    if (id == (list->tail ? list->tail->last : list->blocks[list->block_count - 1].last)) return false;
    if (list->tail && id - tail_first(list->tail) >= SPAN) pack_tail(index, list);
    list->tail = tail_put(index, list->tail, id, code);
    list->postings++;
    if (code > list->max) list->max = code;
    if (list->tail->count == BLOCK_POSTINGS) pack_tail(index, list);
    return true;
}

void postings_free(Index *index, Entry *entry) {
    if (entry->form == FORM_TAIL) {
        tail_free(index, pointer_of(entry));
    } else if (entry->form == FORM_LIST) {
        List *list = pointer_of(entry);
        for (uint32_t i = 0; i < list->block_count; i++) block_free(index, &list->blocks[i]);
        memory_free(index, list->blocks, list->capacity * sizeof *list->blocks);
        tail_free(index, list->tail);
        memory_free(index, list, sizeof *list);
    }
    if (entry->form != FORM_FREE) entry->form = 0;
}

/* ---- Purging ---- */

/* The postings to keep that were read, but not written to a new block yet. Before a block is read, `count` is below
 * BLOCK_POSTINGS. So the arrays have space for the postings of one more block. */
typedef struct Carry {
    uint64_t ids[2 * BLOCK_POSTINGS];
    uint8_t codes[2 * BLOCK_POSTINGS];
    unsigned count;
    Place place;
} Carry;

static Block carry_emit(Index *index, Carry *carry) {
    unsigned count = carry->count < BLOCK_POSTINGS ? carry->count : BLOCK_POSTINGS;
    Block block = block_new(index, carry->ids, carry->codes, count);
    carry->count -= count;
    memmove(carry->ids, carry->ids + count, carry->count * sizeof *carry->ids);
    memmove(carry->codes, carry->codes + count, carry->count);
    return block;
}

/* Appends the postings of live and open documents to `carry`, and returns the number of the other (dead) postings. */
static uint32_t carry_on(const Index *index, Carry *carry, const Decoded *decoded) {
    unsigned before = carry->count;
    for (uint32_t i = 0; i < decoded->count; i++) {
        uint64_t id = decoded->base + decoded->offsets[i];
        if (!id_is_kept(index, id, &carry->place)) continue;
        carry->ids[carry->count] = id;
        carry->codes[carry->count++] = decoded->codes[i];
    }
    return decoded->count - (carry->count - before);
}

static void count_purged(Index *index, uint32_t dead) {
    index->postings -= dead;
    index->dead_postings -= dead;
}

/* Removes the dead postings of a term without blocks. If any posting is dead, writes all other postings again. */
static void purge_small(Index *index, Entry *entry, int64_t *budget) {
    Decoded decoded;
    Carry carry = {.count = 0};
    View view = postings_view(entry);
    *budget -= 1 + (int64_t)view.tail_count;
    if (!view.total) return;
    view_decode(&view, 0, &decoded);
    uint32_t dead = carry_on(index, &carry, &decoded);
    if (!dead) return;
    count_purged(index, dead);
    postings_free(index, entry);
    for (unsigned i = 0; i < carry.count; i++) postings_append(index, entry, carry.ids[i], carry.codes[i]);
}

/* The last step of a list's purge, after its blocks: removes the dead postings of the buffer, and puts the carried
 * postings before the other postings of the buffer. Packs a block if there are enough postings for a full block, or if
 * the ids are too far apart for one buffer. */
static void purge_tail(Index *index, List *list, Carry *carry, int64_t *budget) {
    Decoded decoded = {0};
    if (list->tail) decode_tail(list->tail->bytes, (uint32_t)list->tail->count, &decoded);
    *budget -= decoded.count;
    if (carry->count && decoded.count && list->tail->last - carry->ids[0] >= SPAN)
        add_block(index, list, carry_emit(index, carry));
    unsigned carried = carry->count;
    uint32_t dead = carry_on(index, carry, &decoded);
    if (!dead && !carried) return;
    list->postings -= dead;
    count_purged(index, dead);
    tail_free(index, list->tail);
    list->tail = NULL;
    if (carry->count >= BLOCK_POSTINGS) add_block(index, list, carry_emit(index, carry));
    for (unsigned i = 0; i < carry->count; i++)
        list->tail = tail_put(index, list->tail, carry->ids[i], carry->codes[i]);
}

/* Brings a purged list into its final form: a list without blocks becomes a buffer, or an entry without postings. A
 * list with blocks gets a new highest code, and frees unused space for blocks. */
static void settle(Index *index, Entry *entry, List *list) {
    if (!list->block_count) {
        Tail *tail = list->tail;
        memory_free(index, list->blocks, list->capacity * sizeof *list->blocks);
        memory_free(index, list, sizeof *list);
        if (tail) set_pointer(entry, FORM_TAIL, tail);
        else entry->form = 0;
        return;
    }
    list->max = list->tail ? list->tail->max : 0;
    for (uint32_t i = 0; i < list->block_count; i++)
        if (list->blocks[i].max > list->max) list->max = (uint8_t)list->blocks[i].max;
    if (list->capacity > list->block_count + list->block_count / 2 + 1) {
        list->blocks = memory_resize(index, list->blocks, list->capacity * sizeof *list->blocks,
                                     list->block_count * sizeof *list->blocks);
        list->capacity = list->block_count;
    }
}

bool postings_purge(Index *index, Entry *entry, uint32_t *block, int64_t *budget) {
    if (entry->form != FORM_LIST) {
        purge_small(index, entry, budget);
        return true;
    }
    List *list = pointer_of(entry);
    Carry carry = {.count = 0};
    Decoded decoded;
    uint32_t read = *block, write = *block;
    /* A call processes at least two blocks. The first block may contain only postings that the previous call has
     * carried and written back at its end, so a call that reads only this block makes no progress. */
    for (uint32_t done = 0; read < list->block_count && (done < 2 || *budget > 0); done++) {
        block_decode(&list->blocks[read], &decoded);
        *budget -= decoded.count;
        if (carry.count && list->blocks[read].last - carry.ids[0] >= SPAN)
            list->blocks[write++] = carry_emit(index, &carry);
        unsigned carried = carry.count;
        uint32_t dead = carry_on(index, &carry, &decoded);
        if (!dead && !carried && decoded.count == BLOCK_POSTINGS) {
            list->blocks[write++] = list->blocks[read++];
            carry.count = 0;
            continue;
        }
        list->postings -= dead;
        count_purged(index, dead);
        block_free(index, &list->blocks[read++]);
        if (carry.count >= BLOCK_POSTINGS) list->blocks[write++] = carry_emit(index, &carry);
    }
    bool through = read == list->block_count;
    *block = write;
    if (carry.count && !through) list->blocks[write++] = carry_emit(index, &carry);
    memmove(list->blocks + write, list->blocks + read, (list->block_count - read) * sizeof *list->blocks);
    list->block_count -= read - write;
    if (!through) return false;
    *block = 0;
    purge_tail(index, list, &carry, budget);
    settle(index, entry, list);
    return true;
}
