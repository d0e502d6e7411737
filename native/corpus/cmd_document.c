/* Commands that write documents and cached answers with the rights of the module. docs/design/writing-documents.md
 * describes their arguments and replies.
 *
 * Some keys that a command writes are internal: the index of the document, the pending documents of its partition, and
 * the lists of cached answers. Users need no rights to write these keys. A command names only the key of the document's
 * text, or of the answers, or (QA.DELCOLLECTION) of the list of collections. The server checks whether the caller may
 * read and write this key. The module derives all other keys from the name of this key. So the module checks the form
 * of the name. Without this check, a right to write texts of one collection could give access to keys of another
 * collection. */
#include "corpus/cmd_document.h"

#include <stdio.h>
#include <string.h>

#include "corpus/document_argument.h"
#include "corpus/own_scripts.h"
#include "corpus/text_key.h"
#include "index/index.h"
#include "server/blake2b.h"
#include "server/commands.h"
#include "server/config.h"

enum { DOCUMENT_KEYS = 10, MAX_ARGS = 16 };

static const char NOT_A_TEXT[] = "ERR the key must be paragraphs:<document>:{tag} or "
                                 "paragraphs:<collection>%/<document>:{tag}";
static const char NOT_AN_ANSWER[] = "ERR the key must be answer:{tag}:<name> or answer:<collection>:{tag}:<name>";

/* Frees all keys except the first. The first key is an argument of the command, so the server frees it. */
static void free_keys(RedisModuleString **keys, size_t n) {
    for (size_t i = 1; i < n; i++) RedisModule_FreeString(NULL, keys[i]);
}

static RedisModuleString *partition_key(const char *kind, const TextKey *text) {
    return text_key_joined(kind, NULL, 0, text->tag, text->tag_length);
}

/* Returns a key of the document's collection in the partition: `<kind><collection>:{tag}`, or `<kind>{tag}` for the
 * default collection. */
static RedisModuleString *collection_key(const char *kind, const TextKey *text) {
    if (!text->collection_length) return partition_key(kind, text);
    RedisModuleString *made = text_key_joined(kind, text->name, text->collection_length, ":", 1);
    RedisModule_StringAppendBuffer(NULL, made, text->tag, text->tag_length);
    return made;
}

static RedisModuleString *document_key(const char *kind, const TextKey *text) {
    return text_key_joined(kind, text->name, text->name_length, text->tag - 1, text->tag_length + 1);
}

/* Fills `keys` with the DOCUMENT_KEYS keys of the document, in the order of `document_keys` in
 * qa_cluster/documents/stored.py. The first key is `text`, the argument of the command. */
static void make_keys(RedisModuleString *text, const TextKey *parsed, RedisModuleString **keys) {
    static const char *const OF_DOCUMENT[] = {"document:", "places:", "tokens:", "sentence:", "answers:"};
    size_t n = 0;
    keys[n++] = text;
    for (size_t i = 0; i < sizeof OF_DOCUMENT / sizeof *OF_DOCUMENT; i++)
        keys[n++] = document_key(OF_DOCUMENT[i], parsed);
    keys[n++] = collection_key("index:", parsed);
    keys[n++] = partition_key("pending:", parsed);
    keys[n++] = collection_key("epoch:", parsed);
    keys[n++] = partition_key("flight:", parsed);
}

/* Runs a script for a document. The arguments of the script are `mode`, the arguments of the command after its key, and
 * `last`. `mode` and `last` may be NULL. */
static int run_for_document(RedisModuleCtx *ctx, OwnScript script, const char *mode, RedisModuleString **argv, int argc,
                            const char *last) {
    TextKey parsed;
    if (!text_key_parse(argv[1], &parsed)) return RedisModule_ReplyWithError(ctx, NOT_A_TEXT);
    RedisModuleString *keys[DOCUMENT_KEYS], *args[MAX_ARGS];
    make_keys(argv[1], &parsed, keys);
    size_t n = 0;
    if (mode) args[n++] = RedisModule_CreateString(NULL, mode, strlen(mode));
    for (int i = 2; i < argc; i++) args[n++] = argv[i];
    if (last) args[n++] = RedisModule_CreateString(NULL, last, strlen(last));
    own_script_run(ctx, script, keys, DOCUMENT_KEYS, args, n);
    if (last) RedisModule_FreeString(NULL, args[n - 1]);
    if (mode) RedisModule_FreeString(NULL, args[0]);
    free_keys(keys, DOCUMENT_KEYS);
    return REDISMODULE_OK;
}

