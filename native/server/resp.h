/* A strict RESP parser for a buffer. It does not depend on the server, so its tests run without a server.
 *
 * It accepts RESP2. With RESP_3 it also accepts the RESP3 types in replies of read commands. It limits the depth, the
 * number of elements and all lengths, checks for overflow, and allocates no memory. */
#pragma once

#include <stddef.h>

#define RESP_MAX_DEPTH 16
#define RESP_MAX_ELEMENTS (1 << 20)
#define RESP_3 1u

typedef struct RespReader {
    const char *at;
    const char *end;
} RespReader;

/* One token. The elements of an aggregate follow as separate tokens. */
typedef struct RespToken {
    char type;         /* '+', '-', ':', '$', '*'; with RESP_3 also '_', '#', ',', '%', '~', '(' */
    int null;          /* 1: the token is a null: $-1, *-1 or _ */
    long long integer; /* ':' and '#': the value; '*', '%', '~': number of elements */
    const char *text;  /* the bytes of '+', '-', '$', ',' and '(' */
    size_t length;
} RespToken;

/* Reads one token. 1: done. 0: the token is incomplete, and the reader has not moved. -1: the token is invalid. */
int resp_next(RespReader *reader, RespToken *token, unsigned flags);

/* 1: the buffer is exactly one complete, valid value. */
int resp_valid(const char *buffer, size_t length, unsigned flags);

/* Returns the length in bytes of the command at the start of `buffer`. A command is an array of bulk strings without
 * nulls. 0: the command is incomplete. -1: the buffer does not start with a command, or the command is larger than
 * max_bytes or max_args. */
long long resp_command_length(const char *buffer, size_t length, size_t max_bytes, long long max_args);
