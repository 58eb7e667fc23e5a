/* C interface of a custom kernel in a shared library (shadowgraph/kernels/kernel.h):
 *
 *     int my_gelu(const struct shadowgraph_tensor* inputs, int32_t input_count,
 *                 const struct shadowgraph_tensor* outputs, int32_t output_count,
 *                 const double* numbers, int32_t number_count);
 *
 * `inputs` are the operator's tensor arguments in the order of its schema; an omitted one has no data and dims -1.
 * `outputs` are its results, allocated with the dtypes and sizes of the operator; for an in-place operator, the input
 * itself. `numbers` are its int, float, bool and Scalar arguments, with lists flattened and NaN for None. Returns 0 on
 * success. On any other return value it must not have modified anything; the operator's original kernel is called then.
 */
#ifndef SHADOWGRAPH_KERNELS_C_KERNEL_H
#define SHADOWGRAPH_KERNELS_C_KERNEL_H

#include <stdint.h>

struct shadowgraph_tensor {
  void* data;             /* first element, on its device */
  int32_t dtype;          /* value of c10::ScalarType: 0 uint8, 3 int32, 4 int64, 5 half, 6 float, 7 double, 11 bool */
  int32_t dims;           /* -1: omitted */
  const int64_t* sizes;   /* elements */
  const int64_t* strides; /* elements */
};

typedef int (*shadowgraph_kernel)(const struct shadowgraph_tensor* inputs, int32_t input_count,
                                  const struct shadowgraph_tensor* outputs, int32_t output_count, const double* numbers,
                                  int32_t number_count);

#endif
