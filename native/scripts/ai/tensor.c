/* Tensor values: shapes, blobs, and the parsing and printing of elements. A function checks all its input before it
 * returns a new tensor, so every existing tensor is valid. */
#include "scripts/ai/tensor.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor blobs are little-endian, and this machine is big-endian: it is not supported"
#endif

#define STRINGIFY_(x) #x
#define STRINGIFY(x) STRINGIFY_(x)

static const char ERR_SHAPE[] = "ERR invalid or negative value found in tensor shape";
static const char ERR_NDIM[] = "ERR tensor has more dimensions than the limit of " STRINGIFY(TENSOR_MAX_NDIM);
static const char ERR_SIZE[] = "ERR tensor is larger than the limit of 1073741824 bytes";
static const char ERR_MEMORY[] = "OOM not enough memory for the tensor";
static const char ERR_LENGTH[] = "ERR data length does not match tensor shape and type";
static const char ERR_VALUE[] = "ERR invalid value";
static const char ERR_BOOL[] = "ERR BOOL tensor elements must be 0 or 1";
static const char ERR_STRINGS[] = "ERR Number of string elements in data blob does not match tensor length";
static const char ERR_NUL[] = "ERR C-string value contains null character";
static const char ERR_COUNT[] = "ERR wrong number of values was given in 'AI.TENSORSET' command";

_Static_assert(TENSOR_MAX_BYTES == 1073741824LL, "ERR_SIZE names the limit");

typedef struct TypeInfo {
    const char *name;
    size_t size; /* bytes of an element; STRING: the minimum, 1 for the NUL */
    long long min, max;
} TypeInfo;

static const TypeInfo TYPES[] = {
    [TENSOR_FLOAT] = {"FLOAT", 4, 0, 0},
    [TENSOR_DOUBLE] = {"DOUBLE", 8, 0, 0},
    [TENSOR_INT8] = {"INT8", 1, INT8_MIN, INT8_MAX},
    [TENSOR_INT16] = {"INT16", 2, INT16_MIN, INT16_MAX},
    [TENSOR_INT32] = {"INT32", 4, INT32_MIN, INT32_MAX},
    [TENSOR_INT64] = {"INT64", 8, INT64_MIN, INT64_MAX},
    [TENSOR_UINT8] = {"UINT8", 1, 0, UINT8_MAX},
    [TENSOR_UINT16] = {"UINT16", 2, 0, UINT16_MAX},
    [TENSOR_BOOL] = {"BOOL", 1, 0, 1},
    [TENSOR_STRING] = {"STRING", 1, 0, 0},
};

const char *tensor_type_name(TensorType type) { return TYPES[type].name; }

/* ---- Shapes ---- */

const char *tensor_shape_parse(TensorShape *shape, RedisModuleString *type, RedisModuleString **dims, int ndim) {
    size_t length;
    const char *name = RedisModule_StringPtrLen(type, &length);
    shape->type = 0;
    for (TensorType candidate = TENSOR_FLOAT; candidate <= TENSOR_STRING; candidate++)
        if (strlen(TYPES[candidate].name) == length && !strncasecmp(TYPES[candidate].name, name, length))
            shape->type = candidate;
    if (!shape->type) return "ERR invalid data type";
    if (ndim > TENSOR_MAX_NDIM) return ERR_NDIM;
    shape->ndim = ndim;
    shape->count = 1;
    for (int i = 0; i < ndim; i++) {
        long long dim;
        if (RedisModule_StringToLongLong(dims[i], &dim) != REDISMODULE_OK || dim <= 0) return ERR_SHAPE;
        if (__builtin_mul_overflow(shape->count, dim, &shape->count)) return ERR_SIZE;
        shape->dims[i] = dim;
    }
    if (shape->count > TENSOR_MAX_BYTES / (long long)TYPES[shape->type].size) return ERR_SIZE;
    return NULL;
}

long long tensor_shape_bytes(const TensorShape *shape) { return shape->count * (long long)TYPES[shape->type].size; }

/* 1: the last string has no NUL at its end. This is allowed in the data of a client. */
static int lacks_end(TensorType type, const char *data, size_t size) {
    return type == TENSOR_STRING && size && data[size - 1] != '\0';
}

static const char *check_strings(const TensorShape *shape, const char *data, size_t size) {
    long long strings = lacks_end(shape->type, data, size);
    for (const char *at = data, *end = data + size; at < end; at++) {
        at = memchr(at, '\0', (size_t)(end - at));
        if (!at) break;
        strings++;
    }
    return strings == shape->count ? NULL : ERR_STRINGS;
}

static const char *check_blob(const TensorShape *shape, const char *data, size_t size) {
    if (size > (size_t)TENSOR_MAX_BYTES) return ERR_SIZE;
    if (shape->type == TENSOR_STRING) return check_strings(shape, data, size);
    if (size != (size_t)shape->count * TYPES[shape->type].size) return ERR_LENGTH;
    if (shape->type == TENSOR_BOOL)
        for (size_t i = 0; i < size; i++)
            if ((unsigned char)data[i] > 1) return ERR_BOOL;
    return NULL;
}

