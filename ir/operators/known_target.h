// Caches of data derived from an operator's schema and registration, valid until operators are registered again.
#pragma once

#include <ATen/core/function_schema.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "ir/operators/operator_forms.h"
#include "shadowgraph/graph/target.h"

namespace shadowgraph {

// Changes whenever an operator is registered with the dispatcher or deregistered. Read it before the lookup whose
// result is cached. Thread-safe.
uint64_t operator_generation();

// A cached result that is valid for one generation of registered operators and recomputed in the next. Earlier results
// stay alive, so that references to them remain valid. Thread-safe.
template <class Answer>
class GenerationSlot {
 public:
  // Returns nullptr for an empty result. `find` runs without a lock.
  template <class Find>
  const Answer* get(Find&& find) {
    const uint64_t generation = operator_generation();
    Entry* entry = latest_.load(std::memory_order_acquire);
    if (entry == nullptr || entry->generation.load(std::memory_order_relaxed) != generation) {
      entry = renew(generation, find());
    }
    return entry->answer ? &*entry->answer : nullptr;
  }

 private:
  struct Entry {
    Entry(uint64_t g, std::optional<Answer> a) : generation(g), answer(std::move(a)) {}
    std::atomic<uint64_t> generation;
    const std::optional<Answer> answer;
  };

  // Two threads may compute the same result; the second then only marks the existing one as valid for this generation.
  // A changed result is appended: earlier ones are never freed while the target lives.
  Entry* renew(uint64_t generation, std::optional<Answer> answer) {
    const std::lock_guard lock(mutex_);
    Entry* entry = latest_.load(std::memory_order_relaxed);
    if (entry != nullptr && entry->answer == answer) {
      entry->generation.store(generation, std::memory_order_relaxed);
      return entry;
    }
    entry = &entries_.emplace_back(generation, std::move(answer));
    latest_.store(entry, std::memory_order_release);
    return entry;
  }

  std::mutex mutex_;
  std::list<Entry> entries_;
  std::atomic<Entry*> latest_ = nullptr;
};

struct KnownTarget : Target::Known {
  explicit KnownTarget(c10::FunctionSchema s) : schema(std::move(s)) {}
  static KnownTarget& of(const Target& target) { return static_cast<KnownTarget&>(*target.known_); }

  const c10::FunctionSchema schema;
  std::mutex mutex;                                  // guards the next four
  std::unique_ptr<const Signature> final_signature;  // target of the pointer `signature`
  std::unique_ptr<const OperatorFacts> final_facts;  // target of the pointer `facts`
  // Facts of an operator that was not registered when they were requested; recomputed once other operators have been
  // registered (tags_generation).
  std::unique_ptr<const OperatorFacts> facts_without_tags;
  uint64_t tags_generation = 0;  // the generation in which the operator was not registered
  GenerationSlot<FunctionalForm> functional;
  GenerationSlot<InPlaceForm> in_place;
  GenerationSlot<FreshForm> fresh;
};

}  // namespace shadowgraph
