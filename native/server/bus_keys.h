/* The keys of the cluster. They sign the messages between servers (server/bus.h) and the stored registrations
 * (functions/session.h). No server ever sends a key. */
#ifndef QA_BUS_KEYS_H
#define QA_BUS_KEYS_H

#include "server/module_api.h"

enum { BUS_KEY_BYTES = 32 };

typedef enum {
    KEY_NONE,
    KEY_FILE,     /* a line of the file qa.bus-key-file */
    KEY_PASSWORD, /* derived from requirepass */
    KEY_USER,     /* in a file of the server's user, which all servers of this user on this machine share */
    KEY_SERVER,   /* in a file in the folder of this server, which no other server reads */
} KeySource;

KeySource bus_key_source(void);
/* The name of the source in INFO. */
const char *bus_key_source_name(void);

/* Copies the key with this index. 0: there is no such key. The key with index 0 signs. A signature of any key is
 * accepted. */
int bus_key(int index, uint8_t *key);

/* Derives a secret from the key with this index. Servers with the same key derive the same secret, which does not
 * reveal the key. 0: there is no such key. */
int bus_secret(int index, const char *purpose, uint8_t *secret);

/* Logs a warning at most once a minute: a foreign server must not fill the log. */
void bus_complain(const char *format, const char *detail);

#endif
