// PyTorch's own samples on examples/new_backend's device and on the CPU: results and written arguments are bitwise
// equal.
//
//     new_backend_samples SAMPLES [EVERY]       every EVERYth sample (default 1), each in a child process
//
// Both sides may raise. Uninitialized memory (empty, resize_) is compared by geometry only. Fails if a child crashes on
// the device, or if an operator that is not in kKnown differs.
#include "tests/conformance/samples.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>

#include "examples/new_backend/host_device.h"
#include "shadowgraph/error.h"
#include "tests/conformance/workers.h"

namespace shadowgraph::conformance {
namespace {

const c10::Device kHost(c10::DeviceType::PrivateUse1, 0);

// A known difference and its reason. Any other difference of the same operator is a failure.
struct Known {
  const char* verdict;  // substring of the sample's verdict
  const char* why;
  // largest allowed difference of values, relative to the largest element
  double apart = std::numeric_limits<double>::infinity();
};
constexpr const char* kUnwritten = "memory that nobody wrote: another difference in each run";
constexpr const char* kCells = "libtorch takes fused cells for granted on PrivateUse1";
constexpr const char* kByName = "asks for the devices that have a kernel by their names";
const std::multimap<std::string, Known> kKnown = {
    {"aten::_ctc_loss.Tensor", {"tensor 1: values", kUnwritten}},
    {"aten::_ctc_loss.Tensor_out", {"tensor 1: values", kUnwritten}},
    {"aten::_ctc_loss.out", {"tensor 1: values", kUnwritten}},
    {"aten::_ctc_loss", {"tensor 1: values", kUnwritten}},
    {"aten::native_batch_norm.out", {": values", kUnwritten}},
    {"aten::mkldnn_rnn_layer", {"tensor 3: values", "its workspace, which is not written whole"}},
    {"aten::linalg_lstsq", {"tensor 0: values", "rounding of LAPACK, by how memory is aligned", 1e-5}},
    {"aten::rnn_relu.input", {"tensor 0: values", "rounding of MKL's products, by processor and alignment", 1e-5}},
    {"aten::scaled_dot_product_attention",
     {"tensor 0: strides", "one kernel on the CPU, operators of the math path here"}},
    {"aten::scaled_dot_product_attention", {"tensor 0: values", "the same", 0.01}},
    {"aten::gru.input", {"_thnn_fused_gru_cell", kCells}},
    {"aten::gru.data", {"_thnn_fused_gru_cell", kCells}},
    {"aten::gru_cell", {"_thnn_fused_gru_cell", kCells}},
    {"aten::lstm.input", {"_thnn_fused_lstm_cell", kCells}},
    {"aten::lstm.data", {"_thnn_fused_lstm_cell", kCells}},
    {"aten::lstm_cell", {"_thnn_fused_lstm_cell", kCells}},
    {"aten::mode.values", {"mode only supports CPU", kByName}},
    {"aten::tensor_split.tensor_indices_or_sections", {"to be on cpu", "its indices must be on the CPU"}},
    {"aten::addr_", {"only the CPU raises: 2D tensor expected", "made of operators that do not check"}},
    {"aten::pixel_unshuffle", {"tensor 0: strides", "strides of dimensions of size 1"}},
};

bool is_known(const std::string& op, const std::string& verdict) {
  const auto [begin, end] = kKnown.equal_range(op);
  for (auto it = begin; it != end; ++it) {
    const size_t at = verdict.find(it->second.verdict);
    if (at == verdict.npos) continue;
    if (it->second.apart == std::numeric_limits<double>::infinity()) return true;
    const size_t number = at + std::strlen(it->second.verdict);
    if (number < verdict.size() && std::strtod(verdict.c_str() + number, nullptr) <= it->second.apart) return true;
  }
  return false;
}

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Copies the sample's tensors to the device, keeping geometry, gradients and aliases.
std::vector<at::Tensor> on_device(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::map<const c10::StorageImpl*, c10::Storage> storages;
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) {
      out.push_back(tensor);
      continue;
    }
    auto& storage = storages[tensor.storage().unsafeGetStorageImpl()];
    if (!storage) {
      const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
      const at::Tensor memory = at::empty({bytes}, at::TensorOptions(kHost).dtype(at::kByte));
      if (bytes > 0) std::memcpy(memory.mutable_data_ptr(), tensor.storage().data(), tensor.storage().nbytes());
      storage = memory.storage();
    }
    at::Tensor there = at::empty({0}, tensor.options().device(kHost));
    there.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
    if (tensor.is_conj()) there._set_conj(true);
    if (tensor.is_neg()) there._set_neg(true);
    out.push_back(there.set_requires_grad(tensor.requires_grad()));
  }
  return out;
}

struct Outcome {
  bool raised = false;
  std::string message;
  std::vector<at::Tensor> tensors;
  std::string numbers;
};

void collect(const c10::IValue& result, Outcome& out) {
  if (result.isTensor()) {
    out.tensors.push_back(result.toTensor());
  } else if (result.isTensorList() || (result.isList() && !result.toListRef().empty())) {
    for (const c10::IValue& element : result.toListRef()) collect(element, out);
  } else {
    out.numbers += c10::str(result, ' ');
  }
}

