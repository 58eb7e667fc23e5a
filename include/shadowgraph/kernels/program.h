// What a generated kernel computes: the small loop language between operators and a back end.
//
// A kernel runs over rows: some outer dimensions, and one inner dimension, the row. Every expression has a level that
// follows from what it reads:
//
//   - constant in the kernel;
//   - constant in a row: loads that the row broadcasts, reductions;
//   - one value an element.
//
// Stores of elements follow the last reduction; those to operands that are not read may come before. Reductions are of
// the row, and of `reduced_rank` dimensions between outer ones and the row. With `columns` they are of those dimensions
// alone, and give a result for each element of the row (the bias gradient of a linear layer). All reductions of a
// program are of the same dimensions; operands that do not vary along these are `of_row`.
//
//     softmax of a row:  e0 = load 0 : Float          text() of it, which is what keys are made of
//                        e1 = row_max e0
//                        e2 = sub e0 e1
//                        e3 = exp e2
//                        e4 = row_sum e3
//                        e5 = div e3 e4
//                        store 1 e5
//
// Sizes, strides and scalars come at run time; dtypes and the layout class of each operand are the kernel's.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class KernelOperation : uint8_t {
  kLoad,      // index: operand
  kGather,    // element of operand `index`, as loaded, and operands[0] times operands[1] (kLong) further on
  kInRange,   // operands[0] if it is of 0 to operands[1] (kLong); otherwise 0, and the kernel reports it
  kColumn,    // where in the row the element is, kLong
  kScalar,    // index: position among the scalars of the call; `type` kDouble or kLong
  kConstant,  // number
  kConvert,   // to `type`, as C++ converts; to kBool: whether it is not zero
  kRound,     // a kFloat that is rounded to what `rounding` (kBFloat16, kHalf) can hold
  kNegate,
  kAbsolute,
  kSquareRoot,
  kFloor,
  kCeil,
  kTruncate,
  kRoundToEven,
  kNot,  // logical, of kBool; bitwise, of integers
  kExponential,
  kExponentialOrZero,  // 0 where it would be below the least number of full precision
  kExponentialMinusOne,
  kLogarithm,
  kTangentHyperbolic,
  kErrorFunction,
  kNormalDistribution,  // cumulative: half of 1 + erf(x / sqrt 2), to a part of 1
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,  // NaN if either is
  kMinimum,
  kPower,  // a kDouble of the kernel or row, by the C library
  kAnd,
  kOr,
  kExclusiveOr,
  kEqual,  // comparisons give kBool
  kNotEqual,
  kLess,
  kLessEqual,
  kMultiplyAdd,  // a * b + c, rounded once
  kSelect,       // a ? b : c
  kRowSum,
  kRowMaximum,  // of floating-point numbers; NaN if one is
  kRowSize,     // elements that a reduction takes, kDouble
};
constexpr auto enum_names(KernelOperation) {
  return names_in_order<KernelOperation>("load", "gather", "in_range", "column", "scalar", "constant", "convert",
                                         "round", "negate", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "not",
                                         "exp", "exp0", "expm1", "log", "tanh", "erf", "normal", "add", "sub", "mul",
                                         "div", "max", "min", "pow", "and", "or", "xor", "eq", "ne", "lt", "le",
                                         "muladd", "select", "row_sum", "row_max", "row_size");
}

struct KernelExpression {
  KernelOperation operation = KernelOperation::kConstant;
  // What is computed with: kBool, kByte, kChar, kShort, kInt, kLong, kFloat, kDouble. Operands of two bytes are loaded
  // as kFloat.
  c10::ScalarType type = c10::ScalarType::Float;
  uint32_t operands[3] = {};  // earlier expressions
  uint32_t index = 0;
  c10::ScalarType rounding = c10::ScalarType::Undefined;
  double number = 0;
  friend bool operator==(const KernelExpression&, const KernelExpression&) = default;
};

struct KernelStore {
  uint32_t operand = 0;
  uint32_t expression = 0;
};

// How an operand lies along the row.
enum class KernelLayout : uint8_t {
  kContiguous,  // the next element is the next in memory
  kBroadcast,   // one element for all of the row
  kStrided,
};
constexpr auto enum_names(KernelLayout) { return names_in_order<KernelLayout>("contiguous", "broadcast", "strided"); }

struct KernelOperand {
  c10::ScalarType dtype = c10::ScalarType::Float;
  KernelLayout layout = KernelLayout::kContiguous;
  bool of_row = false;  // of a program with reductions: one element for what is reduced
  bool written = false;
};

struct KernelProgram {
  uint32_t outer_rank = 0;
  uint32_t reduced_rank = 0;
  bool columns = false;
  std::vector<KernelOperand> operands;
  std::vector<KernelExpression> expressions;  // each after what it uses
  std::vector<KernelStore> stores;
  uint32_t scalars = 0;

