/* Tests of the RESP parser, with sanitizers. Every buffer is a heap block of its exact size, so that a sanitizer
 * detects a read beyond its end. */
#include "server/resp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

static char *exact(const char *text, size_t length) {
    char *copy = malloc(length ? length : 1);
    memcpy(copy, text, length);
    return copy;
}

static int valid(const char *text, size_t length, unsigned flags) {
    char *copy = exact(text, length);
    int result = resp_valid(copy, length, flags);
    free(copy);
    return result;
}

static long long command(const char *text, size_t length) {
    char *copy = exact(text, length);
    long long result = resp_command_length(copy, length, 1000, 10);
    free(copy);
    return result;
}

/* clang-format off */
static const char *const GOOD[] = {
    "+OK\r\n", "+\r\n", "-ERR x\r\n", ":0\r\n", ":-1\r\n", ":9223372036854775807\r\n", ":-9223372036854775808\r\n",
    "$0\r\n\r\n", "$2\r\n\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "*2\r\n:1\r\n*1\r\n$1\r\na\r\n", "*3\r\n*0\r\n*0\r\n*0\r\n",
};

static const char *const BAD[] = {
    "", "x", "+", "+OK", "+OK\r", "+OK\n", "+a\nb\r\n", "+a\rb\r\n", ":\r\n", ":-\r\n", ":-0\r\n", ":01\r\n", ":+1\r\n", ": 1\r\n",
    ":1x\r\n", ":9223372036854775808\r\n", ":-9223372036854775809\r\n", ":99999999999999999999999\r\n", "$-2\r\n", "$1\r\n", "$1\r\nab",
    "$1\r\nabc\r\n", "$9223372036854775807\r\n", "$x\r\n", "*1\r\n", "*-2\r\n", "*9223372036854775807\r\n", "*1048577\r\n", "*2\r\n:1\r\n",
    ":1\r\n:2\r\n", "*1\r\n:1\r\n ", "_\r\n", "#t\r\n", "%0\r\n", ",1\r\n",
};
/* clang-format on */

static void test_values(void) {
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        size_t length = strlen(GOOD[i]);
        CHECK(valid(GOOD[i], length, 0));
        for (size_t cut = 0; cut < length; cut++) CHECK(!valid(GOOD[i], cut, 0));
    }
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) CHECK(!valid(BAD[i], strlen(BAD[i]), 0));
}

static void test_resp3(void) {
    const char *good[] = {"_\r\n",
                          "#t\r\n",
                          "#f\r\n",
                          ",1.5\r\n",
                          "%1\r\n+a\r\n_\r\n",
                          "~2\r\n:1\r\n:2\r\n",
                          "(12345678901234567890\r\n"};
    const char *bad[] = {"_x\r\n", "#x\r\n", "#\r\n", ",\r\n", "%1\r\n+a\r\n", "~-1\r\n", "%-1\r\n"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) CHECK(valid(good[i], strlen(good[i]), RESP_3));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(!valid(bad[i], strlen(bad[i]), RESP_3));
}

static void test_depth(void) {
    char text[256];
    for (int depth = 1; depth < 30; depth++) {
        text[0] = '\0';
        for (int i = 0; i < depth; i++) strcat(text, "*1\r\n");
        strcat(text, ":1\r\n");
        CHECK(valid(text, strlen(text), 0) == (depth <= RESP_MAX_DEPTH));
    }
}

static void test_number_of_elements(void) {
    enum { ROWS = 1025, BYTES = 4 * 1024 + 16 };
    size_t length = 0;
    char *text = malloc((size_t)ROWS * BYTES + 16);
    length += (size_t)sprintf(text, "*%d\r\n", ROWS);
    for (int i = 0; i < ROWS; i++) {
        length += (size_t)sprintf(text + length, "*1024\r\n");
        for (int j = 0; j < 1024; j++, length += 4) memcpy(text + length, "*0\r\n", 4);
    }
    CHECK(!valid(text, length, 0));
    free(text);
}

static void test_commands(void) {
    const char *get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    long long length = (long long)strlen(get);
    CHECK(command(get, (size_t)length) == length);
    for (size_t cut = 0; cut < (size_t)length; cut++) CHECK(command(get, cut) == 0);
    CHECK(command("*1\r\n$3\r\nEND\r\n*1", 15) == 13);
    const char *bad[] = {"x",
                         "*0\r\n",
                         "*-1\r\n",
                         "*11\r\n",
                         "+OK\r\n",
                         "*1\r\n:1\r\n",
                         "*1\r\n$-1\r\n",
                         "*1\r\n*1\r\n",
                         "*11111111111111111111111111111111111",
                         "*1\r\n$11111111111111111111111111111111111"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(command(bad[i], strlen(bad[i])) == -1);
    char big[2000] = "*1\r\n$1900\r\n";
    memset(big + 11, 'a', sizeof big - 11);
    CHECK(command(big, sizeof big - 1) == -1);
}

/* Damages a value at random. The parser accepts or refuses the damaged value, and reads nothing outside the buffer. */
static void test_damage(void) {
    const char *text = "*3\r\n$5\r\nhello\r\n*2\r\n:12\r\n+OK\r\n-ERR bad\r\n";
    size_t length = strlen(text);
    srand(1);
    for (int i = 0; i < 200000; i++) {
        char *copy = exact(text, length);
        for (int j = 0; j < 1 + rand() % 3; j++)
            copy[(size_t)rand() % length] = (char)(rand() % 2 ? "*$:+-\r\n0123456789"[rand() % 17] : rand());
        size_t cut = rand() % 4 ? length : (size_t)rand() % (length + 1);
        resp_valid(copy, cut, RESP_3);
        resp_command_length(copy, cut, 1000, 10);
        free(copy);
    }
}

int main(void) {
    test_values();
    test_resp3();
    test_depth();
    test_number_of_elements();
    test_commands();
    test_damage();
    return 0;
}
