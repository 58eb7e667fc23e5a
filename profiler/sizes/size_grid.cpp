#include "shadowgraph/profile/size_grid.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "shadowgraph/profile.h"

namespace shadowgraph {
namespace {

// Where captures are made to learn from. Sequences are apart by what kernels pad to, so that padding is a polynomial.
constexpr int64_t kSeqStep = 64;
// Four values of each, since a square takes three and one more to check.
constexpr std::pair<int64_t, int64_t> kGridSamples[] = {
    {2, kSeqStep},     {3, kSeqStep},     {5, kSeqStep},     {7, kSeqStep},     {2, 2 * kSeqStep},
    {3, 2 * kSeqStep}, {2, 3 * kSeqStep}, {5, 3 * kSeqStep}, {2, 4 * kSeqStep},
};

NamedSizes named_sizes(int64_t batch, int64_t seq) { return {{"batch", batch}, {"seq", seq}}; }

class GridCosts {
 public:
  GridCosts(const CaptureAtSizes& capture, SizeGrid& grid) : capture_(capture), grid_(grid) { learn(); }

  // Empty if there is no program of these sizes.
  std::optional<int64_t> bytes(int64_t batch, int64_t seq) {
    const auto [entry, added] = known_.try_emplace({batch, seq});
    if (added) entry->second = work_out(batch, seq);
    return entry->second;
  }
  bool fits(int64_t batch, int64_t seq) {
    const auto held = bytes(batch, seq);
    return held && *held <= grid_.request.memory.bytes;
  }

 private:
  Graph captured(int64_t batch, int64_t seq) {
    Graph graph = capture_(batch, seq);
    ++grid_.captures;
    return graph;
  }

  void learn() {
    try {
      std::vector<SizedGraph> samples;
      for (const auto& [batch, seq] : kGridSamples) samples.push_back({named_sizes(batch, seq), captured(batch, seq)});
      symbolic_ = SymbolicGraph::fit(std::move(samples));
    } catch (const SymbolicError& error) {
      grid_.why_captured = error.what();
      return;
    }
    const int64_t batch = grid_.request.batches.back();
    const int64_t seq = grid_.request.seqs.back();
    if (!symbolic_->refusal(named_sizes(batch, seq))) {
      try {
        if (const auto other = symbolic_->difference_from(named_sizes(batch, seq), captured(batch, seq))) {
          grid_.why_captured = fmt::format("at batch {} and sequence {} the program is another than at small ones: {}",
                                           batch, seq, *other);
          return;
        }
      } catch (const std::exception& error) {  // polynomials do not know where the program ends
        say(error);
        grid_.why_captured = "the program ends within the range";
        return;
      }
    }
    sweep_.emplace(*symbolic_, grid_.request.device, grid_.request.allocator);
  }

  std::optional<int64_t> work_out(int64_t batch, int64_t seq) {
    if (sweep_ && !symbolic_->refusal(named_sizes(batch, seq))) {
      return bytes_of(sweep_->at(named_sizes(batch, seq)), grid_.request.by);
    }
    std::optional<Graph> graph;
    try {
      graph = captured(batch, seq);
    } catch (const std::exception& error) {
      if (grid_.captures == 0) throw;
      say(error);
      return std::nullopt;
    }
    ProfileOptions options{.top_at_peak = 0, .device = grid_.request.device};
    options.memory.allocator = grid_.request.allocator;
    return bytes_of(size_cost(profile(*graph, options)), grid_.request.by);
  }

  void say(const std::exception& error) {
    const auto* torch = dynamic_cast<const c10::Error*>(&error);
    grid_.limit = torch != nullptr ? torch->what_without_backtrace() : error.what();
    grid_.limit = grid_.limit.substr(0, grid_.limit.find('\n'));
  }

  const CaptureAtSizes& capture_;
  SizeGrid& grid_;
  std::optional<SymbolicGraph> symbolic_;
  std::optional<SizeSweep> sweep_;
  std::map<std::pair<int64_t, int64_t>, std::optional<int64_t>> known_;
};

// The largest of first, first + step, ... up to `last` that fits; 0: not even the first.
template <class Fits>
int64_t largest_that(int64_t first, int64_t last, int64_t step, const Fits& fits) {
  if (!fits(first)) return 0;
  int64_t good = 0;  // in steps from the first
  int64_t bad = (last - first) / step + 1;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(first + middle * step) ? good : bad) = middle;
  }
  return first + good * step;
}

