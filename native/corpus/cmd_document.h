/* QA.PUTDOCUMENT, QA.DELDOCUMENT, QA.PUTANSWER and QA.DELANSWER. */
#ifndef QA_CMD_DOCUMENT_H
#define QA_CMD_DOCUMENT_H

#include "server/module_api.h"

int document_on_load(RedisModuleCtx *ctx);

#endif
