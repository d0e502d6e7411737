/* A session: the registrations of one script.
 *
 * Registrations contain code, and through the cluster bus any server can claim to be the primary of this server. So
 * each session in an RDB file, in the AOF or from a primary has a tag, a signature (not the tag of a partition). The
 * tag is a keyed BLAKE2b-256 hash of the session's fields and of the fields of its registrations. The key of the hash
 * is a secret of the cluster (server/bus_keys.h). A session without a valid tag is not loaded, unless
 * qa.adopt-registrations is "yes". */
#pragma once

#include "functions/registration.h"

/* The strings of a session, in the order of QA.REGISTER. */
enum { SESSION_NAME, SESSION_DESCRIPTION, SESSION_SOURCE, SESSION_PAYLOAD, SESSION_FIELDS };

enum { MAX_REGISTRATIONS = 10000 }; /* in a session */

typedef struct Session {
    RedisModuleString *fields[SESSION_FIELDS];
    Registration **registrations;
    long long count;
    struct Session *next;
} Session;

void session_free(Session *session);

/* Returns the tag of a session for a file or a replica. The tag is empty if this server has no key. */
RedisModuleString *session_sign(const Session *session);
/* 1: the session from a file, the AOF or a primary may be loaded. 0: the session is refused, and the log says why.
 * `tag` may be NULL. */
int session_is_trusted(const Session *session, RedisModuleString *tag);

/* How many sessions were not loaded because their tag was missing or wrong. */
unsigned long long sessions_refused(void);
/* How many sessions were loaded without a valid tag since the last call of this function. */
unsigned long long sessions_take_adopted(void);
