/* The parser reads one token at a time and never reads beyond the end of the buffer. It has a counter for each level of
 * nesting and no recursion. So a hostile buffer cannot overflow the stack. */
#include "server/resp.h"

#include <limits.h>
#include <string.h>

#define MAX_BULK ((long long)2 << 30)

/* Returns the end of the line, which is before its CRLF. NULL: the line is incomplete. */
static const char *line_end(const RespReader *reader) {
    const char *from = reader->at;
    while (from < reader->end) {
        const char *cr = memchr(from, '\r', (size_t)(reader->end - from));
        if (!cr || cr + 1 >= reader->end) return NULL;
        if (cr[1] == '\n') return cr;
        from = cr + 1;
    }
    return NULL;
}

/* Reads a decimal integer: an optional minus, no leading zeros, no "-0". 0: the text is not such an integer. */
static int parse_integer(const char *at, const char *end, long long *value) {
    int negative = at < end && *at == '-';
    if (negative) at++;
    if (at == end || (*at == '0' && (end - at > 1 || negative))) return 0;
    unsigned long long sum = 0, limit = negative ? (unsigned long long)LLONG_MAX + 1 : LLONG_MAX;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9') return 0;
        unsigned digit = (unsigned)(*at - '0');
        if (sum > (limit - digit) / 10) return 0;
        sum = sum * 10 + digit;
    }
    *value = negative ? (long long)(0 - sum) : (long long)sum;
    return 1;
}

static int line_is_text(const char *at, const char *end) {
    return !memchr(at, '\r', (size_t)(end - at)) && !memchr(at, '\n', (size_t)(end - at));
}

static int read_bulk(RespReader *reader, RespToken *token, const char *at, const char *line) {
    long long length;
    if (!parse_integer(at, line, &length) || length < -1 || length > MAX_BULK) return -1;
    if (length == -1) {
        token->null = 1;
        reader->at = line + 2;
        return 1;
    }
    if (reader->end - (line + 2) < length + 2) return 0;
    token->text = line + 2;
    token->length = (size_t)length;
    if (token->text[length] != '\r' || token->text[length + 1] != '\n') return -1;
    reader->at = token->text + length + 2;
    return 1;
}

static int read_aggregate(RespToken *token, const char *at, const char *line) {
    if (!parse_integer(at, line, &token->integer)) return -1;
    if (token->integer == -1 && token->type == '*') {
        token->null = 1;
        token->integer = 0;
        return 1;
    }
    return token->integer < 0 || token->integer > RESP_MAX_ELEMENTS ? -1 : 1;
}

static int read_resp3(RespToken *token, const char *at, const char *line) {
    switch (token->type) {
    case '_': token->null = 1; return at == line ? 1 : -1;
    case '#': token->integer = at < line && *at == 't'; return line - at == 1 && (*at == 't' || *at == 'f') ? 1 : -1;
    case ',':
    case '(':
        token->text = at;
        token->length = (size_t)(line - at);
        return at < line && line_is_text(at, line) ? 1 : -1;
    default: return read_aggregate(token, at, line);
    }
}

int resp_next(RespReader *reader, RespToken *token, unsigned flags) {
    if (reader->at >= reader->end) return 0;
    memset(token, 0, sizeof *token);
    token->type = *reader->at;
    int resp3 = (flags & RESP_3) && memchr("_#,%~(", token->type, 6);
    if (!resp3 && !memchr("+-:$*", token->type, 5)) return -1;
    const char *at = reader->at + 1, *line = line_end(reader);
    if (!line) return 0;
    int got = 1;
    if (token->type == '$') return read_bulk(reader, token, at, line);
    if (token->type == '*') {
        got = read_aggregate(token, at, line);
    } else if (token->type == ':') {
        got = parse_integer(at, line, &token->integer) ? 1 : -1;
    } else if (resp3) {
        got = read_resp3(token, at, line);
    } else {
        token->text = at;
        token->length = (size_t)(line - at);
        got = line_is_text(at, line) ? 1 : -1;
    }
    if (got == 1) reader->at = line + 2;
    return got;
}

/* `left[d]` is the number of unread elements on nesting level d. Level 0 has one element: the whole value. */
int resp_valid(const char *buffer, size_t length, unsigned flags) {
    RespReader reader = {buffer, buffer + length};
    RespToken token;
    long long left[RESP_MAX_DEPTH + 1] = {1}, total = 0;
    int depth = 0;
    while (depth >= 0) {
        if (left[depth] == 0) {
            depth--;
            continue;
        }
        if (resp_next(&reader, &token, flags) != 1 || ++total > RESP_MAX_ELEMENTS) return 0;
        left[depth]--;
        if (token.null || !memchr("*%~", token.type, 3) || token.integer == 0) continue;
        if (depth == RESP_MAX_DEPTH) return 0;
        left[++depth] = token.type == '%' ? token.integer * 2 : token.integer;
    }
    return reader.at == reader.end;
}

long long resp_command_length(const char *buffer, size_t length, size_t max_bytes, long long max_args) {
    RespReader reader = {buffer, buffer + length};
    RespToken token;
    int too_long = length > max_bytes;
    int got = resp_next(&reader, &token, 0);
    if (got != 1) return got < 0 || too_long || (length && *buffer != '*') || length > 32 ? -1 : 0;
    if (token.type != '*' || token.null || token.integer < 1 || token.integer > max_args) return -1;
    for (long long i = 0, count = token.integer; i < count; i++) {
        const char *start = reader.at;
        if (start < reader.end && *start != '$') return -1;
        got = resp_next(&reader, &token, 0);
        if (got < 0 || (got == 1 && token.null)) return -1;
        if (got == 0) return too_long || (reader.end - start > 32 && !memchr(start, '\r', 32)) ? -1 : 0;
    }
    return (size_t)(reader.at - buffer) > max_bytes ? -1 : reader.at - buffer;
}