/* ---- QA.PUTDOCUMENT ---- */

/* The limits of qa_cluster/documents/stored.py. The module must check the limits, too, because a caller may use a
 * client that is not qa-cluster's. The worker indexes the documents of all collections. One document that the worker
 * cannot read would stop the indexing of all documents. */
enum { VERSION_LENGTH = 16, MAX_LENGTH_DIGITS = 7, MAX_ERROR = 112 };

typedef struct Limit {
    const char *name;
    int place;   /* the position of the argument in the command */
    size_t most; /* bytes */
} Limit;

static const Limit LIMITS[] = {
    {"id", 3, 512}, {"title", 4, 4096}, {"metadata", 5, 64 * 1024}, {"text", 8, 20000000}, {"source", 9, 4096}};

/* True: the id matches the name in the key. In the key, the name may start with a collection, and the characters `%`,
 * `{` and `}` of the id are encoded (text_key.h). */
static bool is_id_of(RedisModuleString *id, const TextKey *key) {
    size_t length, at = 0;
    const char *text = RedisModule_StringPtrLen(id, &length);
    size_t start = key->collection_length ? key->collection_length + 2 : 0;
    for (size_t i = start; i < key->name_length; i++, at++) {
        char c = key->name[i];
        if (c == '%') {
            c = key->name[i + 1] == '2' ? '%' : key->name[i + 2] == 'B' ? '{' : '}';
            i += 2;
        }
        if (at == length || text[at] != c) return false;
    }
    return at == length;
}

static bool consists_of(RedisModuleString *string, size_t least, size_t most, const char *characters) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(string, &length);
    if (length < least || length > most) return false;
    for (size_t i = 0; i < length; i++)
        if (!text[i] || !strchr(characters, text[i])) return false;
    return true;
}

static const char NOT_METADATA[] =
    "ERR the metadata must be a JSON object, nested at most 32 deep, with finite numbers "
    "and integers of 64 bits";

static bool is_metadata(RedisModuleString *metadata) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(metadata, &length);
    return document_metadata_valid(text, length);
}

static const char *check_text(const Limit *limit, RedisModuleString *string, char *error) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(string, &length);
    if (length > limit->most)
        snprintf(error, MAX_ERROR, "ERR the %s has %zu bytes, the limit is %zu", limit->name, length, limit->most);
    /* The worker checks whether the text is UTF-8, because a client may also write a text with SET. */
    else if (strcmp(limit->name, "text") != 0 && !text_is_utf8(text, length))
        snprintf(error, MAX_ERROR, "ERR the %s is not valid UTF-8", limit->name);
    else return NULL;
    return error;
}

/* Checks the arguments of QA.PUTDOCUMENT. Returns NULL or an error line. */
static const char *check_put(RedisModuleString **argv, char *error) {
    TextKey key;
    if (!text_key_parse(argv[1], &key)) return NOT_A_TEXT;
    if (!is_id_of(argv[3], &key)) return "ERR the id must match the name in the key";
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++) {
        const char *fault = check_text(&LIMITS[i], argv[LIMITS[i].place], error);
        if (fault) return fault;
    }
    if (!is_metadata(argv[5])) return NOT_METADATA;
    if (!consists_of(argv[6], VERSION_LENGTH, VERSION_LENGTH, "0123456789abcdef"))
        return "ERR the version must be 16 hexadecimal digits";
    if (!consists_of(argv[7], 1, MAX_LENGTH_DIGITS, "0123456789"))
        return "ERR the length must be a number of code points";
    return NULL;
}

