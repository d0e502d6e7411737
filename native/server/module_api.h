/* Declares the functions of the module API of Redis 7.0+ and Valkey 8+ that the module uses.
 *
 * module_api_load finds the functions by name, so one .so works with both servers. Loading fails if a REQUIRED function
 * is missing. A missing OPTIONAL function is NULL, so callers must test for NULL. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define REDISMODULE_OK 0
#define REDISMODULE_ERR 1
#define REDISMODULE_APIVER_1 1
#define REDISMODULE_TYPE_METHOD_VERSION 5

/* For OpenKey. */
#define REDISMODULE_READ (1 << 0)
#define REDISMODULE_WRITE (1 << 1)
#define REDISMODULE_OPEN_KEY_NOTOUCH (1 << 16)

#define REDISMODULE_KEYTYPE_EMPTY 0
#define REDISMODULE_KEYTYPE_STRING 1
#define REDISMODULE_KEYTYPE_HASH 3

#define REDISMODULE_HASH_NONE 0
#define REDISMODULE_HASH_CFIELDS (1 << 2)

#define REDISMODULE_REPLY_STRING 0
#define REDISMODULE_REPLY_ERROR 1
#define REDISMODULE_REPLY_ARRAY 3

#define REDISMODULE_POSTPONED_LEN (-1)

#define REDISMODULE_CTX_FLAGS_LUA (1 << 0)
#define REDISMODULE_CTX_FLAGS_MULTI (1 << 1)
#define REDISMODULE_CTX_FLAGS_MASTER (1 << 2)
#define REDISMODULE_CTX_FLAGS_SLAVE (1 << 3)
#define REDISMODULE_CTX_FLAGS_CLUSTER (1 << 5)
#define REDISMODULE_CTX_FLAGS_REPLICATED (1 << 12)
#define REDISMODULE_CTX_FLAGS_LOADING (1 << 13)
#define REDISMODULE_CTX_FLAGS_ACTIVE_CHILD (1 << 18)
#define REDISMODULE_CTX_FLAGS_IS_CHILD (1 << 20)
#define REDISMODULE_CTX_FLAGS_DENY_BLOCKING (1 << 21)
#define REDISMODULE_CTX_FLAGS_RESP3 (1 << 22)
#define VALKEYMODULE_CTX_FLAGS_SLOT_IMPORT_CLIENT (1 << 25)

#define REDISMODULE_NOTIFY_GENERIC (1 << 2)
#define REDISMODULE_NOTIFY_STRING (1 << 3)
#define REDISMODULE_NOTIFY_LIST (1 << 4)
#define REDISMODULE_NOTIFY_SET (1 << 5)
#define REDISMODULE_NOTIFY_HASH (1 << 6)
#define REDISMODULE_NOTIFY_ZSET (1 << 7)
#define REDISMODULE_NOTIFY_EXPIRED (1 << 8)
#define REDISMODULE_NOTIFY_EVICTED (1 << 9)
#define REDISMODULE_NOTIFY_STREAM (1 << 10)
#define REDISMODULE_NOTIFY_KEY_MISS (1 << 11)
#define REDISMODULE_NOTIFY_MODULE (1 << 13)
#define REDISMODULE_NOTIFY_ALL                                                                                         \
    (REDISMODULE_NOTIFY_GENERIC | REDISMODULE_NOTIFY_STRING | REDISMODULE_NOTIFY_LIST | REDISMODULE_NOTIFY_SET |       \
     REDISMODULE_NOTIFY_HASH | REDISMODULE_NOTIFY_ZSET | REDISMODULE_NOTIFY_EXPIRED | REDISMODULE_NOTIFY_EVICTED |     \
     REDISMODULE_NOTIFY_STREAM | REDISMODULE_NOTIFY_MODULE)

#define REDISMODULE_ERRORMSG_WRONGTYPE "WRONGTYPE Operation against a key holding the wrong kind of value"

#define REDISMODULE_NODE_ID_LEN 40
#define REDISMODULE_NODE_MYSELF (1 << 0)
#define REDISMODULE_NODE_MASTER (1 << 1)
#define REDISMODULE_NODE_PFAIL (1 << 3)
#define REDISMODULE_NODE_FAIL (1 << 4)

#define REDISMODULE_AUX_BEFORE_RDB (1 << 0)

