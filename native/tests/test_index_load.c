/* Tests of the loader with damaged payloads (a payload is the bytes of a saved index): test_index_load [rounds]. The
 * loader handles any payload without a crash or a leak. If the loader accepts a damaged payload, the loaded index is
 * usable. The damage is random with a fixed seed: changed bits, bytes and varints, truncations and insertions. */
#include <string.h>

#include "tests/index_check.h"

typedef struct Payload {
    uint8_t bytes[1 << 18];
    size_t length, at, piece; /* `piece`: the maximum number of bytes at a time */
} Payload;

static bool write_payload(void *context, const void *bytes, size_t length) {
    Payload *payload = context;
    if (payload->length + length > sizeof payload->bytes) return false;
    memcpy(payload->bytes + payload->length, bytes, length);
    payload->length += length;
    return true;
}

static size_t read_payload(void *context, void *bytes, size_t length) {
    Payload *payload = context;
    size_t part = payload->length - payload->at;
    if (part > length) part = length;
    if (part > payload->piece) part = payload->piece;
    memcpy(bytes, payload->bytes + payload->at, part);
    payload->at += part;
    return part;
}

static bool refuse(void *context, const void *bytes, size_t length) {
    (void)context, (void)bytes, (void)length;
    return false;
}

static void add_document(Index *index, const char *id, unsigned sentences, bool in_parts) {
    static const uint8_t FIELDS[] = {1, 0, 4, 't', 'a', 'g', 's', 2, 0, 's', 1, 0, 'a', 'b', 1};
    IndexPending *pending;
    if (index_begin(index, id, strlen(id), FIELDS, sizeof FIELDS, &pending) != INDEX_OK) exit(1);
    for (unsigned i = 0; i < sentences; i++) {
        static const char *const TERMS[] = {"alpha", "beta", "gamma", "delta", "a", "b", "c", "d", "e", "f"};
        char words[64] = "";
        for (unsigned term = 0; term < 10; term++)
            if (next() % (term + 2) == 0) strcat(strcat(words, TERMS[term]), " ");
        if (add(pending, words) != INDEX_OK) exit(1);
        if (in_parts && i == sentences / 2) add_document(index, "within", 3, false);
    }
    if (index_commit(pending) != INDEX_OK) exit(1);
}

/* Attaches vectors to a document, in two parts if possible. A passage has two sentences. `most`: the maximum number of
 * passages. */
static void embed(Index *index, const char *id, unsigned sentences, unsigned most) {
    enum { DIMS = 5, EACH = 12 + DIMS };
    uint8_t passages[100 * EACH];
    char problem[INDEX_PROBLEM];
    uint32_t total = sentences / 2, count = 0;
    for (; count < total && count < most; count++) {
        uint8_t *at = passages + count * EACH;
        memset(at, 0, EACH);
        at[0] = (uint8_t)(2 * count);
        at[4] = 2;
        at[10] = 0x80; /* a scale of 1 */
        at[11] = 0x3f;
        for (unsigned i = 0; i < DIMS; i++) at[12 + i] = (uint8_t)next();
    }
    uint32_t first = count / 2 + 1;
    IndexEmbedding one = {(const uint8_t *)"encoder1", DIMS, 0, total, passages, first * EACH};
    IndexEmbedding two = {(const uint8_t *)"encoder1", DIMS, first, total, passages + first * EACH,
                          (count - first) * EACH};
    if (index_embed(index, id, strlen(id), &one, problem) != INDEX_OK) exit(1);
    if (count > first && index_embed(index, id, strlen(id), &two, problem) != INDEX_OK) exit(1);
}

/* Opens a document with `sentences` sentences and leaves the document open. */
static void leave_open(Index *index, const char *id, unsigned sentences) {
    IndexPending *pending;
    if (index_begin(index, id, strlen(id), NULL, 0, &pending) != INDEX_OK) exit(1);
    index_keep_open(pending);
    for (; sentences; sentences--)
        if (add(pending, "alpha zeta") != INDEX_OK) exit(1);
}

