/* The keys of the cluster. A server uses them to sign messages to other servers (server/bus.h) and stored registrations
 * (functions/session.h). No server ever sends a key. */
#pragma once

#include "server/module_api.h"

enum { BUS_KEY_BYTES = 32 };

typedef enum {
    KEY_NONE,
    KEY_FILE,     /* a line of the file qa.bus-key-file */
    KEY_PASSWORD, /* derived from requirepass */
    KEY_USER,     /* in a file of the server's user; all servers of this user on this machine share this file */
    KEY_SERVER,   /* in a file in the folder of this server; no other server reads this file */
} KeySource;

KeySource bus_key_source(void);
/* The name of the source in INFO. */
const char *bus_key_source_name(void);

/* Copies key number `index` (from 0) to `key`, which must have BUS_KEY_BYTES bytes. Returns 1, or 0 if there is no such
 * key. Key 0 signs. A signature by any key is valid. */
int bus_key(int index, uint8_t *key);

/* Derives a secret of BUS_KEY_BYTES bytes from key number `index`. `purpose` is a constant text: each purpose has a
 * different secret. Servers with the same key derive the same secret. The secret does not reveal the key. Returns 1, or
 * 0 if there is no such key. */
int bus_secret(int index, const char *purpose, uint8_t *secret);

/* Logs a warning at most once a minute, so that a foreign server cannot fill the log. `format` has one %s, which
 * `detail` replaces. */
void bus_complain(const char *format, const char *detail);
