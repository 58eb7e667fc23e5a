// Questions that one plan does not answer: the same model with more devices, faster links, other memory, other batches.
//
//     PlanQuestions questions(source, request);
//     std::puts(to_text(questions.ask({.about = PlanTopic::kDevices})).c_str());
//
// A row of a table is the best plan of a changed request, simulated as plan_training() simulates. Figures of layers are
// kept between rows and between questions wherever the captured step and the links stay as they are.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/parallel/training_plan.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class PlanTopic : uint8_t {
  kDevices,   // seconds by number of devices, and where efficiency falls under a share
  kNetwork,   // what faster links bring, and what is exposed
  kMemory,    // seconds by memory of a device, and the least that does
  kBatch,     // seconds by batch, and the largest batch in one pass
  kSequence,  // the longest sequence that fits
  kPrice,     // the cheapest cluster that trains so many tokens in time
};
std::string to_string(PlanTopic topic);  // "devices"
std::optional<PlanTopic> plan_topic_named(std::string_view name);
std::vector<std::string> plan_topic_names();

// Devices that can be had, at a price of the user's.
struct DeviceOffer {
  DeviceSpec device;
  Interconnect links;
  double per_hour = 0;  // of one device, in any currency
  int64_t most = 0;     // devices; 0: no end
};
// A JSON file {"h100": 2.5, "a100": {"per_hour": 1.2, "most": 512, "interconnect": "a100"}}: devices by name or file.
// Throws ParseError, FileError, Error for devices and links that there are none of.
std::vector<DeviceOffer> read_offers(const std::string& path);
std::vector<DeviceOffer> parse_offers(const std::string& text, const std::string& name);

struct PlanQuestion {
  PlanTopic about = PlanTopic::kDevices;
  // Devices; factors of the links' bytes a second; bytes of a device; samples; tokens of a sequence. Empty: around the
  // request's own.
  std::vector<double> values = {};
  double share = 0.4;  // of the devices' peak, for kDevices and kBatch
  // For kPrice:
  double tokens = 0;  // that are trained in all
  double within = 0;  // seconds
  std::vector<DeviceOffer> offers = {};
};

// A question in the words of the tool. Values are as the topic has them: "512", "80GB", "2". Tokens are such as "15T", in
// powers of 1,000, `within` is "14d" or "36h", and `prices` a file of read_offers(). Throws Error.
struct PlanQuestionText {
  std::string what;
  std::vector<std::string> values = {};
  double share = 0.4;
  std::string tokens = {}, within = {}, prices = {};
};
PlanQuestion plan_question(const PlanQuestionText& text);

struct PlanRow {
  std::string value;  // "2048", "infiniband x 2"
  double number = 0;
  std::string why_not;  // nothing below, then
  TrainingPlan plan;
  int64_t devices = 0;
  double seconds = 0;            // of a step
  int64_t bytes = 0;             // of the fullest rank
  double tokens_per_second = 0;  // of one device; 0 without a sequence
  double share = 0;              // of the devices' peak
  double exposed = 0;            // seconds of a step in which the mean rank waits for collectives or is slowed by them
  double waiting = 0;            // share of all ranks' time in which they do not compute
  double training = 0, price = 0;  // seconds and price of all tokens, for kPrice
};

struct PlanTable {
  PlanTopic about = PlanTopic::kDevices;
  std::string title, head;  // head: of the first column
  std::vector<PlanRow> rows;
  std::vector<std::string> findings;  // sentences: what was asked for
};

class PlanQuestions {
 public:
  PlanQuestions(StepSource source, ClusterRequest request);
  // What plan_training() gives, and throws.
  PlanAnswer plan();
  // Throws Error for questions that make no sense for this source, and what captures throw.
  PlanTable ask(const PlanQuestion& question);
  // A plan that somebody else made, as given_plan() reads it. It need not fit into a device.
  SimulatedPlan simulate(std::string_view plan);

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

std::string to_text(const PlanTable& table);
nlohmann::json to_json(const PlanTable& table);

}  // namespace shadowgraph
