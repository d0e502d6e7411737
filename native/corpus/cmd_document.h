/* QA.PUTDOCUMENT, QA.DELDOCUMENT, QA.SETMETADATA, QA.EMBEDDOCUMENT, QA.PUTANSWER, QA.DELANSWER and QA.DELCOLLECTION. */
#ifndef QA_CMD_DOCUMENT_H
#define QA_CMD_DOCUMENT_H

#include "server/module_api.h"

int document_on_load(RedisModuleCtx *ctx);

#endif