std::string size_text(int64_t size, int64_t last) {
  return size == 0 ? "-" : fmt::format("{}{}", size, size == last ? "+" : "");
}

}  // namespace

std::vector<int64_t> doubling_sizes(int64_t first, int64_t last) {
  std::vector<int64_t> sizes;
  for (int64_t size = first; size < last; size *= 2) sizes.push_back(size);
  sizes.push_back(last);
  return sizes;
}

SizeGrid SizeGrid::of(const CaptureAtSizes& capture, const SizeGridRequest& request) {
  if (request.batches.empty() || request.seqs.empty()) throw Error("a grid of sizes needs batches and sequences");
  SizeGrid grid{.request = request};
  GridCosts costs(capture, grid);
  const std::vector<int64_t>& batches = request.batches;
  const std::vector<int64_t>& seqs = request.seqs;
  for (const int64_t batch : batches) {
    auto& row = grid.cells.emplace_back();
    for (const int64_t seq : seqs) row.push_back({costs.bytes(batch, seq), costs.fits(batch, seq)});
  }
  for (const int64_t seq : seqs) {
    grid.largest_batch.push_back(
        largest_that(batches.front(), batches.back(), 1, [&](int64_t batch) { return costs.fits(batch, seq); }));
  }
  const int64_t step = seqs.front() % kSeqStep == 0 ? kSeqStep : 1;
  for (const int64_t batch : batches) {
    grid.largest_seq.push_back(
        largest_that(seqs.front(), seqs.back(), step, [&](int64_t seq) { return costs.fits(batch, seq); }));
  }
  return grid;
}

std::string to_text(const SizeGrid& grid) {
  const SizeGridRequest& request = grid.request;
  std::string text = fmt::format("{:>13}", "batch \\ seq");
  for (const int64_t seq : request.seqs) text += fmt::format("{:>11}", seq);
  text += fmt::format("{:>13}\n", "largest seq");
  for (size_t row = 0; row < request.batches.size(); ++row) {
    text += fmt::format("{:>13}", request.batches[row]);
    for (const SizeGridCell& cell : grid.cells[row]) {
      text += fmt::format("{:>11}", !cell.bytes ? "none" : cell.fits ? human_bytes(*cell.bytes) : "-");
    }
    text += fmt::format("{:>13}\n", size_text(grid.largest_seq[row], request.seqs.back()));
  }
  text += fmt::format("{:>13}", "largest batch");
  for (const int64_t batch : grid.largest_batch)
    text += fmt::format("{:>11}", size_text(batch, request.batches.back()));
  text += fmt::format("\n\n-: does not fit; +: the end of the range, and it fits; {} captures\n", grid.captures);
  if (!grid.limit.empty()) text += "none: no program of these sizes: " + grid.limit + "\n";
  if (!grid.why_captured.empty()) {
    text += "Not all sizes are one program, so they were captured one by one:\n" +
            grid.why_captured.substr(0, grid.why_captured.find('\n')) + "\n";
  }
  return text;
}

nlohmann::json to_json(const SizeGrid& grid) {
  const SizeGridRequest& request = grid.request;
  nlohmann::json cells = nlohmann::json::array();
  for (size_t row = 0; row < request.batches.size(); ++row) {
    for (size_t column = 0; column < request.seqs.size(); ++column) {
      const SizeGridCell& cell = grid.cells[row][column];
      cells.push_back({{"batch", request.batches[row]}, {"seq", request.seqs[column]}, {"fits", cell.fits}});
      if (cell.bytes) cells.back()["bytes"] = *cell.bytes;
    }
  }
  nlohmann::json object{{"memory_limit", request.memory.bytes},
                        {"by", to_string(request.by)},
                        {"cells", std::move(cells)},
                        {"captures", grid.captures}};
  for (size_t i = 0; i < request.seqs.size(); ++i) {
    object["largest_batch"].push_back({{"seq", request.seqs[i]}, {"batch", grid.largest_batch[i]}});
  }
  for (size_t i = 0; i < request.batches.size(); ++i) {
    object["largest_seq"].push_back({{"batch", request.batches[i]}, {"seq", grid.largest_seq[i]}});
  }
  if (!request.memory.device.empty()) object["device"] = request.memory.device;
  if (!grid.why_captured.empty()) object["why_captured"] = grid.why_captured;
  if (!grid.limit.empty()) object["limit"] = grid.limit;
  return object;
}

}  // namespace shadowgraph
