/* Reads and checks the documents in the arguments of a command, before the command changes an index. Also checks the
 * metadata of a document, which is JSON. */
#include "corpus/document_argument.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *document_head(RedisModuleString **argv, int number, Document *document, char *error) {
    document->id = RedisModule_StringPtrLen(argv[0], &document->id_length);
    document->fields = RedisModule_StringPtrLen(argv[1], &document->fields_length);
    if (!document->id_length || document->id_length > INDEX_MAX_DOCUMENT_ID) {
        snprintf(error, MAX_DOCUMENT_ERROR, "ERR document %d: its id has %zu bytes, it must have 1 to %d", number,
                 document->id_length, INDEX_MAX_DOCUMENT_ID);
        return error;
    }
    if (!index_fields_valid(document->fields, document->fields_length)) {
        snprintf(error, MAX_DOCUMENT_ERROR, "ERR document %d: its fields are not valid", number);
        return error;
    }
    return NULL;
}

const char *document_sentences(RedisModuleString *argument, int number, Document *document, char *error) {
    document->sentences = RedisModule_StringPtrLen(argument, &document->sentences_length);
    if (!index_packed_check(document->sentences, document->sentences_length, &document->packed)) {
        snprintf(error, MAX_DOCUMENT_ERROR, "ERR document %d: %s, at byte %zu of its sentences", number,
                 document->packed.problem, document->packed.offset);
        return error;
    }
    return NULL;
}

void document_comes(Watched *watched, Index *index, const Document *document) {
    if (!watched) return;
    IndexIncoming incoming = {.id = document->id,
                              .fields = document->fields,
                              .sentences = document->sentences,
                              .id_length = document->id_length,
                              .fields_length = document->fields_length,
                              .sentences_length = document->sentences_length};
    index_watch_adding(watched->watch, index, &incoming);
}

/* ---- Metadata: a parser of JSON (RFC 8259) by recursive descent ---- */

typedef struct Scan {
    const char *at, *end; /* a NUL is at the end, so reading *at is always valid */
} Scan;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void skip_blanks(Scan *scan) {
    while (scan->at < scan->end && *scan->at && strchr(" \t\n\r", *scan->at)) scan->at++;
}

static bool take(Scan *scan, char c) {
    if (scan->at == scan->end || *scan->at != c) return false;
    scan->at++;
    return true;
}

static bool take_word(Scan *scan, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, word, length) != 0) return false;
    scan->at += length;
    return true;
}

static bool take_digits(Scan *scan) {
    const char *start = scan->at;
    while (is_digit(*scan->at)) scan->at++;
    return scan->at > start;
}

static bool take_number(Scan *scan) {
    const char *start = scan->at;
    bool negative = take(scan, '-'), is_integer = true;
    const char *digits = scan->at;
    if (!take(scan, '0') && !take_digits(scan)) return false;
    if (take(scan, '.')) {
        is_integer = false;
        if (!take_digits(scan)) return false;
    }
    if (take(scan, 'e') || take(scan, 'E')) {
        is_integer = false;
        if (!take(scan, '-')) take(scan, '+');
        if (!take_digits(scan)) return false;
    }
    if (!is_integer) return isfinite(strtod(start, NULL));
    errno = 0;
    unsigned long long value = strtoull(digits, NULL, 10);
    return !errno && (!negative || value <= (unsigned long long)INT64_MAX + 1);
}

/* Reads the four hexadecimal digits after `\u`, and returns their value. -1: there are fewer than four digits. */
static int take_code_unit(Scan *scan) {
    int value = 0;
    for (int i = 0; i < 4; i++, scan->at++) {
        char c = *scan->at;
        if (is_digit(c)) value = value * 16 + c - '0';
        else if (c >= 'a' && c <= 'f') value = value * 16 + c - 'a' + 10;
        else if (c >= 'A' && c <= 'F') value = value * 16 + c - 'A' + 10;
        else return -1;
    }
    return value;
}

static bool take_escape(Scan *scan) {
    if (*scan->at && strchr("\"\\/bfnrt", *scan->at)) {
        scan->at++;
        return true;
    }
    if (!take(scan, 'u')) return false;
    int unit = take_code_unit(scan);
    if (unit < 0xd800 || unit > 0xdfff) return unit >= 0;
    if (unit > 0xdbff || !take_word(scan, "\\u")) return false;
    unit = take_code_unit(scan);
    return unit >= 0xdc00 && unit <= 0xdfff;
}

static bool take_string(Scan *scan) {
    if (!take(scan, '"')) return false;
    while (scan->at < scan->end) {
        unsigned char c = (unsigned char)*scan->at++;
        if (c == '"') return true;
        if (c < ' ' || (c == '\\' && !take_escape(scan))) return false;
    }
    return false;
}

static bool take_value(Scan *scan, int depth);

/* Reads the items of an array or object, up to its closing bracket. `depth` is the number of containers around the
 * items, with this array or object. False: the JSON is invalid. */
static bool take_items(Scan *scan, char closing, int depth) {
    if (depth > METADATA_MAX_DEPTH) return false;
    skip_blanks(scan);
    if (take(scan, closing)) return true;
    do {
        skip_blanks(scan);
        if (closing == '}') {
            if (!take_string(scan)) return false;
            skip_blanks(scan);
            if (!take(scan, ':')) return false;
        }
        if (!take_value(scan, depth)) return false;
    } while (take(scan, ','));
    return take(scan, closing);
}

/* Reads a value and the blanks around it. `depth` is the number of containers around the value. False: the JSON is
 * invalid. */
static bool take_value(Scan *scan, int depth) {
    skip_blanks(scan);
    bool taken = false;
    if (take(scan, '{')) taken = take_items(scan, '}', depth + 1);
    else if (take(scan, '[')) taken = take_items(scan, ']', depth + 1);
    else if (scan->at < scan->end && *scan->at == '"') taken = take_string(scan);
    else taken = take_word(scan, "true") || take_word(scan, "false") || take_word(scan, "null") || take_number(scan);
    skip_blanks(scan);
    return taken;
}

bool document_metadata_valid(const char *text, size_t length) {
    Scan scan = {text, text + length};
    return length && *text == '{' && take_value(&scan, 0) && scan.at == scan.end;
}
