#include "core/replay/pending_transfers.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/fake/process_groups.h"

namespace shadowgraph {
namespace {

constexpr const char* kSend = "c10d::send";

bool says_it_writes(const c10::AliasInfo& alias) {
  return alias.isWrite() || std::ranges::any_of(alias.containedTypes(), &says_it_writes);
}

bool may_write(const c10::FunctionSchema* schema, size_t position) {
  // Functions have no schema here, and c10d's schemas do not say what they write.
  if (schema == nullptr) return true;
  if (schema->name().starts_with("c10d::")) return schema->name() != kSend;
  const auto* alias = schema->arguments()[position].alias_info();
  return alias != nullptr && says_it_writes(*alias);
}

void visit_tensors(const c10::IValue& value, const auto& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) visit_tensors(element, visit);
  }
}

}  // namespace

bool PendingTransfers::transfers(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == kSend || name == "c10d::recv_" || name == "c10d::recv_any_source_";
}

void PendingTransfers::add(const c10::OperatorHandle& op, const c10::IValue& tensors, c10::IValue result) {
  const bool receives = op.schema().name() != kSend;
  visit_tensors(tensors, [&](const at::Tensor& tensor) {
    under_way_.push_back({.storage = tensor.storage(), .work = result, .receives = receives});
  });
}

void PendingTransfers::wait_for(const c10::FunctionSchema* schema, std::span<const c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size() && !empty(); ++i) {
    const bool writes = may_write(schema, i);
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) { wait_for(tensor, writes); });
  }
}

void PendingTransfers::wait_for(const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  std::erase_if(under_way_, [&](const Transfer& transfer) {
    if (transfer.storage.unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl()) return false;
    if (!transfer.receives && !writes) return false;
    wait_for_work({&transfer.work, 1});
    return true;
  });
}

void PendingTransfers::wait_for_all() {
  for (const Transfer& transfer : under_way_) wait_for_work({&transfer.work, 1});
  under_way_.clear();
}

}  // namespace shadowgraph