#define REDISMODULE_CMDFILTER_NOSELF (1 << 0)

#define REDISMODULE_OPTIONS_HANDLE_IO_ERRORS (1 << 0)
#define REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED (1 << 1)
#define VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION (1 << 5)

#define REDISMODULE_CMD_KEY_RO (1ULL << 0)
#define REDISMODULE_CMD_KEY_RW (1ULL << 1)
#define REDISMODULE_CMD_KEY_OW (1ULL << 2)
#define REDISMODULE_CMD_KEY_ACCESS (1ULL << 4)
#define REDISMODULE_CMD_KEY_UPDATE (1ULL << 5)

#define REDISMODULE_KSPEC_BS_INDEX 2

#define REDISMODULE_CONFIG_DEFAULT 0
#define REDISMODULE_CONFIG_IMMUTABLE (1ULL << 0)

#define REDISMODULE_EVENTLOOP_READABLE 1

#define REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED 0
#define REDISMODULE_EVENT_FLUSHDB 2
#define REDISMODULE_EVENT_LOADING 3
#define REDISMODULE_EVENT_SHUTDOWN 5
#define REDISMODULE_EVENT_SWAPDB 11
#define REDISMODULE_EVENT_FORK_CHILD 13
#define REDISMODULE_SUBEVENT_LOADING_REPL_START 2
#define REDISMODULE_SUBEVENT_LOADING_ENDED 3
#define REDISMODULE_SUBEVENT_FORK_CHILD_BORN 0
#define REDISMODULE_SUBEVENT_FLUSHDB_START 0
#define REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER 0

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef struct RedisModuleIO RedisModuleIO;
typedef struct RedisModuleType RedisModuleType;
typedef struct RedisModuleDigest RedisModuleDigest;
typedef struct RedisModuleBlockedClient RedisModuleBlockedClient;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef struct RedisModuleCommand RedisModuleCommand;
typedef struct RedisModuleCommandFilter RedisModuleCommandFilter;
typedef struct RedisModuleCommandFilterCtx RedisModuleCommandFilterCtx;
typedef struct RedisModuleInfoCtx RedisModuleInfoCtx;
typedef struct RedisModuleUser RedisModuleUser;
typedef struct RedisModuleServerInfoData RedisModuleServerInfoData;
typedef struct RedisModuleDict RedisModuleDict;
typedef struct RedisModuleDictIter RedisModuleDictIter;
typedef uint64_t RedisModuleTimerID;

typedef struct RedisModuleEvent {
    uint64_t id;
    uint64_t dataver;
} RedisModuleEvent;

#define REDISMODULE_BLOCK_UNBLOCK_DELETED (1 << 0)

#define REDISMODULE_CLIENTINFO_FLAG_TRACKING (1 << 3)
/* The result of GetClientInfoById; set version to 1 first. */
typedef struct RedisModuleClientInfo {
    uint64_t version;
    uint64_t flags;
    uint64_t id;
    char addr[46];
    uint16_t port;
    uint16_t db;
} RedisModuleClientInfo;

/* The data of an EVENT_FLUSHDB. */
typedef struct RedisModuleFlushInfo {
    uint64_t version;
    int32_t sync;
    int32_t dbnum; /* -1: all databases */
} RedisModuleFlushInfo;

typedef int (*RedisModuleCmdFunc)(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);
typedef void (*RedisModuleDisconnectFunc)(RedisModuleCtx *ctx, RedisModuleBlockedClient *client);
typedef int (*RedisModuleNotificationFunc)(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key);
typedef void (*RedisModulePostNotificationJobFunc)(RedisModuleCtx *ctx, void *data);
typedef void (*RedisModuleTimerProc)(RedisModuleCtx *ctx, void *data);
typedef void (*RedisModuleFreeDataFunc)(RedisModuleCtx *ctx, void *data);
typedef void (*RedisModuleCommandFilterFunc)(RedisModuleCommandFilterCtx *filter);
typedef void (*RedisModuleInfoFunc)(RedisModuleInfoCtx *ctx, int for_crash_report);
typedef void (*RedisModuleEventLoopFunc)(int fd, void *data, int mask);
typedef void (*RedisModuleEventLoopOneShotFunc)(void *data);
typedef void (*RedisModuleEventCallback)(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data);
typedef void (*RedisModuleUserChangedFunc)(uint64_t client_id, void *data);
typedef void (*RedisModuleClusterMessageReceiver)(RedisModuleCtx *ctx, const char *sender_id, uint8_t type,
                                                  const unsigned char *payload, uint32_t length);