Outcome run(const Samples& samples, size_t index, const c10::OperatorHandle& op, const std::vector<at::Tensor>& given,
            const std::vector<bool>& not_leaf, bool device) {
  Outcome out;
  at::manual_seed(0);
  std::vector<at::Tensor> passed = given;
  for (size_t i = 0; i < passed.size(); ++i) {
    if (not_leaf[i]) passed[i] = passed[i].clone();
  }
  torch::jit::Stack stack = *samples.stack(index, passed);
  for (c10::IValue& argument : stack) {
    if (device && argument.isDevice() && argument.toDevice().is_cpu()) argument = kHost;
  }
  try {
    op.callBoxed(stack);
    for (const c10::IValue& result : stack) collect(result, out);
    for (const at::Tensor& tensor : passed) out.tensors.push_back(tensor);
  } catch (const c10::Error& error) {
    out.raised = true;
    out.message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    out.raised = true;
    out.message = error.what();
  }
  return out;
}

bool unwritten(const std::string& op) {
  return op.find("empty") != op.npos || op.find("resize") != op.npos || op.find("set_.source") != op.npos;
}

std::string difference(const at::Tensor& cpu, const at::Tensor& device, bool values) {
  if (cpu.defined() != device.defined()) return "defined on one side";
  if (!cpu.defined()) return "";
  if (cpu.scalar_type() != device.scalar_type()) return c10::str("dtype ", cpu.dtype(), ", ", device.dtype());
  if (cpu.sizes() != device.sizes()) return c10::str("sizes ", cpu.sizes(), ", ", device.sizes());
  if (cpu.layout() != c10::kStrided || !cpu.has_storage() || !values) return "";
  if (cpu.strides() != device.strides()) return c10::str("strides ", cpu.strides(), ", ", device.strides());
  if (cpu.is_conj() != device.is_conj() || cpu.is_neg() != device.is_neg()) return "conjugate or negative bit";
  const at::Tensor a = at::empty(cpu.sizes(), cpu.options()).copy_(cpu.detach());
  const at::Tensor b = at::empty(cpu.sizes(), cpu.options()).copy_(device.detach());
  if (a.numel() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0) return "";
  if (!a.is_floating_point()) return "values";
  const at::Tensor x = a.to(at::kDouble);
  const double largest = x.abs().max().item<double>();
  return fmt::format("values {:.2g} of the largest apart",
                     (x - b.to(at::kDouble)).abs().max().item<double>() / largest);
}

// Returns "" if both sides agree, "both raise", "layout" for layouts unsupported on this device, or the difference.
std::string judge(const Samples& samples, size_t index, const std::function<void(char)>& mark) {
  const Sample sample = samples.sample(index);
  const auto op = Samples::find(sample.op);
  if (!op) return "this libtorch has no such operator";
  mark('c');
  const Arguments mine = samples.arguments(index, Contents::kCopied);
  const Outcome cpu = run(samples, index, *op, mine.tensors, mine.not_leaf, false);
  mark('d');
  const Arguments theirs = samples.arguments(index, Contents::kCopied);
  const Outcome device = run(samples, index, *op, on_device(theirs.tensors), theirs.not_leaf, true);
  if (cpu.raised && device.raised) return "both raise";
  if (device.raised && device.message.find("is not supported on this device") != std::string::npos) return "layout";
  if (cpu.raised || device.raised) {
    return fmt::format("only {} raises: {}", cpu.raised ? "the CPU" : "the device", cpu.message + device.message);
  }
  if (cpu.numbers != device.numbers && !unwritten(sample.op)) {
    return fmt::format("numbers {} on the CPU, {}", cpu.numbers, device.numbers);
  }
  if (cpu.tensors.size() != device.tensors.size()) return "another number of results";
  for (size_t i = 0; i < cpu.tensors.size(); ++i) {
    const std::string text = difference(cpu.tensors[i], device.tensors[i], !unwritten(sample.op));
    if (!text.empty()) return fmt::format("tensor {}: {}", i, text);
  }
  return "";
}

int main_program(int argc, char** argv) {
  if (argc < 2) throw Error("usage: new_backend_samples SAMPLES [EVERY]");
  const size_t every = argc > 2 ? std::stoul(argv[2]) : 1;
  torch::set_num_threads(1);
  NoWarnings no_warnings;
  c10::WarningUtils::set_warning_handler(&no_warnings);
  host::register_device();
  const Samples samples(argv[1]);
  std::vector<size_t> indices;
  for (size_t i = 0; i < samples.size(); i += every) indices.push_back(i);
  std::map<std::string, size_t> counts;
  std::map<std::string, std::pair<size_t, std::string>> kinds;
  run_in_children(
      indices, 1, 60, [&](size_t index, const std::function<void(char)>& mark) { return judge(samples, index, mark); },
      [&](size_t index, bool died, char mark, const std::string& text) {
        const std::string verdict = died ? (mark == 'c' ? "the CPU crashes" : "the device crashes") : text;
        if (verdict.empty() || verdict == "both raise" || verdict == "layout" || verdict == "the CPU crashes") {
          ++counts[verdict.empty() ? "agree" : verdict];
          return;
        }
        const Sample sample = samples.sample(index);
        if (!died && is_known(sample.op, verdict)) {
          ++counts["differ as known"];
          return;
        }
        ++counts["differ"];
        auto& kind = kinds[sample.op];
        if (kind.first++ == 0) kind.second = fmt::format("#{} {}: {}", index, sample.dtype, verdict.substr(0, 200));
      });
  for (const auto& [op, kind] : kinds) fmt::print("{:5} x {} {}\n", kind.first, op, kind.second);
  for (const auto& [verdict, count] : counts) fmt::print("{:6} {}\n", count, verdict);
  fmt::print("{} samples\n", indices.size());
  return counts.contains("differ") ? 1 : 0;
}

}  // namespace
}  // namespace shadowgraph::conformance

int main(int argc, char** argv) {
  try {
    return shadowgraph::conformance::main_program(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "new_backend_samples: " << error.what() << '\n';
    return 2;
  }
}
