/* Frees sessions, signs them, and checks the signatures of sessions from files and primaries. */
#include "functions/session.h"

#include <stdio.h>
#include <string.h>

#include "server/blake2b.h"
#include "server/bus_keys.h"
#include "server/config.h"
#include "server/server.h"

enum { TAG_BYTES = 32 };

static unsigned long long refused, adopted;

unsigned long long sessions_refused(void) { return refused; }

unsigned long long sessions_take_adopted(void) {
    unsigned long long count = adopted;
    adopted = 0;
    return count;
}

void session_free(Session *session) {
    for (int i = 0; i < SESSION_FIELDS; i++)
        if (session->fields[i]) RedisModule_FreeString(NULL, session->fields[i]);
    for (long long i = 0; i < session->count; i++) registration_free(session->registrations[i]);
    RedisModule_Free(session->registrations);
    RedisModule_Free(session);
}

static void add_field(Blake2b *hash, RedisModuleString *field) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(field, &length);
    uint64_t size = length;
    blake2b_add(hash, &size, sizeof size);
    blake2b_add(hash, text, length);
}

/* Computes the tag of a session with key number `key` (from 0, bus_keys.h), and writes its TAG_BYTES bytes to `tag`.
 * Returns 1, or 0 if there is no such key. */
static int make_tag(uint8_t *tag, int key, const Session *session) {
    uint8_t secret[BUS_KEY_BYTES];
    Blake2b hash;
    if (!bus_secret(key, "qa-cluster stored registrations", secret)) return 0;
    blake2b_begin(&hash, TAG_BYTES, secret, sizeof secret);
    for (int i = 0; i < SESSION_FIELDS; i++) add_field(&hash, session->fields[i]);
    for (long long i = 0; i < session->count; i++)
        for (int j = 0; j < REG_FIELDS; j++) add_field(&hash, session->registrations[i]->fields[j]);
    blake2b_end(&hash, tag);
    explicit_bzero(secret, sizeof secret);
    return 1;
}

RedisModuleString *session_sign(const Session *session) {
    uint8_t tag[TAG_BYTES];
    return RedisModule_CreateString(NULL, (const char *)tag, make_tag(tag, 0, session) ? TAG_BYTES : 0);
}

/* 1: the tag is valid for one of the keys of this server. `tag` may be NULL. */
static int is_signed(const Session *session, RedisModuleString *tag) {
    size_t length = 0;
    const char *given = tag ? RedisModule_StringPtrLen(tag, &length) : NULL;
    uint8_t expected[TAG_BYTES];
    for (int i = 0; length == TAG_BYTES && make_tag(expected, i, session); i++)
        if (blake2b_equal(expected, (const uint8_t *)given, TAG_BYTES)) return 1;
    return 0;
}

int session_is_trusted(const Session *session, RedisModuleString *tag) {
    if (is_signed(session, tag)) return 1;
    int adopt = !strcmp(config.adopt_registrations, "yes");
    char name[65];
    size_t length;
    const char *text = RedisModule_StringPtrLen(session->fields[SESSION_NAME], &length), *why;
    snprintf(name, sizeof name, "%.*s", (int)(length < 64 ? length : 64), text);
    for (char *at = name; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
    why = tag ? "no key of this cluster made their signature" : "they are not signed";
    adopted += adopt;
    refused += !adopt;
    RedisModule_Log(server_ctx(), "warning",
                    adopt ? "the %lld registrations of session %s were adopted (qa.adopt-registrations), although %s"
                          : "the %lld registrations of session %s were not loaded, because %s; if you trust the data, "
                            "start the server once with qa.adopt-registrations yes (docs/upgrade.md)",
                    session->count, name, why);
    return adopt;
}