typedef RedisModuleString *(*RedisModuleConfigGetStringFunc)(const char *name, void *data);
typedef long long (*RedisModuleConfigGetNumericFunc)(const char *name, void *data);
typedef int (*RedisModuleConfigSetStringFunc)(const char *name, RedisModuleString *value, void *data,
                                              RedisModuleString **error);
typedef int (*RedisModuleConfigSetNumericFunc)(const char *name, long long value, void *data,
                                               RedisModuleString **error);
typedef int (*RedisModuleConfigApplyFunc)(RedisModuleCtx *ctx, void *data, RedisModuleString **error);

/* The server defines the order of the fields. Set version to REDISMODULE_TYPE_METHOD_VERSION. Fields that the module
 * does not use have the type void *. */
typedef struct RedisModuleTypeMethods {
    uint64_t version;
    void *(*rdb_load)(RedisModuleIO *rdb, int encver);
    void (*rdb_save)(RedisModuleIO *rdb, void *value);
    void (*aof_rewrite)(RedisModuleIO *aof, RedisModuleString *key, void *value);
    size_t (*mem_usage)(const void *value);
    void (*digest)(RedisModuleDigest *digest, void *value);
    void (*free)(void *value);
    int (*aux_load)(RedisModuleIO *rdb, int encver, int when);
    void (*aux_save)(RedisModuleIO *rdb, int when);
    int aux_save_triggers;
    size_t (*free_effort)(RedisModuleString *key, const void *value);
    void *unlink;
    void *(*copy)(RedisModuleString *from, RedisModuleString *to, const void *value);
    void *defrag, *mem_usage2, *free_effort2, *unlink2, *copy2;
    void (*aux_save2)(RedisModuleIO *rdb, int when);
} RedisModuleTypeMethods;

/* The positions of keys in the arguments of a command, and the use of these keys. An entry without begin_search_type
 * ends the list. */
typedef struct RedisModuleCommandKeySpec {
    const char *notes;
    uint64_t flags;
    int begin_search_type;
    union {
        struct {
            int pos;
        } index;
        struct {
            const char *keyword;
            int start_from;
        } keyword;
    } bs;
    int find_keys_type; /* 0: there is only one key */
    int find_keys[3];
} RedisModuleCommandKeySpec;

/* The sizes of the structures that this header declares. Fields with other structures must be NULL. */
typedef struct RedisModuleCommandInfoVersion {
    int version;
    size_t sizeof_history_entry, sizeof_key_spec, sizeof_argument;
} RedisModuleCommandInfoVersion;

typedef struct RedisModuleCommandInfo {
    const RedisModuleCommandInfoVersion *version;
    const char *summary, *complexity, *since;
    void *history;
    const char *tips;
    int arity;
    RedisModuleCommandKeySpec *key_specs;
    void *arguments;
} RedisModuleCommandInfo;

typedef RedisModuleCtx Ctx_; /* short names, only for the tables below */
typedef RedisModuleString Str_;

