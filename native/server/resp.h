/* A strict RESP parser over a buffer. It knows nothing of the server, so a test needs none.
 *
 * It accepts RESP2, and with RESP_3 the RESP3 types that a reply of a read command can hold. It bounds depth, number of
 * elements and all lengths, checks for overflow, and allocates nothing. */
#ifndef QA_RESP_H
#define QA_RESP_H

#include <stddef.h>

#define RESP_MAX_DEPTH 16
#define RESP_MAX_ELEMENTS (1 << 20)
#define RESP_3 1u

typedef struct RespReader {
    const char *at;
    const char *end;
} RespReader;

/* One token. Aggregates are followed by their elements as further tokens. */
typedef struct RespToken {
    char type;         /* '+', '-', ':', '$', '*'; with RESP_3 also '_', '#', ',', '%', '~', '(' */
    int null;          /* $-1, *-1 or _ */
    long long integer; /* ':' and '#': the value; '*', '%', '~': number of elements */
    const char *text;  /* '+', '-', '$', ',', '(' */
    size_t length;
} RespToken;

/* Reads one token: 1 read, 0 incomplete (the reader has not moved), -1 invalid. */
int resp_next(RespReader *reader, RespToken *token, unsigned flags);

/* 1 when the buffer holds exactly one complete, valid value. */
int resp_valid(const char *buffer, size_t length, unsigned flags);

/* Length of the command (array of bulk strings, none of them null) that `buffer` begins with; 0 when it is not complete
 * yet; -1 when it is not one or is larger than max_bytes or max_args. */
long long resp_command_length(const char *buffer, size_t length, size_t max_bytes, long long max_args);

#endif