/* Continues every second open document and discards the others. */
static void use_open(Index *index) {
    for (uint64_t place = 0, found = 0; place < index_next_id(index) && place < 1000; place++) {
        IndexPending *pending = index_open_at(index, place);
        if (!pending) continue;
        IndexOpen open = index_open(pending);
        CHECK(open.place == place);
        if (++found % 2 || add(pending, "alpha") != INDEX_OK) {
            CHECK(index_abort_id(index, open.id, open.id_length));
            continue;
        }
        IndexStatus removed = index_remove(index, open.id, open.id_length);
        CHECK(removed == INDEX_OK || removed == INDEX_MISSING);
        CHECK(index_commit(pending) == INDEX_OK);
    }
    index_make_room(index);
}

static void use(Index *index) {
    IndexTerm terms[3] = {{"alpha", 5, 0}, {"a", 1, 0}, {"gamma", 5, 0}};
    static IndexHit hits[20];
    static double weights[60];
    uint64_t frequencies[3], cursor = 0;
    IndexRanking ranking = {.hits = hits, .weights = weights, .frequencies = frequencies};
    IndexQuery query = {.terms = terms, .count = 3, .k = 20};
    CHECK(index_rank(index, &query, &ranking) == INDEX_OK);
    index_digest(index);
    IndexEncoder encoders[INDEX_MAX_ENCODERS];
    index_encoders(index, encoders);
    IndexDocument found[4];
    static const uint8_t PASSAGES[17] = {[4] = 1};
    IndexEmbedding one = {(const uint8_t *)"encoder1", 5, 0, 1, PASSAGES, sizeof PASSAGES};
    char problem[INDEX_PROBLEM];
    if (index_unembedded(index, one.digest, &cursor, 100, found, 1))
        index_embed(index, found[0].id, found[0].id_length, &one, problem);
    cursor = 0;
    for (int i = 0; i < 4 && index_list(index, &cursor, NULL, 100, found, 4); i++)
        if (i % 2) CHECK(index_remove(index, found[0].id, found[0].id_length) == INDEX_OK);
    IndexPending *pending;
    IndexStatus status = index_begin(index, "more", 4, NULL, 0, &pending);
    CHECK(status == INDEX_OK || status == INDEX_FULL);
    if (status == INDEX_OK) index_abort(pending);
    use_open(index);
    for (int i = 0; i < 50 && index_maintain(index, 1000); i++) {
    }
    CHECK(index_rank(index, &query, &ranking) == INDEX_OK);
}

static void damage(Payload *payload) {
    static const uint8_t NUMBERS[][10] = {{0x80, 0},
                                          {0xff, 0xff, 0xff, 0xff, 0x0f},
                                          {0x80, 0x80, 0x80, 0x80, 0x10},
                                          {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f},
                                          {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}};
    for (uint64_t times = 1 + next() % 3; times; times--) {
        size_t at = (size_t)(next() % (next() % 2 ? payload->length : payload->length < 200 ? payload->length : 200));
        switch (next() % 5) {
        case 0: payload->bytes[at] ^= (uint8_t)(1 << next() % 8); break;
        case 1: payload->bytes[at] = (uint8_t)next(); break;
        case 2: payload->length = at + 1; break;
        case 3: {
            const uint8_t *number = NUMBERS[next() % 5];
            size_t length = 1;
            while (length < 10 && number[length - 1] & 0x80) length++;
            for (size_t i = 0; i < length && at + i < payload->length; i++) payload->bytes[at + i] = number[i];
            break;
        }
        case 4: {
            size_t from = (size_t)(next() % payload->length), length = (size_t)(next() % 40);
            if (from + length > payload->length) length = payload->length - from;
            if (at + length > payload->length) length = payload->length - at;
            memmove(payload->bytes + at, payload->bytes + from, length);
            break;
        }
        }
    }
}

