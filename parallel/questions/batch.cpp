#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "parallel/questions/asker.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// All samples go through at once: no pipeline, one micro-batch a step. Twice as large ones are tried until none fits.
std::optional<PlanRow> largest_at_once(Asker& asker) {
  constexpr int64_t kMostSamples = 4096;
  std::optional<PlanRow> largest;
  std::vector<int64_t> tensors;
  for (int64_t tensor = 1; tensor <= machine_of(asker.request()); tensor *= 2) tensors.push_back(tensor);
  if (!asker.request().tensor.empty()) tensors = asker.request().tensor;
  for (const int64_t tensor : tensors) {
    ClusterRequest request = asker.request();
    request.tensor = {tensor};
    request.pipeline = {1};
    const int64_t data = request.devices / tensor;
    for (int64_t samples = 1; samples <= kMostSamples; samples *= 2) {
      request.micro_batch = {samples};
      request.batch = data * samples;
      if (largest && request.batch <= static_cast<int64_t>(largest->number)) continue;
      if (!asker.fits(asker.source(), request, asker.kept())) break;
      PlanRow row = asker.row(fmt::format("{} at once", request.batch), static_cast<double>(request.batch), request);
      if (!row.why_not.empty()) break;
      largest = std::move(row);
    }
  }
  return largest;
}

}  // namespace

PlanTable ask_batch(Asker& asker, const PlanQuestion& question) {
  const ClusterRequest& own = asker.request();
  PlanTable table{.about = question.about, .title = "larger and smaller batches", .head = "samples"};
  std::vector<double> usual;
  for (const double factor : {0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    const double samples = factor * static_cast<double>(own.batch);
    if (samples >= 1) usual.push_back(std::floor(samples));
  }
  for (const double samples : values_of(question, std::move(usual))) {
    ClusterRequest request = own;
    request.batch = static_cast<int64_t>(samples);
    table.rows.push_back(asker.row(fmt::format("{}", request.batch), samples, request));
  }
  const auto reaches = [&](const PlanRow& row) { return row.why_not.empty() && row.share >= question.share; };
  const auto first = std::ranges::find_if(table.rows, reaches);
  const std::string share = fmt::format("{:.0f} % of the peak", 100 * question.share);
  table.findings.push_back(first == table.rows.end()
                               ? fmt::format("no batch that was tried reaches {}", share)
                               : fmt::format("from {} samples on a step reaches {}", first->value, share));
  if (asker.source().any_micro_batch && own.micro_batch.empty() && own.pipeline.empty()) {
    if (std::optional<PlanRow> largest = largest_at_once(asker)) {
      table.findings.push_back(
          fmt::format("{} samples are the largest batch in one pass: {}; larger ones are added up "
                      "from micro-batches, in the same memory",
                      static_cast<int64_t>(largest->number), to_string(largest->plan)));
      table.rows.push_back(std::move(*largest));
    } else {
      table.findings.push_back("no batch fits in one pass without a pipeline");
    }
  }
  std::ranges::stable_sort(table.rows, {}, &PlanRow::number);
  return table;
}

}  // namespace shadowgraph
