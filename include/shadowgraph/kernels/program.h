// Loop programs of generated kernels, back ends that compile them, and the kernel cache.
//
// A kernel iterates over rows: outer dimensions, and one inner dimension, the row. Every expression has a level
// determined by its operands: constant in the kernel; constant in a row (broadcast loads, reductions); or per element.
//
// Stores of elements come after the last reduction, except those to operands that are not read. Reductions are over the
// row and over `reduced_rank` dimensions between the outer ones and the row. With `columns` they are over those
// dimensions only, with one result per element of the row (the bias gradient of a linear layer). All reductions of a
// program are over the same dimensions; operands that do not vary along these are `of_row`.
//
//     softmax of a row:  e0 = load 0 : Float          text(), on which cache keys are based
//                        e1 = row_max e0
//                        e2 = sub e0 e1
//                        e3 = exp e2
//                        e4 = row_sum e3
//                        e5 = div e3 e4
//                        store 1 e5
//
// Sizes, strides and scalars are passed at run time; dtypes and the layout class of each operand are fixed.
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
  kGather,    // load of operand `index` at an offset of operands[0] times operands[1] (kLong)
  kInRange,   // operands[0] if in [0, operands[1]) (kLong); otherwise 0, and the kernel reports an error
  kColumn,    // position of the element in the row, kLong
  kScalar,    // index: position among the scalars of the call; `type` kDouble or kLong
  kConstant,  // number
  kConvert,   // to `type`, as C++ converts; to kBool: not equal to zero
  kRound,     // rounds a kFloat to the precision of `rounding` (kBFloat16, kHalf)
  kNegate,
  kAbsolute,
  kSquareRoot,
  kFloor,
  kCeil,
  kTruncate,
  kRoundToEven,
  kNot,  // logical for kBool, bitwise for integers
  kExponential,
  kExponentialOrZero,  // 0 instead of denormal results
  kExponentialMinusOne,
  kLogarithm,
  kTangentHyperbolic,
  kErrorFunction,
  kNormalDistribution,  // cumulative distribution function, (1 + erf(x / sqrt 2)) / 2
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,  // NaN if either operand is
  kMinimum,
  kPower,  // kDouble, constant in the kernel or row; uses the C library
  kAnd,
  kOr,
  kExclusiveOr,
  kEqual,  // comparisons return kBool
  kNotEqual,
  kLess,
  kLessEqual,
  kMultiplyAdd,  // a * b + c, rounded once
  kSelect,       // a ? b : c
  kRowSum,
  kRowMaximum,  // of floating-point numbers; NaN if any is
  kRowSize,     // number of reduced elements, kDouble
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
  // kBool, kByte, kChar, kShort, kInt, kLong, kFloat or kDouble. Operands of two bytes are loaded as kFloat.
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

// Memory layout of an operand along the row.
enum class KernelLayout : uint8_t {
  kContiguous,  // consecutive elements
  kBroadcast,   // one element for the whole row
  kStrided,
};
constexpr auto enum_names(KernelLayout) { return names_in_order<KernelLayout>("contiguous", "broadcast", "strided"); }

struct KernelOperand {
  c10::ScalarType dtype = c10::ScalarType::Float;
  KernelLayout layout = KernelLayout::kContiguous;
  bool of_row = false;  // in a program with reductions: constant along the reduced dimensions
  bool written = false;
};

struct KernelProgram {
  uint32_t outer_rank = 0;
  uint32_t reduced_rank = 0;
  bool columns = false;
  std::vector<KernelOperand> operands;
  std::vector<KernelExpression> expressions;  // in topological order
  std::vector<KernelStore> stores;
  uint32_t scalars = 0;

  bool has_reductions() const;
  // Returns whether it checks indices, with kInRange.
  bool has_checks() const;
  // Returns whether `begin` and `end` of a kernel count elements rather than rows.
  bool runs_by_elements() const { return outer_rank == 0 && (columns || !has_reductions()); }
  // Returns a canonical form: programs with the same text are the same kernel.
  std::string text() const;
};