/* Each invalid payload breaks one rule. Some payloads between them are valid. */
static void test_every_rule(void) {
#define DOCUMENT "d\0\1\1\1x\0"
#define OPEN "o\0\1\1\1x\0"
#define OPEN4 OPEN OPEN OPEN OPEN
#define TWO DOCUMENT "d\0\1\1\1y\0n\4"
#define VECTORS(document, counts) "v" document "encoder1" counts
#define PASSAGE "\0\1\0\0\0\0\1\2"
    static const struct {
        const char *bytes;
        size_t length;
        bool loads;
    } PAYLOADS[] = {
#define PAYLOAD(loads, text) {"QAINDEX1" text, sizeof("QAINDEX1" text) - 1, loads}
        PAYLOAD(true, DOCUMENT "n\2t\1a\1\1\5e"),
        PAYLOAD(true, "n\0e"),
        PAYLOAD(true, DOCUMENT "r\3\2\0n\7t\1a\2\1\5\4\6e"),          /* a second run: ids 5 and 6 */
        PAYLOAD(false, DOCUMENT "n\2t\1a\1\1\0e"),                    /* the code 0, which is no code */
        PAYLOAD(false, DOCUMENT "n\2t\1a\1\0\5e"),                    /* the document's own id */
        PAYLOAD(false, DOCUMENT "d\0\1\1\1y\0n\4t\1a\1\2\5e"),        /* the id of another document */
        PAYLOAD(false, DOCUMENT "n\3t\1a\1\2\5e"),                    /* an id of no document */
        PAYLOAD(false, DOCUMENT "n\2t\1a\2\1\5\0\5e"),                /* an id twice */
        PAYLOAD(false, DOCUMENT "n\2t\1a\0e"),                        /* a term without postings */
        PAYLOAD(false, DOCUMENT "n\2t\0\1\1\5e"),                     /* a term without bytes */
        PAYLOAD(false, DOCUMENT "n\2t\1a\1\1\5t\1a\1\1\5e"),          /* a term twice */
        PAYLOAD(false, DOCUMENT "n\1t\1a\1\1\5e"),                    /* the next id is already in use */
        PAYLOAD(false, DOCUMENT DOCUMENT "n\4e"),                     /* a document twice */
        PAYLOAD(false, DOCUMENT "r\0\0\0n\2e"),                       /* an empty run */
        PAYLOAD(false, DOCUMENT "r\0\1\1n\3e"),                       /* a run of a missing document */
        PAYLOAD(false, "d\0\1\1\0\0n\2e"),                            /* no id */
        PAYLOAD(false, "d\0\1\1\1x\1?n\2e"),                          /* broken fields */
        PAYLOAD(false, "d\xff\xff\xff\xff\xff\xff\x3f\1\1\1x\0n\2e"), /* no id is left */
        PAYLOAD(false, DOCUMENT "n\2x"),                              /* an unknown kind */
        PAYLOAD(false, DOCUMENT "n\2ee"),                             /* a byte after the end */
        PAYLOAD(false, OPEN "n\2e"),                                  /* an open document in version 1 */
#undef PAYLOAD
#define PAYLOAD(loads, text) {"QAINDEX2" text, sizeof("QAINDEX2" text) - 1, loads}
        PAYLOAD(true, DOCUMENT OPEN "n\4t\1a\2\1\5\2\5e"), /* an open document with the id of a live document */
        PAYLOAD(true, OPEN "r\3\2\0n\7t\1a\1\5\5e"),
        PAYLOAD(false, OPEN "n\2t\1a\1\0\5e"), /* the document's own id */
        PAYLOAD(false, OPEN "n\2t\1a\1\2\5e"), /* an id of no document */
        PAYLOAD(false, OPEN "n\1e"),           /* the next id is already in use */
        PAYLOAD(false, "o\0\1\1\0\0n\2e"),     /* no id */
        PAYLOAD(false, "o\0\1\1\1x\1?n\2e"),   /* broken fields */
        PAYLOAD(true, OPEN4 OPEN4 OPEN4 OPEN4 "n\x20"
                                              "e"),
        PAYLOAD(false, OPEN4 OPEN4 OPEN4 OPEN4 OPEN "n\x22"
                                                    "e"), /* too many open documents */
        PAYLOAD(true, "o\0\1\xff\xff\3\1x\0n\2e"),        /* an open document with one sentence of the maximum length */
        PAYLOAD(false, "o\0\1\x80\x80\4\1x\0n\2e"),       /* one term more than the maximum */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\1\1") PASSAGE "e"), /* vectors in version 2 */
#undef PAYLOAD
#define PAYLOAD(loads, text) {"QAINDEX3" text, sizeof("QAINDEX3" text) - 1, loads}
        PAYLOAD(true, DOCUMENT OPEN "n\4" VECTORS("\0", "\2\1\1") PASSAGE "e"),
        PAYLOAD(true, DOCUMENT "n\2t\1a\1\1\5e"),                             /* version 3 without vectors */
        PAYLOAD(true, "d\0\2\1\1x\0n\3" VECTORS("\0", "\2\2\1") PASSAGE "e"), /* not all vectors yet */
        PAYLOAD(true, DOCUMENT "n\2" VECTORS("\0", "\2\0\0") "e"),            /* no passages */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\1\0") "e"),           /* vectors of 0 of 1 passages */
        PAYLOAD(false, OPEN "n\2" VECTORS("\0", "\2\1\1") PASSAGE "e"),       /* vectors of an open document */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\1", "\2\1\1") PASSAGE "e"),   /* vectors of a missing document */
        PAYLOAD(false, "d\0\0\0\1x\0n\1" VECTORS("\0", "\2\0\0") "e"), /* vectors of a document without sentences */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\0\1\1") PASSAGE "e"),         /* 0 dimensions */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\x81\x20\1\1") PASSAGE "e"),   /* 4,097 dimensions */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\2\1") PASSAGE "e"),         /* more passages than sentences */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\1\2") PASSAGE PASSAGE "e"), /* more than all passages */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\1\1") "\1\1\0\0\0\0\1\2e"), /* a missing sentence */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\1\1") "\0\0\0\0\0\0\1\2e"), /* an empty passage */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\1\1") "\0\1\0\0\x80\x7f\1\2e"), /* an infinite scale */
        PAYLOAD(false, DOCUMENT "n\2" VECTORS("\0", "\2\1\1") PASSAGE VECTORS("\0", "\2\1\1") PASSAGE "e"), /* twice */
        PAYLOAD(true, TWO VECTORS("\0", "\2\1\1") PASSAGE VECTORS("\1", "\2\1\1") PASSAGE "e"),
        PAYLOAD(false, TWO VECTORS("\0", "\2\1\1") PASSAGE VECTORS("\1", "\1\1\1") "\0\1\0\0\0\0\1"
                                                                                   "e"), /* other dimensions */
    };
    for (size_t i = 0; i < sizeof PAYLOADS / sizeof *PAYLOADS; i++) {
        static Payload payload;
        round_number = i;
        payload = (Payload){.length = PAYLOADS[i].length, .piece = 1000};
        memcpy(payload.bytes, PAYLOADS[i].bytes, payload.length);
        Index *index = index_load(ALLOCATOR, KEY, read_payload, &payload);
        CHECK((index != NULL) == PAYLOADS[i].loads);
        if (index) index_free(index);
        CHECK(held == 0);
    }
}