/* QA.PUTDOCUMENT key condition id title metadata version length text source */
static int QA_PUTDOCUMENT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 10) return RedisModule_WrongArity(ctx);
    char error[MAX_ERROR];
    const char *fault = check_put(argv, error);
    if (fault) return RedisModule_ReplyWithError(ctx, fault);
    return run_for_document(ctx, SCRIPT_PUT_DOCUMENT, "put", argv, argc, NULL);
}

/* ---- QA.DELDOCUMENT ---- */

/* QA.DELDOCUMENT key condition */
static int QA_DELDOCUMENT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 3) return RedisModule_WrongArity(ctx);
    return run_for_document(ctx, SCRIPT_DELETE_DOCUMENT, "delete", argv, argc, "*");
}

/* ---- QA.SETMETADATA ---- */

enum { VERSION_BYTES = VERSION_LENGTH / 2 };

static void add_part(Blake2b *hash, const char *text, size_t length) {
    char head[32];
    blake2b_add(hash, head, (size_t)snprintf(head, sizeof head, "%zu:", length));
    blake2b_add(hash, text, length);
}

/* Computes the version like `document_version` in qa_cluster/documents/stored.py. */
static RedisModuleString *version_of(RedisModuleString *title, RedisModuleString *metadata, const char *text,
                                     size_t text_length) {
    Blake2b hash;
    uint8_t digest[VERSION_BYTES];
    char hex[VERSION_LENGTH + 1];
    size_t length;
    blake2b_begin(&hash, sizeof digest, NULL, 0);
    const char *part = RedisModule_StringPtrLen(title, &length);
    add_part(&hash, part, length);
    part = RedisModule_StringPtrLen(metadata, &length);
    add_part(&hash, part, length);
    add_part(&hash, text, text_length);
    blake2b_end(&hash, digest);
    for (size_t i = 0; i < sizeof digest; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return RedisModule_CreateString(NULL, hex, VERSION_LENGTH);
}

/* Computes two versions of the document: versions[0] with the stored metadata, and versions[1] with the new metadata. A
 * version is a hash of title, metadata and text. Title and stored metadata are fields of the document's record, the
 * hash `document:..`. If the record or the text is missing, both versions are empty strings. */
static void find_versions(RedisModuleCtx *ctx, RedisModuleString *text_name, const TextKey *parsed,
                          RedisModuleString *metadata, RedisModuleString **versions) {
    RedisModuleString *name = document_key("document:", parsed);
    RedisModuleKey *record = RedisModule_OpenKey(ctx, name, REDISMODULE_READ);
    RedisModuleKey *text = RedisModule_OpenKey(ctx, text_name, REDISMODULE_READ);
    RedisModuleString *title = NULL, *before = NULL;
    if (record && text && RedisModule_KeyType(record) == REDISMODULE_KEYTYPE_HASH &&
        RedisModule_KeyType(text) == REDISMODULE_KEYTYPE_STRING)
        RedisModule_HashGet(record, REDISMODULE_HASH_CFIELDS, "title", &title, "metadata", &before, NULL);
    if (title && before) {
        size_t length;
        const char *bytes = RedisModule_StringDMA(text, &length, REDISMODULE_READ);
        versions[0] = version_of(title, before, bytes, length);
        versions[1] = version_of(title, metadata, bytes, length);
    } else {
        for (int i = 0; i < 2; i++) versions[i] = RedisModule_CreateString(NULL, "", 0);
    }
    if (title) RedisModule_FreeString(NULL, title);
    if (before) RedisModule_FreeString(NULL, before);
    if (record) RedisModule_CloseKey(record);
    if (text) RedisModule_CloseKey(text);
    RedisModule_FreeString(NULL, name);
}

/* Checks the metadata and the fields of QA.SETMETADATA. Returns NULL or an error line. */
static const char *check_metadata(RedisModuleString *metadata, RedisModuleString *fields, char *error) {
    size_t length;
    const char *fault = check_text(&LIMITS[2], metadata, error);
    if (fault) return fault;
    if (!is_metadata(metadata)) return NOT_METADATA;
    const char *packed = RedisModule_StringPtrLen(fields, &length);
    return index_fields_valid(packed, length) ? NULL : "ERR the fields are not valid";
}

/* QA.SETMETADATA key condition metadata fields */
static int QA_SETMETADATA_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 5) return RedisModule_WrongArity(ctx);
    char error[MAX_ERROR];
    TextKey parsed;
    if (!text_key_parse(argv[1], &parsed)) return RedisModule_ReplyWithError(ctx, NOT_A_TEXT);
    const char *fault = check_metadata(argv[3], argv[4], error);
    if (fault) return RedisModule_ReplyWithError(ctx, fault);
    RedisModuleString *words[] = {argv[0], argv[1], argv[2], argv[3], argv[4], NULL, NULL};
    find_versions(ctx, argv[1], &parsed, argv[3], words + 5);
    int status = run_for_document(ctx, SCRIPT_SET_METADATA, "set", words, sizeof words / sizeof *words, NULL);
    RedisModule_FreeString(NULL, words[5]);
    RedisModule_FreeString(NULL, words[6]);
    return status;
}

