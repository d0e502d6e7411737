/* QA.PUTDOCUMENT, QA.DELDOCUMENT, QA.SETMETADATA, QA.EMBEDDOCUMENT, QA.PUTANSWER, QA.DELANSWER and QA.DELCOLLECTION. */
#pragma once

#include "server/module_api.h"

int document_on_load(RedisModuleCtx *ctx);