/* ---- Construction ---- */

static Tensor *tensor_new(const TensorShape *shape, size_t size) {
    size_t dims = (size_t)shape->ndim * sizeof(long long);
    Tensor *tensor = RedisModule_TryAlloc(sizeof *tensor + dims + size);
    if (!tensor) return NULL;
    atomic_init(&tensor->refs, 1);
    tensor->type = (unsigned char)shape->type;
    tensor->ndim = (unsigned char)shape->ndim;
    tensor->size = size;
    memcpy(tensor->dims, shape->dims, dims);
    return tensor;
}

char *tensor_data(const Tensor *tensor) { return (char *)(tensor->dims + tensor->ndim); }

const char *tensor_zeros(const TensorShape *shape, Tensor **tensor) {
    size_t size = (size_t)shape->count * TYPES[shape->type].size; /* a STRING tensor gets empty strings */
    *tensor = tensor_new(shape, size);
    if (!*tensor) return ERR_MEMORY;
    memset(tensor_data(*tensor), 0, size);
    return NULL;
}

const char *tensor_from_blob(const TensorShape *shape, const char *data, size_t size, Tensor **tensor) {
    const char *error = check_blob(shape, data, size);
    if (error) return error;
    int added = lacks_end(shape->type, data, size);
    *tensor = tensor_new(shape, size + (size_t)added);
    if (!*tensor) return ERR_MEMORY;
    memcpy(tensor_data(*tensor), data, size);
    if (added) tensor_data(*tensor)[size] = '\0';
    return NULL;
}

static const char *parse_real(RedisModuleString *text, double *value) {
    size_t length;
    const char *start = RedisModule_StringPtrLen(text, &length);
    char *end;
    /* without this check, strtod would accept leading blanks and hexadecimal numbers */
    if (length == 0 || strlen(start) != length || strcspn(start, " \t\n\v\f\rxX") != length) return ERR_VALUE;
    errno = 0;
    *value = strtod(start, &end);
    if (end != start + length || (errno == ERANGE && fabs(*value) > 1)) return ERR_VALUE;
    return NULL;
}

static const char *parse_float(char *to, TensorType type, RedisModuleString *text) {
    double value;
    const char *error = parse_real(text, &value);
    if (error) return error;
    if (type == TENSOR_DOUBLE) {
        memcpy(to, &value, sizeof value);
        return NULL;
    }
    /* strtof rounds once; a cast of the double would round twice. A number that rounds to infinity is out of range. */
    float narrow = strtof(RedisModule_StringPtrLen(text, NULL), NULL);
    if (isinf(narrow) && !isinf(value)) return ERR_VALUE;
    memcpy(to, &narrow, sizeof narrow);
    return NULL;
}

static const char *parse_integer(char *to, TensorType type, RedisModuleString *text) {
    long long value;
    if (RedisModule_StringToLongLong(text, &value) != REDISMODULE_OK) return ERR_VALUE;
    if (value < TYPES[type].min || value > TYPES[type].max) return ERR_VALUE;
    memcpy(to, &value, TYPES[type].size); /* the first bytes of a little-endian number are its low bytes */
    return NULL;
}

/* Returns the length of a string, without a NUL at its end. -1: there is a NUL before the end. */
static long long string_length(const char *text, size_t length) {
    if (length && text[length - 1] == '\0') length--;
    return memchr(text, '\0', length) ? -1 : (long long)length;
}

static const char *tensor_from_strings(const TensorShape *shape, RedisModuleString **values, int n, Tensor **tensor) {
    size_t size = 0, length;
    for (int i = 0; i < n; i++) {
        const char *text = RedisModule_StringPtrLen(values[i], &length);
        long long own = string_length(text, length);
        if (own < 0) return ERR_NUL;
        size += (size_t)own + 1; /* no overflow: all bytes are in memory */
    }
    if (size > (size_t)TENSOR_MAX_BYTES) return ERR_SIZE;
    *tensor = tensor_new(shape, size);
    if (!*tensor) return ERR_MEMORY;
    char *to = tensor_data(*tensor);
    for (int i = 0; i < n; i++) {
        const char *text = RedisModule_StringPtrLen(values[i], &length);
        size_t own = (size_t)string_length(text, length);
        memcpy(to, text, own);
        to[own] = '\0';
        to += own + 1;
    }
    return NULL;
}