  bool has_reductions() const;
  // It reports indices out of range, with kInRange.
  bool has_checks() const;
  // What `begin` and `end` of a kernel count.
  bool runs_by_elements() const { return outer_rank == 0 && (columns || !has_reductions()); }
  // Canonical: two programs with the same text are the same kernel.
  std::string text() const;
};

// The signature of a compiled kernel.
//   data       the first element of every operand; then, with kInRange, an int64 that is set to 1 if an index is wrong
//   sizes      of the outer dimensions, of the reduced ones, of the row
//   strides    operand by operand in the same order; in elements
//   scalars    the bits of a double or int64 each
//   begin, end the rows to run; with outer_rank 0 and no reduction of the row, elements of the one row
using KernelFunction = void (*)(void* const* data, const int64_t* sizes, const int64_t* strides, const int64_t* scalars,
                                int64_t begin, int64_t end);

// What makes programs runnable. There is one back end here, the system's C++ compiler, for the host's memory. Another
// one may compile for a device of its own: it says which, and how its kernels are started.
//
//     auto cache = std::make_shared<KernelCache>(KernelCacheOptions(), std::make_shared<MyBackend>());
//     const CompiledOperators compiled = compile_operators(names, c10::DispatchKey::PrivateUse1, {.cache = cache});
//
// tests/new_backend/far_backend.h is one whose kernels run in another process.

// One run of a kernel: what a KernelFunction is given, with lengths.
struct KernelLaunch {
  std::span<void* const> data;  // the first element of each operand, as the device's tensors give it
  std::span<const int64_t> sizes, strides, scalars;
  int64_t range = 0;     // rows or elements: all from 0 to here run
  int64_t row_work = 1;  // elements in one of them
};

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;
  // Where its kernels find their operands. kCPU: in the host's memory, whatever device tensors there say. Else a tensor
  // anywhere else is no operand.
  virtual c10::DeviceType device() const { return c10::kCPU; }
  // Runs a kernel that load() gave, and returns when its results are there for all who come after it on the device.
  // Returns false if an index was out of range. Called from several threads. Throws UnsupportedError where the device
  // fails. Here: calls it, on this process's threads.
  virtual bool launch(KernelFunction kernel, const KernelLaunch& launch) const;
  // All that decides what comes out for a program and where it may run: generator, compiler and its version, flags,
  // processor features, ABI. Part of every key. Empty: this back end cannot be used here, see `problem`.
  virtual const std::string& identity() const = 0;
  // Why it cannot be used; "" if it can.
  virtual const std::string& problem() const = 0;
  virtual std::string source(const KernelProgram& program) const = 0;
  // Compiles the file `source` to the file `library`; returns "" or what went wrong, within its time limit. Called from
  // several threads.
  virtual std::string compile(const std::string& source, const std::string& library) const = 0;
  // Loads a library for the rest of the process. Throws UnsupportedError. A back end with a launch() of its own may
  // give any address but nullptr: nobody else calls it.
  virtual KernelFunction load(const std::string& library) const = 0;
};

struct CompilerBackendOptions {
  std::string compiler;            // "": $CXX, or else c++, g++, clang++, whichever there is
  std::vector<std::string> flags;  // "": empty for the usual; they replace optimisation and processor flags
  std::chrono::milliseconds timeout{20000};
};
// Throws nothing: a compiler that is not there makes a back end with a problem.
std::shared_ptr<const KernelBackend> compiler_backend(const CompilerBackendOptions& options = {});

// Kernels by what they compute: in memory, and in a folder that outlives the process.
//
//     auto cache = std::make_shared<KernelCache>();        // ~/.cache/shadowgraph, compiling in the background
//     KernelRef kernel = cache->find("aten::add_Tensor", program);
//     if (KernelFunction run = kernel->function()) run(...); // nullptr: not compiled yet, or not to be had
//
// The key is the text of the program and the back end's identity (compiler, flags, processor, ABI). It is found by its
// hash and compared in full. An entry is three files of one name in the folder of its operator or group: source (.cpp),
// library (.so) and manifest (.json). The manifest holds the key and the library's SHA-256.
//
// Files are written aside and renamed, the manifest last. A lock lets one process compile while others wait for what it
// makes. An entry that is cut short, altered or another's is passed over and counted, and made again.
//
// Folder: KernelCacheOptions::directory, or $SHADOWGRAPH_CACHE, or $XDG_CACHE_HOME/shadowgraph, or
// ~/.cache/shadowgraph. Thread-safe. What goes wrong with files or the compiler is never thrown. The kernel is then not
// to be had, stats() counts why, and whoever asked runs what it would have run.

enum class KernelCacheMode : uint8_t {
  kReadWrite,
  kReadOnly,  // kernels of the folder are used, new ones compiled for this process alone
  kOff,       // the folder is not looked at
};