/* X(return type, name, arguments). clang-format would read the stars of pointers as multiplications. */
/* clang-format off */
#define REDISMODULE_REQUIRED_FUNCTIONS(X)                                                                              \
    /* memory */                                                                                                       \
    X(void *, Alloc, (size_t bytes))                                                                                   \
    X(void *, TryAlloc, (size_t bytes))                                                                                \
    X(void *, Calloc, (size_t count, size_t bytes))                                                                    \
    X(void *, Realloc, (void *pointer, size_t bytes))                                                                  \
    X(void, Free, (void *pointer))                                                                                     \
    X(char *, Strdup, (const char *text))                                                                              \
    X(size_t, MallocSize, (void *pointer))                                                                             \
    X(size_t, MallocSizeString, (Str_ * string))                                                                       \
    /* module and commands */                                                                                          \
    X(void, SetModuleAttribs, (Ctx_ *ctx, const char *name, int version, int api_version))                             \
    X(void, SetModuleOptions, (Ctx_ *ctx, int options))                                                                \
    X(int, CreateCommand,                                                                                              \
      (Ctx_ *ctx, const char *name, RedisModuleCmdFunc handler, const char *flags, int first, int last, int step))     \
    X(RedisModuleCommand *, GetCommand, (Ctx_ *ctx, const char *name))                                                 \
    X(int, SetCommandInfo, (RedisModuleCommand * command, const RedisModuleCommandInfo *info))                         \
    X(int, WrongArity, (Ctx_ *ctx))                                                                                    \
    X(int, IsKeysPositionRequest, (Ctx_ *ctx))                                                                         \
    X(void, KeyAtPosWithFlags, (Ctx_ *ctx, int position, int flags))                                                   \
    X(int *, GetCommandKeysWithFlags, (Ctx_ *ctx, Str_ **argv, int argc, int *count, int **flags))                     \
    X(int, GetContextFlags, (Ctx_ *ctx))                                                                               \
    X(unsigned long long, GetClientId, (Ctx_ *ctx))                                                                    \
    X(int, GetClientInfoById, (void *info, uint64_t id))                                                               \
    X(int, GetSelectedDb, (Ctx_ *ctx))                                                                                 \
    X(int, SelectDb, (Ctx_ *ctx, int db))                                                                              \
    X(void, Log, (Ctx_ *ctx, const char *level, const char *format, ...))                                              \
    /* replies */                                                                                                      \
    X(int, ReplyWithLongLong, (Ctx_ *ctx, long long value))                                                            \
    X(int, ReplyWithError, (Ctx_ *ctx, const char *error))                                                             \
    X(int, ReplyWithSimpleString, (Ctx_ *ctx, const char *text))                                                       \
    X(int, ReplyWithArray, (Ctx_ *ctx, long length))                                                                   \
    X(int, ReplyWithMap, (Ctx_ *ctx, long length))                                                                     \
    X(int, ReplyWithSet, (Ctx_ *ctx, long length))                                                                     \
    X(int, ReplyWithBool, (Ctx_ *ctx, int value))                                                                      \
    X(int, ReplyWithNullArray, (Ctx_ *ctx))                                                                            \
    X(void, ReplySetArrayLength, (Ctx_ *ctx, long length))                                                             \
    X(int, ReplyWithStringBuffer, (Ctx_ *ctx, const char *buffer, size_t length))                                      \
    X(int, ReplyWithCString, (Ctx_ *ctx, const char *text))                                                            \
    X(int, ReplyWithString, (Ctx_ *ctx, Str_ *string))                                                                 \
    X(int, ReplyWithNull, (Ctx_ *ctx))                                                                                 \
    X(int, ReplyWithDouble, (Ctx_ *ctx, double value))                                                                 \
    X(int, ReplyWithCallReply, (Ctx_ *ctx, RedisModuleCallReply *reply))                                               \
    /* strings */                                                                                                      \
    X(Str_ *, CreateString, (Ctx_ *ctx, const char *buffer, size_t length))                                            \
    X(Str_ *, CreateStringFromLongLong, (Ctx_ *ctx, long long value))                                                  \
    X(Str_ *, CreateStringFromString, (Ctx_ *ctx, const Str_ *string))                                                 \
    X(Str_ *, CreateStringPrintf, (Ctx_ *ctx, const char *format, ...))                                                \
    X(void, FreeString, (Ctx_ *ctx, Str_ *string))                                                                     \
    X(Str_ *, HoldString, (Ctx_ *ctx, Str_ *string))                                                                   \
    X(const char *, StringPtrLen, (const Str_ *string, size_t *length))                                                \
    X(int, StringToLongLong, (const Str_ *string, long long *value))                                                   \
    X(int, StringToDouble, (const Str_ *string, double *value))                                                        \
    X(int, StringAppendBuffer, (Ctx_ *ctx, Str_ *string, const char *buffer, size_t length))                           \
    X(int, StringCompare, (Str_ * a, Str_ * b))                                                                        \
    /* keys */                                                                                                         \
    X(RedisModuleKey *, OpenKey, (Ctx_ *ctx, Str_ *name, int mode))                                                    \
    X(void, CloseKey, (RedisModuleKey * key))                                                                          \
    X(int, KeyType, (RedisModuleKey * key))                                                                            \
    X(int, UnlinkKey, (RedisModuleKey * key))                                                                          \
    X(char *, StringDMA, (RedisModuleKey * key, size_t * length, int mode))                                            \
    X(int, HashGet, (RedisModuleKey * key, int flags, ...))                                                            \
    X(int, HashSet, (RedisModuleKey * key, int flags, ...))                                                            \
    X(int, SignalModifiedKey, (Ctx_ *ctx, Str_ *name))                                                                 \
    X(int, NotifyKeyspaceEvent, (Ctx_ *ctx, int type, const char *event, Str_ *key))                                   \
    X(int, SubscribeToKeyspaceEvents, (Ctx_ *ctx, int types, RedisModuleNotificationFunc callback))                    \
    /* calls and replication */                                                                                        \
    X(RedisModuleCallReply *, Call, (Ctx_ *ctx, const char *command, const char *format, ...))                         \
    X(void, FreeCallReply, (RedisModuleCallReply * reply))                                                             \
    X(int, CallReplyType, (RedisModuleCallReply * reply))                                                              \
    X(long long, CallReplyInteger, (RedisModuleCallReply * reply))                                                     \
    X(size_t, CallReplyLength, (RedisModuleCallReply * reply))                                                         \
    X(RedisModuleCallReply *, CallReplyArrayElement, (RedisModuleCallReply * reply, size_t index))                     \
    X(const char *, CallReplyStringPtr, (RedisModuleCallReply * reply, size_t *length))                                \
    X(const char *, CallReplyProto, (RedisModuleCallReply * reply, size_t *length))                                    \
    X(Str_ *, CreateStringFromCallReply, (RedisModuleCallReply * reply))                                               \
    X(int, Replicate, (Ctx_ *ctx, const char *command, const char *format, ...))                                       \
    X(int, ReplicateVerbatim, (Ctx_ *ctx))                                                                             \
    /* data types */                                                                                                   \
    X(RedisModuleType *, CreateDataType,                                                                               \
      (Ctx_ *ctx, const char *name, int encver, RedisModuleTypeMethods *methods))                                      \
    X(int, ModuleTypeSetValue, (RedisModuleKey * key, RedisModuleType * type, void *value))                            \
    X(RedisModuleType *, ModuleTypeGetType, (RedisModuleKey * key))                                                    \
    X(void *, ModuleTypeGetValue, (RedisModuleKey * key))                                                              \
    X(int, IsIOError, (RedisModuleIO * io))                                                                            \
    X(void, SaveUnsigned, (RedisModuleIO * io, uint64_t value))                                                        \
    X(uint64_t, LoadUnsigned, (RedisModuleIO * io))                                                                    \
    X(void, SaveString, (RedisModuleIO * io, Str_ * string))                                                           \
    X(void, SaveStringBuffer, (RedisModuleIO * io, const char *buffer, size_t length))                                 \
    X(Str_ *, LoadString, (RedisModuleIO * io))                                                                        \
    X(char *, LoadStringBuffer, (RedisModuleIO * io, size_t * length))                                                 \
    X(void, EmitAOF, (RedisModuleIO * io, const char *command, const char *format, ...))                               \
    X(void, LogIOError, (RedisModuleIO * io, const char *level, const char *format, ...))                              \
    X(const Str_ *, GetKeyNameFromIO, (RedisModuleIO * io))                                                            \
    X(void, DigestAddStringBuffer, (RedisModuleDigest * digest, const char *buffer, size_t length))                    \
    X(void, DigestAddLongLong, (RedisModuleDigest * digest, long long value))                                          \
    X(void, DigestEndSequence, (RedisModuleDigest * digest))                                                           \
    /* dictionaries, ordered by key */                                                                                 \
    X(RedisModuleDict *, CreateDict, (Ctx_ *ctx))                                                                      \
    X(void, FreeDict, (Ctx_ *ctx, RedisModuleDict *dict))                                                              \
    X(uint64_t, DictSize, (RedisModuleDict * dict))                                                                    \
    X(int, DictSet, (RedisModuleDict * dict, Str_ *key, void *value))                                                  \
    X(int, DictReplace, (RedisModuleDict * dict, Str_ *key, void *value))                                              \
    X(void *, DictGet, (RedisModuleDict * dict, Str_ *key, int *missing))                                              \
    X(int, DictDel, (RedisModuleDict * dict, Str_ *key, void *old))                                                    \
    X(int, DictSetC, (RedisModuleDict * dict, void *key, size_t length, void *value))                                  \
    X(int, DictReplaceC, (RedisModuleDict * dict, void *key, size_t length, void *value))                              \
    X(void *, DictGetC, (RedisModuleDict * dict, void *key, size_t length, int *missing))                              \
    X(int, DictDelC, (RedisModuleDict * dict, void *key, size_t length, void *old))                                    \
    X(RedisModuleDictIter *, DictIteratorStartC,                                                                       \
      (RedisModuleDict * dict, const char *operator, void * key, size_t length))                                       \
    X(void, DictIteratorStop, (RedisModuleDictIter * iterator))                                                        \
    X(void *, DictNextC, (RedisModuleDictIter * iterator, size_t * length, void **value))                              \
    /* blocked clients, timers, events */                                                                              \
    X(RedisModuleBlockedClient *, BlockClient,                                                                         \
      (Ctx_ *ctx, RedisModuleCmdFunc reply, RedisModuleCmdFunc timeout, RedisModuleFreeDataFunc free_data,             \
       long long timeout_ms))                                                                                          \
    X(int, UnblockClient, (RedisModuleBlockedClient * client, void *data))                                             \
    X(void *, GetBlockedClientPrivateData, (Ctx_ *ctx))                                                                \
    X(void, SetDisconnectCallback, (RedisModuleBlockedClient * client, RedisModuleDisconnectFunc callback))            \
    X(int, BlockedClientMeasureTimeStart, (RedisModuleBlockedClient * client))                                         \
    X(int, BlockedClientMeasureTimeEnd, (RedisModuleBlockedClient * client))                                           \
    X(Ctx_ *, GetDetachedThreadSafeContext, (Ctx_ *ctx))                                                               \
    X(RedisModuleTimerID, CreateTimer, (Ctx_ *ctx, long long period_ms, RedisModuleTimerProc callback, void *data))    \
    X(int, StopTimer, (Ctx_ *ctx, RedisModuleTimerID id, void **data))                                                 \
    X(int, EventLoopAdd, (int fd, int mask, RedisModuleEventLoopFunc callback, void *data))                            \
    X(int, EventLoopDel, (int fd, int mask))                                                                           \
    X(int, EventLoopAddOneShot, (RedisModuleEventLoopOneShotFunc callback, void *data))                                \
    X(int, SubscribeToServerEvent, (Ctx_ *ctx, RedisModuleEvent event, RedisModuleEventCallback callback))             \
    X(int, AvoidReplicaTraffic, (void))                                                                                \
    X(long long, Milliseconds, (void))                                                                                 \
    X(uint64_t, MonotonicMicroseconds, (void))                                                                         \
    X(void, GetRandomBytes, (unsigned char *destination, size_t length))                                               \
    /* users */                                                                                                        \
    X(RedisModuleUser *, CreateModuleUser, (const char *name))                                                         \
    X(int, FreeModuleUser, (RedisModuleUser * user))                                                                   \
    X(int, SetModuleUserACL, (RedisModuleUser * user, const char *acl))                                                \
    X(void, SetContextUser, (Ctx_ *ctx, const RedisModuleUser *user))                                                  \
    X(int, AuthenticateClientWithUser,                                                                                 \
      (Ctx_ *ctx, RedisModuleUser *user, RedisModuleUserChangedFunc callback, void *data, uint64_t *client_id))        \
    X(int, DeauthenticateAndCloseClient, (Ctx_ *ctx, uint64_t client_id))                                              \
    X(RedisModuleUser *, GetModuleUserFromUserName, (Str_ * name))                                                     \
    X(Str_ *, GetCurrentUserName, (Ctx_ *ctx))                                                                         \
    X(Str_ *, GetClientUserNameById, (Ctx_ *ctx, uint64_t client_id))                                                  \
    X(int, ACLCheckCommandPermissions, (RedisModuleUser * user, Str_ * *argv, int argc))                               \
    /* configuration, INFO, filters, cluster */                                                                        \
    X(int, RegisterStringConfig,                                                                                       \
      (Ctx_ *ctx, const char *name, const char *value, unsigned int flags, RedisModuleConfigGetStringFunc get,         \
       RedisModuleConfigSetStringFunc set, RedisModuleConfigApplyFunc apply, void *data))                              \
    X(int, RegisterNumericConfig,                                                                                      \
      (Ctx_ *ctx, const char *name, long long value, unsigned int flags, long long min, long long max,                 \
       RedisModuleConfigGetNumericFunc get, RedisModuleConfigSetNumericFunc set, RedisModuleConfigApplyFunc apply,     \
       void *data))                                                                                                    \
    X(int, LoadConfigs, (Ctx_ *ctx))                                                                                   \
    X(int, RegisterInfoFunc, (Ctx_ *ctx, RedisModuleInfoFunc callback))                                                \
    X(int, InfoAddSection, (RedisModuleInfoCtx * ctx, const char *name))                                               \
    X(int, InfoBeginDictField, (RedisModuleInfoCtx * ctx, const char *name))                                           \
    X(int, InfoEndDictField, (RedisModuleInfoCtx * ctx))                                                               \
    X(int, InfoAddFieldCString, (RedisModuleInfoCtx * ctx, const char *field, const char *value))                      \
    X(int, InfoAddFieldDouble, (RedisModuleInfoCtx * ctx, const char *field, double value))                            \
    X(int, InfoAddFieldLongLong, (RedisModuleInfoCtx * ctx, const char *field, long long value))                       \
    X(int, InfoAddFieldULongLong, (RedisModuleInfoCtx * ctx, const char *field, unsigned long long value))             \
    X(RedisModuleServerInfoData *, GetServerInfo, (Ctx_ *ctx, const char *section))                                    \
    X(void, FreeServerInfo, (Ctx_ *ctx, RedisModuleServerInfoData *data))                                              \
    X(const char *, ServerInfoGetFieldC, (RedisModuleServerInfoData * data, const char *field))                        \
    X(RedisModuleCommandFilter *, RegisterCommandFilter,                                                               \
      (Ctx_ *ctx, RedisModuleCommandFilterFunc callback, int flags))                                                   \
    X(int, CommandFilterArgsCount, (RedisModuleCommandFilterCtx * filter))                                             \
    X(const Str_ *, CommandFilterArgGet, (RedisModuleCommandFilterCtx * filter, int position))                         \
    X(int, CommandFilterArgInsert, (RedisModuleCommandFilterCtx * filter, int position, Str_ * argument))              \
    X(void, RegisterClusterMessageReceiver, (Ctx_ *ctx, uint8_t type, RedisModuleClusterMessageReceiver callback))     \
    X(int, SendClusterMessage, (Ctx_ *ctx, const char *target, uint8_t type, const char *payload, uint32_t length))    \
    X(int, GetClusterNodeInfo, (Ctx_ *ctx, const char *id, char *ip, char *master_id, int *port, int *flags))          \
    X(char **, GetClusterNodesList, (Ctx_ *ctx, size_t *count))                                                        \
    X(void, FreeClusterNodesList, (char **ids))                                                                        \
    X(const char *, GetMyClusterID, (void))                                                                            \