// The signature of a compiled kernel.
//   data       first element of every operand; with kInRange, followed by an int64 that is set to 1 for an invalid
//              index
//   sizes      of the outer dimensions, the reduced ones, and the row
//   strides    of each operand, in the same order; in elements
//   scalars    bits of a double or int64 each
//   begin, end range of rows; with outer_rank 0 and no reduction of the row, range of elements in the single row
using KernelFunction = void (*)(void* const* data, const int64_t* sizes, const int64_t* strides, const int64_t* scalars,
                                int64_t begin, int64_t end);

// Compiles programs to kernels. The built-in back end uses the system's C++ compiler, for host memory. A custom one may
// compile for another device: it specifies the device and launches its kernels.

// A launch of a kernel: the arguments of a KernelFunction, with lengths.
struct KernelLaunch {
  std::span<void* const> data;  // first element of each operand, as returned by the device's tensors
  std::span<const int64_t> sizes, strides, scalars;
  int64_t range = 0;     // number of rows or elements to run, from 0
  int64_t row_work = 1;  // elements per unit of the range
};

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;
  // Device of all operands. kCPU: host memory, regardless of the device of tensors.
  virtual c10::DeviceType device() const { return c10::kCPU; }
  // Runs a kernel returned by load(). When it returns, the results must be visible to subsequent work on the device.
  // Returns false if an index was out of range. Must be thread-safe. Throws UnsupportedError on device errors. By
  // default, calls the function on threads of this process.
  virtual bool launch(KernelFunction kernel, const KernelLaunch& launch) const;
  // Returns everything that determines the compiled code and where it can run: generator, compiler and its version,
  // flags, CPU features, ABI. Part of every cache key. "": the back end is unavailable, see `problem`.
  virtual const std::string& identity() const = 0;
  // Returns the reason that it is unavailable, or "".
  virtual const std::string& problem() const = 0;
  virtual std::string source(const KernelProgram& program) const = 0;
  // Compiles file `source` to `library` within its time limit; returns an error message or "". Thread-safe.
  virtual std::string compile(const std::string& source, const std::string& library) const = 0;
  // Loads a library for the lifetime of the process. Throws UnsupportedError. A back end that overrides launch() may
  // return any non-null address, which is passed only to launch().
  virtual KernelFunction load(const std::string& library) const = 0;
};

struct CompilerBackendOptions {
  std::string compiler;            // "": $CXX, or else the first of c++, g++, clang++ that exists
  std::vector<std::string> flags;  // replace optimization and target flags; empty: default flags
  std::chrono::milliseconds timeout{20000};
};
// Never throws: if the compiler does not exist, the back end has a problem().
std::shared_ptr<const KernelBackend> compiler_backend(const CompilerBackendOptions& options = {});

// Cache of compiled kernels, in memory and in a directory on disk.
//
// The key is the text of the program and the back end's identity (compiler, flags, CPU, ABI). It is looked up by hash
// and compared in full. An entry consists of three files of one name in the directory of its operator or group: source
// (.cpp), library (.so) and manifest (.json). The manifest has the key and the SHA-256 of the library.
//
// Files are written under temporary names and renamed, the manifest last. A lock file lets one process compile an entry
// while others wait for it. Truncated, modified and colliding entries are ignored, counted and recompiled.
//
// Directory: KernelCacheOptions::directory, or $SHADOWGRAPH_CACHE, or $XDG_CACHE_HOME/shadowgraph, or
// ~/.cache/shadowgraph. Thread-safe. Errors of files and of the compiler are not thrown: the kernel is unavailable,
// stats() counts the error, and the caller uses the original implementation.

enum class KernelCacheMode : uint8_t {
  kReadWrite,
  kReadOnly,  // kernels of the directory are used; new ones are compiled for this process only
  kOff,       // the directory is not used
};