/* ---- QA.EMBEDDOCUMENT ---- */

/* QA.EMBEDDOCUMENT key version splitter digest dims done total passages. The script calls QA.INDEX.EMBED, which checks
 * the last five arguments. */
static int QA_EMBEDDOCUMENT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 9) return RedisModule_WrongArity(ctx);
    return run_for_document(ctx, SCRIPT_EMBED_DOCUMENT, NULL, argv, argc, NULL);
}

/* ---- Answers ---- */

/* Finds the `{tag}` in `answer:{tag}:<name>` or `answer:<collection>:{tag}:<name>`. Sets *tag to the opening brace, and
 * *tag_length to the length with both braces. False: the key has a different form. */
static bool find_answer_tag(RedisModuleString *key, const char **tag, size_t *tag_length) {
    static const char PREFIX[] = "answer:";
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (length <= sizeof PREFIX - 1 || memcmp(text, PREFIX, sizeof PREFIX - 1) != 0) return false;
    const char *opening = memchr(text, '{', length);
    const char *closing = opening ? memchr(opening, '}', length - (size_t)(opening - text)) : NULL;
    if (!closing || closing == opening + 1 || opening[-1] != ':' || closing + 2 >= text + length || closing[1] != ':')
        return false;
    *tag = opening;
    *tag_length = (size_t)(closing + 1 - opening);
    return true;
}

static bool is_same_tag(RedisModuleString *key, const char *tag, size_t tag_length) {
    const char *other;
    size_t length;
    return find_answer_tag(key, &other, &length) && length == tag_length && memcmp(other, tag, length) == 0;
}

enum { MAX_ANSWER_SECONDS = 1 << 30 };

/* QA.PUTANSWER key value seconds */
static int QA_PUTANSWER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 4) return RedisModule_WrongArity(ctx);
    const char *tag;
    size_t length, size;
    long long seconds;
    char error[MAX_ERROR];
    if (!find_answer_tag(argv[1], &tag, &length)) return RedisModule_ReplyWithError(ctx, NOT_AN_ANSWER);
    RedisModule_StringPtrLen(argv[2], &size);
    if (size > (unsigned long long)config.whole_answers_bytes) {
        snprintf(error, sizeof error, "ERR the answer has %zu bytes, the limit is %lld (qa.whole-answers-bytes)", size,
                 config.whole_answers_bytes);
        return RedisModule_ReplyWithError(ctx, error);
    }
    if (RedisModule_StringToLongLong(argv[3], &seconds) != REDISMODULE_OK || seconds < 1 ||
        seconds > MAX_ANSWER_SECONDS) {
        snprintf(error, sizeof error, "ERR the seconds must be an integer from 1 to %d", MAX_ANSWER_SECONDS);
        return RedisModule_ReplyWithError(ctx, error);
    }
    RedisModuleString *keys[] = {argv[1], text_key_joined("kept-whole:", NULL, 0, tag, length),
                                 text_key_joined("kept-whole-bytes:", NULL, 0, tag, length),
                                 text_key_joined("flight:", NULL, 0, tag, length)};
    RedisModuleString *limit = RedisModule_CreateStringPrintf(NULL, "%lld", config.whole_answers_bytes);
    RedisModuleString *args[] = {argv[2], argv[3], limit};
    own_script_run(ctx, SCRIPT_STORE_WHOLE_ANSWER, keys, 4, args, 3);
    RedisModule_FreeString(NULL, limit);
    free_keys(keys, 4);
    return REDISMODULE_OK;
}

