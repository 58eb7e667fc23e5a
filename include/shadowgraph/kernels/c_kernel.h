/* What a kernel in a shared library of one's own looks like, in C (shadowgraph/kernels/kernel.h):
 *
 *     int my_gelu(const struct shadowgraph_tensor* inputs, int32_t input_count,
 *                 const struct shadowgraph_tensor* outputs, int32_t output_count,
 *                 const double* numbers, int32_t number_count);
 *
 * `inputs` are the operator's tensor arguments, by its schema; one that is not given has no data and dims -1. `outputs`
 * are its results, already made, with the dtypes and sizes that the operator gives; an in-place operator's is the input
 * itself. `numbers` are its int, float, bool and Scalar arguments, those in lists one by one, and NaN for None. Returns 0
 * if it ran. With any other number it has touched nothing, and the call runs as it would have without it.
 */
#ifndef SHADOWGRAPH_KERNELS_C_KERNEL_H
#define SHADOWGRAPH_KERNELS_C_KERNEL_H

#include <stdint.h>

struct shadowgraph_tensor {
  void* data;             /* its first element, on its device */
  int32_t dtype;          /* as c10::ScalarType counts: 0 uint8, 3 int32, 4 int64, 5 half, 6 float, 7 double, 11 bool */
  int32_t dims;           /* -1: not given */
  const int64_t* sizes;   /* elements */
  const int64_t* strides; /* elements */
};

typedef int (*shadowgraph_kernel)(const struct shadowgraph_tensor* inputs, int32_t input_count,
                                  const struct shadowgraph_tensor* outputs, int32_t output_count, const double* numbers,
                                  int32_t number_count);

#endif
