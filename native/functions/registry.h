/* Owns all sessions and registrations of the server. A session is the registrations of one script (session.h).
 *
 * No code may keep a pointer to a Registration after the current command or event. Longer-lived data refers to a
 * registration by its id. */
#pragma once

#include "functions/session.h"

/* ---- Registrations ---- */

Registration *registry_first(void); /* the head of a list that is linked by `next` */
/* Return the registration with this id, or the CommandReader registration with this trigger. NULL: there is no such
 * registration. */
Registration *registry_find(RedisModuleString *id);
Registration *registry_find_trigger(RedisModuleString *trigger);
size_t registry_sessions(void);
size_t registry_registrations(void);
size_t registry_streams(void); /* the number of StreamReader registrations */
int registry_any_keys(void);   /* 1: there is a KeysReader registration */
/* A fast check of the first byte of the key. 0: no KeysReader registration matches the key. 1: a registration may
 * match. */
int registry_may_match_key(const char *key, size_t length);

/* Removes one registration. Returns 1, or 0 if no registration has this id. */
int registry_remove(RedisModuleString *id);

/* ---- Sessions ---- */

Session *registry_first_session(void);
Session *registry_find_session(RedisModuleString *name); /* NULL: there is no such session */
/* Replaces `old` with `session` and frees `old`. If `old` is NULL, adds `session` at the end of the list. If `session`
 * is NULL, removes and frees `old`. */
void registry_replace_session(Session *old, Session *session);
/* Removes all sessions and all tombstones. */
void registry_clear(void);

/* Returns NULL, or an error line (to be freed) if a registration of `session` conflicts with another registration.
 * Compares with all registrations except the registrations of `old`. */
RedisModuleString *registry_check_conflicts(const Session *session, const Session *old);
/* Returns NULL, or an error line (to be freed) if a registration of `session` was removed and must not return. */
RedisModuleString *registry_check_tombstones(const Session *session);

/* ---- Sessions that the worker does not know yet ---- */

/* A session that arrives by replication or from a file is unknown to the worker until the worker calls QA.SESSIONS. If
 * the worker does not call QA.SESSIONS for some time, the module replaces the worker (worker/supervisor.c). */
void registry_mark_stale(void);
void registry_forget_stale(void);
/* Returns the milliseconds since the last call of registry_mark_stale, plus 1. 0: the worker knows all sessions. */
long long registry_stale_ms(void);

/* Call it when the reply to QA.REGISTRATIONS changes. */
void registry_changed(void);
/* Returns a number that grows with each call of registry_changed. */
long long registry_generation(void);
