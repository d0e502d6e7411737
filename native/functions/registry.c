/* After each change of a session, the module rebuilds the data that it derives from all sessions:
 * - the list of registrations
 * - the numbers of sessions, registrations and StreamReaders
 * - the first bytes of the keys that KeysReaders match
 * - the list of hooked commands */
#include "functions/registry.h"

#include <string.h>

#include "functions/hooked_commands.h"
#include "functions/tombstones.h"

static Session *sessions;
static Registration *registrations;
static size_t session_count, registration_count, stream_count;
static unsigned char first_bytes[256 / 8]; /* a bit for each possible first byte; 1: a KeysReader registration has a
                                              prefix that starts with this byte */
static int any_keys;
static long long stale_since_ms; /* the time of the last registry_mark_stale; 0: the worker knows all sessions */
static long long generation = 1;

void registry_mark_stale(void) { stale_since_ms = RedisModule_Milliseconds(); }
void registry_forget_stale(void) { stale_since_ms = 0; }
long long registry_stale_ms(void) { return stale_since_ms ? RedisModule_Milliseconds() - stale_since_ms + 1 : 0; }

void registry_changed(void) { generation++; }
long long registry_generation(void) { return generation; }

Registration *registry_first(void) { return registrations; }
Session *registry_first_session(void) { return sessions; }
size_t registry_sessions(void) { return session_count; }
size_t registry_registrations(void) { return registration_count; }
size_t registry_streams(void) { return stream_count; }
int registry_any_keys(void) { return any_keys; }

Registration *registry_find(RedisModuleString *id) {
    for (Registration *at = registrations; at; at = at->next)
        if (registration_same(at->fields[REG_ID], id)) return at;
    return NULL;
}

Registration *registry_find_trigger(RedisModuleString *trigger) {
    for (Registration *at = registrations; at; at = at->next)
        if (at->source == SOURCE_COMMAND && registration_same(at->fields[REG_MATCH], trigger)) return at;
    return NULL;
}

int registry_may_match_key(const char *key, size_t length) {
    unsigned char first = length ? (unsigned char)*key : 0;
    return any_keys && (first_bytes[first / 8] >> (first % 8) & 1);
}

/* ---- Changes ---- */

Session *registry_find_session(RedisModuleString *name) {
    for (Session *at = sessions; at; at = at->next)
        if (registration_same(at->fields[SESSION_NAME], name)) return at;
    return NULL;
}

static void index_keys(const Registration *registration) {
    any_keys = 1;
    if (registration->match_length) {
        unsigned char first = (unsigned char)*registration->match;
        first_bytes[first / 8] |= (unsigned char)(1 << (first % 8));
    } else {
        memset(first_bytes, 0xff, sizeof first_bytes);
    }
    hooked_commands_add(registration->fields[REG_COMMANDS]);
}

/* Rebuilds the data derived from the list of sessions. */
static void index_sessions(void) {
    Registration **end = &registrations;
    session_count = registration_count = stream_count = 0;
    for (Session *session = sessions; session; session = session->next) {
        session_count++;
        for (long long i = 0; i < session->count; i++) {
            *end = session->registrations[i];
            end = &(*end)->next;
            registration_count++;
            stream_count += session->registrations[i]->source == SOURCE_STREAM;
        }
    }
    *end = NULL;
    any_keys = 0;
    memset(first_bytes, 0, sizeof first_bytes);
    hooked_commands_clear();
    for (const Registration *at = registrations; at; at = at->next)
        if (at->source == SOURCE_KEYS) index_keys(at);
    registry_changed();
}

/* Copies state and counters from the registrations of `old` to the registrations of `session` with the same ids. */
static void keep_counters(Session *session, Session *old) {
    for (long long i = 0; i < session->count; i++) {
        Registration *now = session->registrations[i];
        for (long long j = 0; j < old->count; j++) {
            Registration *then = old->registrations[j];
            if (!registration_same(now->fields[REG_ID], then->fields[REG_ID])) continue;
            now->overflowed = then->overflowed;
            now->paused = then->paused;
            now->pause_order = then->pause_order;
            now->status = then->status;
            now->counters = then->counters;
            then->counters.last_error = NULL;
        }
    }
}

void registry_replace_session(Session *old, Session *session) {
    Session **link = &sessions;
    while (*link && *link != old) link = &(*link)->next;
    if (session) {
        session->next = old ? old->next : NULL;
        *link = session;
    } else if (old) {
        *link = old->next;
    }
    if (old && session) keep_counters(session, old);
    index_sessions();
    if (old) session_free(old);
}

void registry_clear(void) {
    while (sessions) registry_replace_session(sessions, NULL);
    tombstones_clear();
}

int registry_remove(RedisModuleString *id) {
    for (Session *session = sessions; session; session = session->next) {
        for (long long i = 0; i < session->count; i++) {
            Registration *registration = session->registrations[i];
            if (!registration_same(registration->fields[REG_ID], id)) continue;
            memmove(session->registrations + i, session->registrations + i + 1,
                    (size_t)(session->count - i - 1) * sizeof *session->registrations);
            if (--session->count) index_sessions();
            else registry_replace_session(session, NULL);
            registration_free(registration);
            return 1;
        }
    }
    return 0;
}

/* ---- Checks ---- */

RedisModuleString *registry_check_conflicts(const Session *session, const Session *old) {
    RedisModuleString *error = NULL;
    for (long long i = 0; i < session->count && !error; i++) {
        const Registration *mine = session->registrations[i];
        for (const Session *at = sessions; at; at = at->next)
            for (long long j = 0; at != old && j < at->count && !error; j++)
                error = registration_check_conflict(mine, at->registrations[j]);
        for (long long j = 0; j < i && !error; j++)
            error = registration_check_conflict(mine, session->registrations[j]);
    }
    return error;
}

RedisModuleString *registry_check_tombstones(const Session *session) {
    for (long long i = 0; i < session->count; i++) {
        RedisModuleString *id = session->registrations[i]->fields[REG_ID];
        if (tombstones_have(id))
            return RedisModule_CreateStringPrintf(NULL, "UNREGISTERED registration has been unregistered: %.100s",
                                                  RedisModule_StringPtrLen(id, NULL));
    }
    return NULL;
}