/* An index that has used all ids can be saved and loaded again. */
static void test_the_last_ids(void) {
    static const char LAST[] = "QAINDEX2o\0\1\1\1x\0n\xff\xff\xff\xff\xff\xff\x3f"
                               "e";
    static const char TWO_SENTENCES[] = "\1\1\1\5alpha\1\1\1\5alpha";
    for (round_number = 0; round_number < 3; round_number++) {
        static Payload payload;
        payload = (Payload){.length = sizeof LAST - 1, .piece = 1000};
        memcpy(payload.bytes, LAST, payload.length);
        Index *index = index_load(ALLOCATOR, KEY, read_payload, &payload);
        CHECK(index != NULL);
        IndexPending *open = index_open_at(index, 0), *other = NULL;
        if (round_number == 1) CHECK(index_begin(index, "y", 1, NULL, 0, &other) == INDEX_OK);
        if (round_number == 2) CHECK(add(open, "alpha") == INDEX_FULL);
        if (other) CHECK(index_add(other, TWO_SENTENCES, sizeof TWO_SENTENCES - 1, 2) == INDEX_FULL);
        if (other) CHECK(add(other, "") == INDEX_INVALID && index_commit(other) == INDEX_INVALID);
        if (other) index_abort(other);
        if (round_number == 2) index_abort(open);
        else CHECK(index_commit(open) == INDEX_OK);
        payload = (Payload){.piece = 1000};
        CHECK(index_save(index, write_payload, &payload) == INDEX_OK);
        index_free(index);
        index = index_load(ALLOCATOR, KEY, read_payload, &payload);
        CHECK(index != NULL);
        use(index);
        index_free(index);
        CHECK(held == 0);
    }
}