struct KernelCacheOptions {
  std::string directory;  // "": default, see above
  KernelCacheMode mode = KernelCacheMode::kReadWrite;
  int64_t max_bytes = int64_t{1} << 30;  // limit of the directory; least recently used entries are evicted. 0: no limit
  bool background = true;                // false: find() returns after compilation has finished or failed
  int jobs = 2;                          // number of parallel compilations
  // Replaces the hash function, to test collisions.
  std::function<uint64_t(const std::string& key)> hash;
};

struct KernelCacheStats {
  int64_t memory_hits = 0;
  int64_t loaded = 0;    // from the directory
  int64_t compiled = 0;  // by this process
  int64_t failed = 0;    // compilations
  int64_t rejected = 0;  // truncated, modified or colliding entries
  int64_t write_errors = 0;
  double compile_seconds = 0;  // sum of all jobs
  double load_seconds = 0;
};

// A kernel that may still be compiling.
class Kernel {
 public:
  // Returns nullptr if it is not ready or has failed.
  KernelFunction function() const { return function_.load(std::memory_order_acquire); }
  enum class State : uint8_t { kPending, kReady, kFailed };
  State state() const { return state_.load(std::memory_order_acquire); }
  // Returns the error if it has failed, otherwise "".
  std::string problem() const;
  const std::string& name() const { return name_; }
  const std::string& key() const { return key_; }

 private:
  friend class KernelCache;
  std::string name_;  // name of its directory
  std::string key_;
  uint64_t hash_ = 0;
  KernelProgram program_;
  std::string stem_;       // path of the entry without extension; "" if not stored on disk
  bool rejected_ = false;  // the entry on disk was rejected and counted
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
  // Waits for running compilations; cancels pending ones.
  ~KernelCache();
  C10_DISABLE_COPY_AND_ASSIGN(KernelCache);

  // Returns the default cache, with default options.
  static const std::shared_ptr<KernelCache>& shared();

  // `name` is the directory, "aten::add_Tensor" or "group". Returns nullptr if no compiler is available (warns once).
  KernelRef find(const std::string& name, const KernelProgram& program);
  // Blocks until no compilation is running or pending.
  void wait() const;
  KernelCacheStats stats() const;
  const KernelCacheOptions& options() const { return options_; }
  const std::string& directory() const { return directory_; }
  const KernelBackend& backend() const { return *backend_; }

  // Returns the measured verdict stored in the kernel's manifest, or "" if there is none for `subject`.
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
  void count(int64_t KernelCacheStats::*event);

  const KernelCacheOptions options_;
  const std::shared_ptr<const KernelBackend> backend_;
  std::string directory_;
  mutable std::mutex mutex_;
  std::multimap<uint64_t, KernelRef> kernels_;
  KernelCacheStats stats_;
  bool said_ = false;
  std::unique_ptr<Jobs> jobs_;
};

// Management of the directory (shadowgraph list kernels). Throw FileError; a missing directory is empty.

struct KernelCacheEntry {
  std::string name;  // directory of the operator
  std::string stem;  // path without extension
  int64_t bytes = 0;
  int64_t last_use = 0;  // seconds since 1970
  std::string identity;  // of its back end; "" if the manifest cannot be read
  std::string problem;   // "" if the entry is valid
};

std::string kernel_cache_directory();
// `verify`: also compares digests, which reads all libraries.
std::vector<KernelCacheEntry> list_kernel_cache(const std::string& directory, bool verify);
// Removes invalid entries, then the least recently used ones until at most `max_bytes` are left. Returns the entries
// that were removed, or would be (`dry_run`).
std::vector<KernelCacheEntry> prune_kernel_cache(const std::string& directory, int64_t max_bytes, bool dry_run = false);
// Removes all entries and leftovers of interrupted compilations. Returns the entries.
std::vector<KernelCacheEntry> clear_kernel_cache(const std::string& directory, bool dry_run = false);

}  // namespace shadowgraph