#define REDISMODULE_OPTIONAL_FUNCTIONS(X)                                                                              \
    X(Str_ *, GetClientNameById, (Ctx_ *ctx, uint64_t client_id))                                                      \
    X(int, SetCommandACLCategories, (RedisModuleCommand * command, const char *categories))                            \
    X(unsigned long long, CommandFilterGetClientId, (RedisModuleCommandFilterCtx * filter))                            \
    X(RedisModuleBlockedClient *, BlockClientOnKeysWithFlags,                                                          \
      (Ctx_ *ctx, RedisModuleCmdFunc reply, RedisModuleCmdFunc timeout, RedisModuleFreeDataFunc free_data,             \
       long long timeout_ms, Str_ **keys, int count, void *data, int flags))                                           \
    X(void, SignalKeyAsReady, (Ctx_ *ctx, Str_ *key))                                                                  \
    X(int, AddPostNotificationJob,                                                                                     \
      (Ctx_ *ctx, RedisModulePostNotificationJobFunc callback, void *data, void (*free_data)(void *)))
/* clang-format on */

#define REDISMODULE_DECLARE(returns, name, arguments) extern returns(*RedisModule_##name) arguments;
REDISMODULE_REQUIRED_FUNCTIONS(REDISMODULE_DECLARE)
REDISMODULE_OPTIONAL_FUNCTIONS(REDISMODULE_DECLARE)
#undef REDISMODULE_DECLARE

/* Finds all functions. Returns NULL, or the name of a required function that is missing in the server. */
const char *module_api_load(RedisModuleCtx *ctx);