int main(int argc, char **argv) {
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 4000, accepted = 0;
    static Payload whole, damaged;
    test_every_rule();
    test_the_last_ids();
    Index *index = index_new(ALLOCATOR, KEY);
    add_document(index, "first", 5, false);
    add_document(index, "parts", 40, true);
    add_document(index, "empty", 0, false);
    add_document(index, "last", 200, false);
    leave_open(index, "last", 30);
    leave_open(index, "never", 2);
    embed(index, "first", 4, 100);
    embed(index, "parts", 40, 100);
    embed(index, "last", 200, 9);
    CHECK(index_save(index, refuse, NULL) == INDEX_BROKEN);
    CHECK(index_save(index, write_payload, &whole) == INDEX_OK);
    uint64_t digest = index_digest(index);
    index_free(index);
    CHECK(held == 0);

    /* The whole payload loads in pieces of all sizes. The loader refuses each truncation of the payload, and the
     * payload with an additional byte. */
    for (whole.piece = 1; whole.piece < 70000; whole.piece = whole.piece * 3 + 1) {
        whole.at = 0;
        index = index_load(ALLOCATOR, KEY, read_payload, &whole);
        CHECK(index && index_digest(index) == digest && held == index_memory(index));
        use(index);
        index_free(index);
    }
    damaged = whole;
    for (damaged.length = 0; damaged.length <= whole.length + 1; damaged.length++) {
        damaged.at = 0;
        index = index_load(ALLOCATOR, KEY, read_payload, &damaged);
        CHECK((index != NULL) == (damaged.length == whole.length));
        if (index) index_free(index);
        CHECK(held == 0);
    }

    most_held = 0;
    for (round_number = 1; round_number <= rounds; round_number++) {
        damaged = whole;
        damaged.at = 0;
        damage(&damaged);
        index = index_load(ALLOCATOR, KEY, read_payload, &damaged);
        if (index) {
            accepted++;
            use(index);
            index_free(index);
        }
        CHECK(held == 0);
    }
    /* The loader itself needs 200 kB. All other memory is proportional to the payload's size, whatever numbers the
     * payload contains. */
    CHECK(most_held < 300000 + 64 * whole.length);
    CHECK(accepted > rounds / 100 && accepted < rounds); /* the loader refuses some damaged payloads and accepts
                                                          * others */
    return 0;
}
