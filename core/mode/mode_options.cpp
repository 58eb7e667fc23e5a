#include "core/mode/mode_options.h"

#include <unordered_set>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Says in words why `one` and `other` cannot hold for one program; what either leaves open fits everything.
std::optional<std::string> difference(const FakeTensorOptions& one, const FakeTensorOptions& other) {
  if (one.device && other.device && with_index(*one.device) != with_index(*other.device)) {
    return "device " + one.device->str() + " and " + other.device->str();
  }
  if (one.profile && other.profile && *one.profile != *other.profile) {
    return "device profile '" + one.profile->name + "' and " +
           (one.profile->name == other.profile->name ? "another of that name" : "'" + other.profile->name + "'");
  }
  return std::nullopt;
}

void complete(FakeTensorOptions& given, FakeTensorOptions around) {
  if (!given.device) given.device = around.device;
  if (!given.profile) given.profile = std::move(around.profile);
  given.map_devices_to_default |= around.map_devices_to_default;
  given.data_sizes.merge(around.data_sizes);
  if (!given.data_size_hint) given.data_size_hint = std::move(around.data_size_hint);
  given.host_reads.values.merge(around.host_reads.values);
  if (!given.host_reads.hint) given.host_reads.hint = std::move(around.host_reads.hint);
  given.host_reads.finite |= around.host_reads.finite;
  given.host_reads.masks_full |= around.host_reads.masks_full;
  if (!given.contents_budget) given.contents_budget = around.contents_budget;
  if (!given.real_tensors) given.real_tensors = around.real_tensors;
  given.unknown_operators_on_zeros |= around.unknown_operators_on_zeros;
}

struct Behind {
  FakeTensorOptions options;
  bool of_mode = false;  // one that is still there; otherwise only a device is known
};

// Returns nothing if there is no fake among them. If their modes have ended, only the device that all the tensors are
// on is known.
std::optional<Behind> behind(at::TensorList tensors) {
  std::optional<Behind> found;
  std::unordered_set<uint32_t> seen;
  bool on_one_device = true;
  std::optional<c10::Device> device;
  for (const at::Tensor& tensor : tensors) {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (fake == nullptr) continue;
    if (!found) found.emplace();
    on_one_device = on_one_device && (!device || *device == fake->pretended_device());
    device = fake->pretended_device();
    if (!seen.insert(fake->mode_id()).second) continue;
    std::optional<FakeTensorOptions> options = options_of_mode(fake->mode_id());
    if (!options) continue;
    if (const auto words = difference(found->options, *options)) {
      throw ModeMismatchError("the module's tensors were made in two modes that differ: " + *words +
                              ". Make them in one, or convert some with FakeTensorMode::from_real");
    }
    complete(found->options, std::move(*options));
    found->of_mode = true;
  }
  if (found && !found->of_mode && on_one_device) found->options.device = device;
  return found;
}

}  // namespace

FakeTensorOptions options_around(at::TensorList own, at::TensorList inputs, FakeTensorOptions given) {
  std::optional<Behind> around = behind(own);
  if (around && around->of_mode) {
    if (const auto words = difference(given, around->options)) {
      throw ModeMismatchError("the capture's options and the mode that the module was made in differ: " + *words +
                              ". Leave them out of CaptureOptions::mode, which takes them from that mode, or make the "
                              "module in a mode that has them");
    }
  }
  if (!around) around = behind(inputs);
  const ModeState* active = thread_state.mode;
  if (!around && active != nullptr && active->kind == ModeKind::kFake) around = Behind{active->options, true};
  if (around) complete(given, std::move(around->options));
  return given;
}

void check_is_of(const ModeState& mode, const at::Tensor& tensor, const std::string& name) {
  const FakeTensorImpl* fake = as_fake(tensor);
  if (fake == nullptr || fake->mode_id() == mode.id) return;
  const auto options = options_of_mode(fake->mode_id());
  if (!options) return;
  if (const auto words = difference(mode.options, *options)) {
    throw ModeMismatchError("the capture and the mode that '" + name + "' was made in differ: " + *words +
                            ". Begin the CaptureSession with the module, which takes them from its mode, or make the "
                            "module in a mode that has them");
  }
}

}  // namespace shadowgraph
