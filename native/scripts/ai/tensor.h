/* Tensors: the values of the AI_TENSOR data type, and the inputs and outputs of models.
 *
 * A tensor never changes. So a key, its copies and the jobs that read it share one buffer with a reference count. The
 * count is atomic, because the server may free values on a background thread. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

#include "server/module_api.h"

#define TENSOR_MAX_NDIM 32
#define TENSOR_MAX_BYTES (1LL << 30) /* also the limit for the number of elements */

/* The numbers are stored in RDB files: never renumber. */
typedef enum {
    TENSOR_FLOAT = 1,
    TENSOR_DOUBLE = 2,
    TENSOR_INT8 = 3,
    TENSOR_INT16 = 4,
    TENSOR_INT32 = 5,
    TENSOR_INT64 = 6,
    TENSOR_UINT8 = 7,
    TENSOR_UINT16 = 8,
    TENSOR_BOOL = 9,
    TENSOR_STRING = 10,
} TensorType;

typedef struct TensorShape {
    TensorType type;
    int ndim; /* 0: a scalar */
    long long dims[TENSOR_MAX_NDIM];
    long long count; /* number of elements: the product of dims */
} TensorShape;

/* The structure and its data are one allocation, to save memory: a data set may have a tensor for each sentence. */
typedef struct Tensor {
    atomic_uint refs;
    unsigned char type; /* TensorType */
    unsigned char ndim;
    size_t size;      /* bytes of data */
    long long dims[]; /* ndim numbers, then the data */
} Tensor;

/* The functions of the type `const char *`, except tensor_type_name, return NULL or a static error line. */
const char *tensor_shape_parse(TensorShape *shape, RedisModuleString *type, RedisModuleString **dims, int ndim);

const char *tensor_zeros(const TensorShape *shape, Tensor **tensor);
const char *tensor_from_blob(const TensorShape *shape, const char *data, size_t size, Tensor **tensor);
const char *tensor_from_values(const TensorShape *shape, RedisModuleString **values, int n, Tensor **tensor);
Tensor *tensor_retain(Tensor *tensor);
void tensor_release(Tensor *tensor);
/* Returns the minimum size of the data of a tensor of this shape, in bytes. The size is exact except for strings. */
long long tensor_shape_bytes(const TensorShape *shape);

/* Returns the data: packed and little-endian. STRING: each element ends with a NUL. */
char *tensor_data(const Tensor *tensor);
const char *tensor_type_name(TensorType type);
/* Replies with the elements as one array. */
void tensor_reply_values(RedisModuleCtx *ctx, const Tensor *tensor);
/* Replies with dtype, ndim, dims and blob as separate elements, and returns their number. */
int tensor_emit(RedisModuleCtx *ctx, const Tensor *tensor);

/* Reads dtype ndim dim.. blob in the worker's format. Returns the number of arguments read. 0: the arguments are
 * invalid. */
int tensor_read(RedisModuleString **argv, int argc, Tensor **tensor);
/* Returns the number of samples for AI.INFO: the first dimension. A scalar is one sample. */
long long tensor_samples(const Tensor *tensor);