/* QA.DELANSWER key+ */
static int QA_DELANSWER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    const char *tag;
    size_t length;
    if (!find_answer_tag(argv[1], &tag, &length)) return RedisModule_ReplyWithError(ctx, NOT_AN_ANSWER);
    for (int i = 2; i < argc; i++)
        if (!is_same_tag(argv[i], tag, length)) return RedisModule_ReplyWithError(ctx, NOT_AN_ANSWER);
    size_t n = 0;
    RedisModuleString **keys = RedisModule_Alloc(((size_t)argc + 2) * sizeof *keys);
    keys[n++] = text_key_joined("kept:", NULL, 0, tag, length);
    keys[n++] = text_key_joined("kept-bytes:", NULL, 0, tag, length);
    keys[n++] = text_key_joined("flight:", NULL, 0, tag, length);
    for (int i = 1; i < argc; i++) keys[n++] = argv[i];
    own_script_run(ctx, SCRIPT_DROP_ANSWERS, keys, n, NULL, 0);
    for (size_t i = 0; i < 3; i++) RedisModule_FreeString(NULL, keys[i]);
    RedisModule_Free(keys);
    return REDISMODULE_OK;
}

/* ---- QA.DELCOLLECTION ---- */

/* QA.DELCOLLECTION collections:{tag} name */
static int QA_DELCOLLECTION_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    static const char PREFIX[] = "collections:";
    enum { PREFIX_LENGTH = sizeof PREFIX - 1 };
    if (argc != 3) return RedisModule_WrongArity(ctx);
    size_t length, name_length;
    const char *key = RedisModule_StringPtrLen(argv[1], &length);
    const char *name = RedisModule_StringPtrLen(argv[2], &name_length);
    const char *tag = key + PREFIX_LENGTH;
    if (length < PREFIX_LENGTH + 3 || memcmp(key, PREFIX, PREFIX_LENGTH) != 0 || *tag != '{' ||
        memchr(tag, '}', length - PREFIX_LENGTH) != key + length - 1)
        return RedisModule_ReplyWithError(ctx, "ERR the key must be collections:{tag}");
    if (!text_is_collection(name, name_length))
        return RedisModule_ReplyWithError(
            ctx, "ERR the name must be a valid collection name and not the default collection");
    TextKey parsed = {.name = name, .collection_length = name_length, .tag = tag, .tag_length = length - PREFIX_LENGTH};
    RedisModuleString *keys[] = {argv[1], collection_key("index:", &parsed), collection_key("epoch:", &parsed),
                                 partition_key("flight:", &parsed)};
    own_script_run(ctx, SCRIPT_FORGET_COLLECTION, keys, 4, argv + 2, 1);
    free_keys(keys, 4);
    return REDISMODULE_OK;
}

int document_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"QA.PUTDOCUMENT", QA_PUTDOCUMENT_RedisCommand, "write deny-oom deny-script", 1, 1, 1, NULL},
        {"QA.DELDOCUMENT", QA_DELDOCUMENT_RedisCommand, "write deny-script", 1, 1, 1, NULL},
        {"QA.SETMETADATA", QA_SETMETADATA_RedisCommand, "write deny-oom deny-script", 1, 1, 1, NULL},
        {"QA.EMBEDDOCUMENT", QA_EMBEDDOCUMENT_RedisCommand, "write deny-oom deny-script", 1, 1, 1, NULL},
        {"QA.PUTANSWER", QA_PUTANSWER_RedisCommand, "write deny-oom deny-script", 1, 1, 1, NULL},
        {"QA.DELCOLLECTION", QA_DELCOLLECTION_RedisCommand, "write deny-script", 1, 1, 1, NULL},
        {"QA.DELANSWER", QA_DELANSWER_RedisCommand, "write deny-script", 1, -1, 1, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}
