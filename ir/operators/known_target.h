// Whether operators came or went in this process: what is found by searching them is good until then.
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

// Changes whenever an operator is registered with the dispatcher or leaves it. Read it before the search whose answer
// is to be kept. Thread-safe.
uint64_t operator_generation();

// What is kept with a target, shared by its copies: its schema, its facts, its other forms. Internal to ir/.

// An answer that holds for one generation of registered operators, and is asked for again in the next. Earlier answers
// stay where they are, for whoever holds them. Thread-safe.
template <class Answer>
class GenerationSlot {
 public:
  // nullptr for an empty answer. `find` runs without a lock.
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

  // Two threads may both find an answer; the second then sees an equal one and only marks it as good for this
  // generation. An answer that changed goes behind the earlier ones, which are never freed while the target lives.
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
  std::mutex mutex;                                  // for the next four
  std::unique_ptr<const Signature> final_signature;  // what `signature` points to
  std::unique_ptr<const OperatorFacts> final_facts;  // what `facts` points to
  // Facts of an operator that this process did not have when it was asked; found again when a library has registered
  // operators since (looked_for_tags).
  std::unique_ptr<const OperatorFacts> facts_without_tags;
  uint64_t looked_for_tags = 0;  // the generation in which the operator was not there
  GenerationSlot<FunctionalForm> functional;
  GenerationSlot<InPlaceForm> in_place;
  GenerationSlot<FreshForm> fresh;
};

}  // namespace shadowgraph
