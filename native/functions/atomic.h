/* QA.ATOMIC: for the short time of a lease the server serves the worker only, over the control socket.
 *
 * Only here does the server's main thread wait for the worker: it blocks in poll(), never for longer than the lease,
 * which `qa.atomic-lease-ms` bounds. The supervisor owns the socket; this part reads and writes it, and keeps what it
 * has read of an incomplete command. */
#ifndef QA_ATOMIC_H
#define QA_ATOMIC_H

#include "server/module_api.h"

/* The control socket, as its owner lends it. */
typedef struct AtomicControl {
    int (*socket)(void);  /* our end, -1 when there is no worker */
    void (*closed)(void); /* it is closed or out of step: the worker is dead or useless */
} AtomicControl;

int atomic_on_load(RedisModuleCtx *ctx);

/* Call it once, at load time. `control` must live as long as the module. */
void atomic_attach(const AtomicControl *control);

/* 1 while an atomic block runs a command. */
int atomic_running(void);

/* Reads what arrives on the control socket outside a block, and answers commands of a block whose lease is over with an
 * error. Returns 0 when the socket is closed or the bytes are not a command. */
int atomic_read_stray(int fd);

/* For a new worker: forgets the incomplete command of the last one. */
void atomic_reset(void);

#endif