const char *tensor_from_values(const TensorShape *shape, RedisModuleString **values, int n, Tensor **tensor) {
    if (n != shape->count) return ERR_COUNT;
    if (shape->type == TENSOR_STRING) return tensor_from_strings(shape, values, n, tensor);
    size_t step = TYPES[shape->type].size;
    int real = shape->type == TENSOR_FLOAT || shape->type == TENSOR_DOUBLE;
    Tensor *made = tensor_new(shape, (size_t)n * step);
    if (!made) return ERR_MEMORY;
    for (int i = 0; i < n; i++) {
        char *to = tensor_data(made) + (size_t)i * step;
        const char *error = real ? parse_float(to, shape->type, values[i]) : parse_integer(to, shape->type, values[i]);
        if (error) {
            tensor_release(made);
            return error;
        }
    }
    *tensor = made;
    return NULL;
}

Tensor *tensor_retain(Tensor *tensor) {
    atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
    return tensor;
}

void tensor_release(Tensor *tensor) {
    if (atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel) != 1) return;
    RedisModule_Free(tensor);
}

/* ---- Replies ---- */

/* Writes the shortest text that parses to the same number. */
static void shortest(char *text, size_t size, double value) {
    for (int digits = DBL_DIG; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

/* Replies with a number of a FLOAT or DOUBLE tensor. Like RedisAI, replies with a FLOAT as the double of the same
 * value. `resp3` 1: the client uses RESP3. */
static void reply_real(RedisModuleCtx *ctx, double value, int resp3) {
    char text[40];
    shortest(text, sizeof text, value);
    /* In RESP2 the server prints all doubles with 17 digits. RESP3 clients need the type. */
    if (resp3) RedisModule_ReplyWithDouble(ctx, value);
    else RedisModule_ReplyWithCString(ctx, text);
}

static long long integer_at(const char *at, TensorType type) {
    int16_t i16;
    int32_t i32;
    int64_t i64;
    uint16_t u16;
    switch (type) {
    case TENSOR_INT8: return *(const signed char *)at;
    case TENSOR_INT16: memcpy(&i16, at, sizeof i16); return i16;
    case TENSOR_INT32: memcpy(&i32, at, sizeof i32); return i32;
    case TENSOR_INT64: memcpy(&i64, at, sizeof i64); return i64;
    case TENSOR_UINT16: memcpy(&u16, at, sizeof u16); return u16;
    default: return *(const unsigned char *)at;
    }
}

/* Replies with the element at `at`, and returns the size of the element in bytes. `resp3` 1: the client uses RESP3. */
static size_t reply_element(RedisModuleCtx *ctx, TensorType type, const char *at, int resp3) {
    float narrow;
    double wide;
    size_t length;
    switch (type) {
    case TENSOR_STRING:
        length = strlen(at);
        RedisModule_ReplyWithStringBuffer(ctx, at, length);
        return length + 1;
    case TENSOR_FLOAT:
        memcpy(&narrow, at, sizeof narrow);
        reply_real(ctx, narrow, resp3);
        break;
    case TENSOR_DOUBLE:
        memcpy(&wide, at, sizeof wide);
        reply_real(ctx, wide, resp3);
        break;
    default: RedisModule_ReplyWithLongLong(ctx, integer_at(at, type)); break;
    }
    return TYPES[type].size;
}

void tensor_reply_values(RedisModuleCtx *ctx, const Tensor *tensor) {
    int resp3 = (RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_RESP3) != 0;
    const char *at = tensor_data(tensor);
    long long count = 1;
    for (int i = 0; i < tensor->ndim; i++) count *= tensor->dims[i];
    RedisModule_ReplyWithArray(ctx, (long)count);
    for (long long i = 0; i < count; i++) at += reply_element(ctx, (TensorType)tensor->type, at, resp3);
}

int tensor_read(RedisModuleString **argv, int argc, Tensor **tensor) {
    TensorShape shape;
    long long ndim;
    if (argc < 3 || RedisModule_StringToLongLong(argv[1], &ndim) != REDISMODULE_OK) return 0;
    if (ndim < 0 || ndim > TENSOR_MAX_NDIM || argc < ndim + 3) return 0;
    if (tensor_shape_parse(&shape, argv[0], argv + 2, (int)ndim)) return 0;
    size_t size;
    const char *blob = RedisModule_StringPtrLen(argv[ndim + 2], &size);
    return tensor_from_blob(&shape, blob, size, tensor) ? 0 : (int)ndim + 3;
}

long long tensor_samples(const Tensor *tensor) { return tensor->ndim ? tensor->dims[0] : 1; }

int tensor_emit(RedisModuleCtx *ctx, const Tensor *tensor) {
    RedisModule_ReplyWithCString(ctx, tensor_type_name((TensorType)tensor->type));
    RedisModule_ReplyWithLongLong(ctx, tensor->ndim);
    for (int i = 0; i < tensor->ndim; i++) RedisModule_ReplyWithLongLong(ctx, tensor->dims[i]);
    RedisModule_ReplyWithStringBuffer(ctx, tensor_data(tensor), tensor->size);
    return tensor->ndim + 3;
}