struct KernelCacheOptions {
  std::string directory;  // "": see above
  KernelCacheMode mode = KernelCacheMode::kReadWrite;
  int64_t max_bytes = int64_t{1} << 30;  // of the folder; the least recently used go first. 0: no limit
  bool background = true;                // false: find() returns when the kernel is there, or cannot be
  int jobs = 2;                          // compilations at a time
  // In place of the hash of a key, for tests of what collides.
  std::function<uint64_t(const std::string& key)> hash;
};

// Counts since the cache was made.
struct KernelCacheStats {
  int64_t memory_hits = 0;
  int64_t loaded = 0;    // from the folder
  int64_t compiled = 0;  // by this process
  int64_t failed = 0;    // compilations
  int64_t rejected = 0;  // entries that were cut short, altered or another's
  int64_t write_errors = 0;
  double compile_seconds = 0;  // summed over jobs
  double load_seconds = 0;
};

// One kernel, perhaps still to come.
class Kernel {
 public:
  // nullptr until it is ready, and for good if it cannot be had.
  KernelFunction function() const { return function_.load(std::memory_order_acquire); }
  enum class State : uint8_t { kPending, kReady, kFailed };
  State state() const { return state_.load(std::memory_order_acquire); }
  // Why it failed; "" otherwise.
  std::string problem() const;
  const std::string& name() const { return name_; }
  const std::string& key() const { return key_; }

 private:
  friend class KernelCache;
  std::string name_;  // of its folder
  std::string key_;
  uint64_t hash_ = 0;
  KernelProgram program_;
  std::string stem_;       // path of the entry without ending; "" if it is of this process alone
  bool rejected_ = false;  // its entry, and counted
  std::atomic<KernelFunction> function_ = nullptr;
  std::atomic<State> state_ = State::kPending;
  mutable std::mutex mutex_;
  std::string problem_;
  std::map<std::string, std::string> verdicts_;
};
using KernelRef = std::shared_ptr<Kernel>;

class KernelCache {
 public:
  explicit KernelCache(KernelCacheOptions options = {},
                       std::shared_ptr<const KernelBackend> backend = compiler_backend());
  // Waits for compilations under way; those not begun are given up.
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // One for all who give none: default options.
  static const std::shared_ptr<KernelCache>& shared();

  // `name` is the folder, "aten::add_Tensor" or "group"; not part of the key. nullptr where there is no compiler (said
  // once, as a warning).
  KernelRef find(const std::string& name, const KernelProgram& program);
  // Until nothing is under way.
  void wait() const;
  KernelCacheStats stats() const;
  const KernelCacheOptions& options() const { return options_; }
  const std::string& directory() const { return directory_; }
  const KernelBackend& backend() const { return *backend_; }

  // What was measured about a kernel, kept with it in its manifest: "" if nothing is known for `subject`.
  std::string verdict(const KernelRef& kernel, const std::string& subject) const;
  void set_verdict(const KernelRef& kernel, const std::string& subject, const std::string& verdict);

 private:
  class Jobs;
  void obtain(const KernelRef& kernel);
  bool load_entry(const KernelRef& kernel);
  std::string make_entry(const KernelRef& kernel, bool keep);
  void finish(const KernelRef& kernel, KernelFunction function, const std::string& problem);
  bool write_manifest(const Kernel& kernel, const std::string& digest);
  void enforce_limit();

  const KernelCacheOptions options_;
  const std::shared_ptr<const KernelBackend> backend_;
  std::string directory_;
  mutable std::mutex mutex_;
  std::multimap<uint64_t, KernelRef> kernels_;
  KernelCacheStats stats_;
  bool said_ = false;
  std::unique_ptr<Jobs> jobs_;
};

// ---- The folder, looked at from outside (shadowgraph list kernels). All throw FileError where the
// folder cannot be read; a folder that is not there is empty.

struct KernelCacheEntry {
  std::string name;  // of the operator's folder
  std::string stem;  // path without ending
  int64_t bytes = 0;
  int64_t last_use = 0;  // seconds since 1970
  std::string identity;  // of the back end that made it; "" if the manifest cannot be read
  std::string problem;   // "" if it is whole
};

std::string kernel_cache_directory();
// `verify`: digests are compared as well, which reads all libraries.
std::vector<KernelCacheEntry> list_kernel_cache(const std::string& directory, bool verify);
// Erases what is broken, then least recently used entries until at most `max_bytes` are left; gives what was erased, or
// would be (`dry_run`).
std::vector<KernelCacheEntry> prune_kernel_cache(const std::string& directory, int64_t max_bytes, bool dry_run = false);
// Erases all entries, and what was left of interrupted ones; gives the entries.
std::vector<KernelCacheEntry> clear_kernel_cache(const std::string& directory, bool dry_run = false);

}  // namespace shadowgraph
