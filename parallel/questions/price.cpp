#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "parallel/questions/asker.h"
#include "shadowgraph/text.h"
#include "support/json.h"
#include "support/json_place.h"

namespace shadowgraph {
namespace {

constexpr double kHour = 3600, kDay = 24 * kHour;

DeviceOffer offer_of(const std::string& name, const JsonPlace& place) {
  DeviceOffer offer;
  offer.device = *DeviceSpec::find(name, c10::kCUDA);
  std::string links;
  if (place.is_object()) {
    offer.per_hour = place["per_hour"].amount();
    if (const auto most = place.find("most")) offer.most = most->integer(1, int64_t{1} << 40);
    links = place.text_or("interconnect", "");
  } else {
    offer.per_hour = place.amount();
  }
  if (!(offer.per_hour > 0)) place.fail("is no price: give one above 0 for a device's hour");
  const auto around = Interconnect::around(offer.device.name);
  if (links.empty() && !around) place.fail("has no links that are known: add \"interconnect\", a name or a file");
  offer.links = links.empty() ? *around : Interconnect::find(links);
  return offer;
}

// The fewest devices of one kind that train all tokens in time. From a first guess up or down by steps of an eighth.
class Offer {
 public:
  Offer(Asker& asker, const PlanQuestion& question, const DeviceOffer& offer, std::vector<PlanRow>& rows)
      : asker_(asker), question_(question), offer_(offer), rows_(rows) {
    request_ = asker.request();
    if (offer.device.name != request_.device.name) request_.memory.reset();
    request_.device = offer.device;
    request_.links = offer.links;
    machine_ = std::max<int64_t>(1, offer.links.levels.empty() ? 1 : offer.links.levels.front().size);
  }

  std::optional<PlanRow> fewest() {
    constexpr int kTries = 16;
    int64_t devices = whole_machines(asker_.request().devices);
    PlanRow row = row_of(devices);
    for (int tries = 0; tries < kTries && !row.why_not.empty() && may(2 * devices); ++tries) row = row_of(devices *= 2);
    if (!row.why_not.empty()) return std::nullopt;
    const double guess = std::ceil(static_cast<double>(devices) * row.training / question_.within);
    row = row_of(whole_machines(static_cast<int64_t>(std::min(guess, kMostDevices))));
    // Up: twice as many while nothing fits, else by a step.
    for (int tries = 0; tries < kTries && !in_time(row); ++tries) {
      const int64_t more = row.devices + (row.why_not.empty() ? step(row.devices) : row.devices);
      if (!may(more)) return std::nullopt;
      row = row_of(more);
    }
    if (!in_time(row)) return std::nullopt;
    for (int tries = 0; tries < kTries && row.devices > machine_; ++tries) {
      PlanRow less = row_of(row.devices - step(row.devices - 1));
      if (!in_time(less)) break;
      row = std::move(less);
    }
    return row;
  }

 private:
  static constexpr double kMostDevices = 1 << 20;

  int64_t most() const {
    const auto all = static_cast<int64_t>(kMostDevices);
    return offer_.most > 0 ? std::clamp(offer_.most / machine_ * machine_, machine_, all) : all;
  }
  bool may(int64_t devices) const { return devices <= most(); }
  // Eight to sixteen steps from nothing: other numbers have few divisors.
  int64_t step(int64_t devices) const {
    const auto machines = static_cast<uint64_t>(std::max<int64_t>(1, devices / machine_));
    return machine_ * static_cast<int64_t>(std::max<uint64_t>(1, std::bit_floor(machines) / 8));
  }
  int64_t whole_machines(int64_t devices) const {
    const int64_t by = step(devices);
    return std::min(most(), std::max(by, (devices + by - 1) / by * by));
  }
  bool in_time(const PlanRow& row) const { return row.why_not.empty() && row.training <= question_.within; }

  PlanRow row_of(int64_t devices) {
    const std::string name = fmt::format("{} x {}", devices, offer_.device.name);
    const auto known = std::ranges::find(rows_, name, &PlanRow::value);
    if (known != rows_.end()) return *known;
    request_.devices = devices;
    const bool own = offer_.device.name == asker_.request().device.name;
    PlanRow row = asker_.row(name, static_cast<double>(devices), asker_.source(), request_,
                             own ? asker_.kept() : asker_.kept("offer " + offer_.device.name));
    if (row.why_not.empty()) {
      row.training = row.seconds * question_.tokens / static_cast<double>(request_.batch * request_.sequence);
      row.price = row.training / kHour * static_cast<double>(devices) * offer_.per_hour;
    }
    rows_.push_back(row);
    return row;
  }

  Asker& asker_;
  const PlanQuestion& question_;
  const DeviceOffer& offer_;
  std::vector<PlanRow>& rows_;
  ClusterRequest request_;
  int64_t machine_ = 1;
};

}  // namespace

std::vector<DeviceOffer> parse_offers(const std::string& text, const std::string& name) {
  const nlohmann::json json = parse_json(text, name);
  const std::string heading = name + ": prices, such as {\"h100\": 2.5}";
  const JsonPlace place(json, heading);
  std::vector<DeviceOffer> offers;
  for (const auto& [device, entry] : place.members()) offers.push_back(offer_of(device, entry));
  if (offers.empty()) place.fail("name no device");
  return offers;
}

std::vector<DeviceOffer> read_offers(const std::string& path) { return parse_offers(read_file(path), path); }

PlanTable ask_price(Asker& asker, const PlanQuestion& question) {
  if (question.offers.empty()) {
    throw Error("--what price needs the user's prices: --prices FILE, such as {\"h100\": 2.5} for a device's hour");
  }
  if (!(question.tokens > 0) || !(question.within > 0)) {
    throw Error("--what price needs how much is trained, and in what time: --tokens 15T --within 14d");
  }
  if (asker.request().sequence == 0) throw Error("--what price counts tokens: say how long sequences are (--seq)");
  PlanTable table{.about = question.about,
                  .title = fmt::format("{:g} tokens within {:.1f} days", question.tokens, question.within / kDay),
                  .head = "cluster"};
  std::optional<PlanRow> cheapest;
  for (const DeviceOffer& offer : question.offers) {
    const std::optional<PlanRow> row = Offer(asker, question, offer, table.rows).fewest();
    if (!row) {
      table.findings.push_back(fmt::format("no number of {} that was tried trains them in time", offer.device.name));
    } else if (!cheapest || row->price < cheapest->price) {
      cheapest = row;
    }
  }
  if (cheapest) {
    table.findings.insert(
        table.findings.begin(),
        fmt::format("cheapest in time: {}, {:.1f} days, {:.0f} in the prices' currency: {}", cheapest->value,
                    cheapest->training / kDay, cheapest->price, to_string(cheapest->plan)));
  }
  std::ranges::stable_sort(table.rows, [](const PlanRow& a, const PlanRow& b) {
    return std::pair(!a.why_not.empty(), a.price) < std::pair(!b.why_not.empty(), b.price);
  });
  return table;
}

}  // namespace shadowgraph
