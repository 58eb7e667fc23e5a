#include "tests/coverage/refused.h"

#include <fnmatch.h>

namespace shadowgraph::conformance {
namespace {

struct Reason {
  const char* pattern;  // a glob over the name without "aten::"
  const char* reason;
};

constexpr const char* kSparse = "sparse layout";
constexpr const char* kQuantized = "quantized tensors";
constexpr const char* kMkldnn = "mkldnn layout";
constexpr const char* kNested = "nested tensors";
constexpr const char* kBackend = "private to another backend";
constexpr const char* kTest = "for PyTorch's own tests";

constexpr Reason kReasons[] = {
    {"*sparse*", kSparse},
    {"*_coo*", kSparse},
    {"*_csr*", kSparse},
    {"*coalesce*", kSparse},
    {"*_spdiags*", kSparse},
    {"*_spsolve*", kSparse},
    {"*crow_indices*", kSparse},
    {"*ccol_indices*", kSparse},
    {"*col_indices*", kSparse},
    {"*row_indices*", kSparse},
    {"*hspmm*", kSparse},
    {"*sspaddmm*", kSparse},
    {"*dense_dim*", kSparse},
    {"_nnz", kSparse},
    {"*_indices", kSparse},
    {"*_values", kSparse},
    {"*_values_copy*", kSparse},
    {"*_indices_copy*", kSparse},
    {"indices*", kSparse},
    {"values*", kSparse},
    {"*_to_dense*", kSparse},
    {"*quantiz*", kQuantized},
    {"*quantized*", kQuantized},
    {"q_*", kQuantized},
    {"qscheme", kQuantized},
    {"int_repr*", kQuantized},
    {"fbgemm_*", kQuantized},
    {"_empty_*_quantized*", kQuantized},
    {"*mkldnn*", kMkldnn},
    {"*nested*", kNested},
    {"*_jagged*", kNested},
    {"to_padded_tensor", kNested},
    {"linear_backward", kNested},
    {"matmul_backward", kNested},
    {"_dimI", kSparse},
    {"_dimV", kSparse},
    {"_cslt_*", kSparse},
    {"native_norm*", kSparse},
    {"_test_*", kTest},
    {"_foobar", kTest},
    {"_triton_*", "a name that Python must put a kernel behind"},
    {"get_gradients", "gradients of TorchScript's distributed autograd"},
    {"_copy_from*", kBackend},
    {"max_pool2d_backward", kBackend},
    {"miopen_*", kBackend},
    {"_miopen_*", kBackend},
    {"*mps*", kBackend},
    {"*vulkan*", kBackend},
    {"*metal*", kBackend},
    {"*xpu*", kBackend},
};

bool has_names(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.type()->str().find("Dimname") != std::string::npos || argument.name() == "names";
  });
}

}  // namespace

std::string why_refused(const c10::OperatorHandle& op) {
  if (has_names(op.schema())) return "named tensors";
  const std::string name = toString(op.operator_name()).substr(6);
  for (const Reason& row : kReasons) {
    if (fnmatch(row.pattern, name.c_str(), 0) == 0) return row.reason;
  }
  return "";
}

}  // namespace shadowgraph::conformance
