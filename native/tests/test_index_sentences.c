/* Tests of packed sentences (index/sentences.c): the check refuses invalid bytes, and the index can add all sentences
 * that the check accepts. */
#include <string.h>

#include "tests/index_check.h"

enum { MOST_BYTES = 1 << 16 };

/* Checks a copy of the bytes in a heap block of their exact size, so that a sanitizer detects a read beyond the end. */
static bool check(const uint8_t *bytes, size_t length, IndexPacked *packed) {
    uint8_t *copy = malloc(length ? length : 1);
    memcpy(copy, bytes, length);
    bool valid = index_packed_check(copy, length, packed);
    if (valid) {
        Index *index = index_new(ALLOCATOR, KEY);
        IndexPending *pending;
        CHECK(index_begin(index, "d", 1, NULL, 0, &pending) == INDEX_OK);
        CHECK(index_add(pending, copy, length, packed->sentences) == INDEX_OK);
        CHECK(index_commit(pending) == INDEX_OK);
        CHECK(index_counts(index).sentences == packed->sentences);
        index_free(index);
    } else {
        CHECK(packed->problem && packed->offset <= length);
    }
    free(copy);
    return valid;
}

/* Packs random sentences with ascending terms. Returns the number of bytes. */
static size_t pack(uint8_t *bytes, unsigned sentences) {
    uint8_t *at = bytes;
    for (unsigned i = 0; i < sentences; i++) {
        unsigned count = (unsigned)(next() % 12), step = 1 + (unsigned)(next() % 5);
        at = varint_put(varint_put(at, count * 2 + next() % 200), count);
        for (unsigned j = 0; j < count; j++) {
            char term[8];
            int length = snprintf(term, sizeof term, "a%05u", j * step);
            at = varint_put(varint_put(at, 1 + next() % 3), (uint64_t)length);
            memcpy(at, term, (size_t)length);
            at += length;
        }
    }
    return (size_t)(at - bytes);
}

static void test_problem(const char *bytes, size_t length, const char *problem, size_t offset) {
    IndexPacked packed;
    CHECK(!check((const uint8_t *)bytes, length, &packed));
    CHECK(strstr(packed.problem, problem) && packed.offset == offset);
}

#define PROBLEM(bytes, problem, offset) test_problem(bytes, sizeof(bytes) - 1, problem, offset)

static void test_problems(void) {
    IndexPacked packed;
    CHECK(check((const uint8_t *)"", 0, &packed) && packed.sentences == 0);
    CHECK(check((const uint8_t *)"\3\2\1\1a\2\2ab\0\0", 11, &packed) && packed.sentences == 2);
    CHECK(check((const uint8_t *)"\xff\xff\3\1\xff\xff\3\1a", 9, &packed));
    PROBLEM("\x80", "0 to 65535 terms", 0);
    PROBLEM("\x80\x80\x80\0\0", "0 to 65535 terms", 0);
    PROBLEM("\x80\x80\4\0", "0 to 65535 terms", 0);
    PROBLEM("\0\0\1", "distinct terms", 3);
    PROBLEM("\1\x80\x80\4", "distinct terms", 1);
    PROBLEM("\1\1", "frequency", 2);
    PROBLEM("\1\1\0\1a", "frequency", 2);
    PROBLEM("\1\1\x80\x80\4\1a", "frequency", 2);
    PROBLEM("\1\1\1", "1 to 256 bytes", 3);
    PROBLEM("\1\1\1\0", "1 to 256 bytes", 3);
    PROBLEM("\1\1\1\x81\2a", "1 to 256 bytes", 3);
    PROBLEM("\1\1\1\2a", "beyond the end", 4);
    PROBLEM("\2\2\1\1a\1\1a", "must ascend", 7);
    PROBLEM("\2\2\1\1b\1\1a", "must ascend", 7);
    PROBLEM("\2\2\1\2ab\1\1a", "must ascend", 8);
    /* The order of terms starts again in each sentence. */
    CHECK(check((const uint8_t *)"\1\1\1\1b\1\1\1\1a", 10, &packed));
}

static void test_damaged(unsigned rounds) {
    uint8_t *bytes = malloc(MOST_BYTES);
    IndexPacked packed;
    size_t length = pack(bytes, 12), refused = 0;
    for (size_t part = 0; part < length; part++) refused += !check(bytes, part, &packed);
    CHECK(refused > length / 2);
    for (unsigned i = 0; i < rounds; i++) {
        length = pack(bytes, 1 + (unsigned)(next() % 4));
        for (unsigned hits = 1 + (unsigned)(next() % 3); hits; hits--) bytes[next() % length] = (uint8_t)next();
        check(bytes, length, &packed);
    }
    free(bytes);
}

int main(int argc, char **argv) {
    test_problems();
    test_damaged(argc > 1 ? (unsigned)atoi(argv[1]) : 20000);
    return 0;
}
