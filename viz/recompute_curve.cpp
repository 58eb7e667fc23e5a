// Draws peak memory against recomputed FLOPs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/profile/recompute.h"
#include "shadowgraph/units.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

constexpr double kWidth = 760, kHeight = 460;
constexpr double kLeft = 76, kRight = 24, kTop = 44, kBottom = 56;

// Returns 1, 2 or 5 times a power of ten, about a fifth of the range.
double tick_of(double range) {
  if (!(range > 0)) return 1;
  const double rough = range / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  return power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
}

struct CurveUnit {
  double one = 1;
  const char* name = "";
};

CurveUnit bytes_unit(double most) {
  if (most >= 1073741824.0) return {1073741824.0, "GiB"};
  if (most >= 1048576.0) return {1048576.0, "MiB"};
  return {1024.0, "KiB"};
}

CurveUnit flops_unit(double most) {
  if (most >= 1e12) return {1e12, "TFLOP"};
  if (most >= 1e9) return {1e9, "GFLOP"};
  return {1e6, "MFLOP"};
}

}  // namespace

std::string to_svg(const RecomputeCurve& curve, const std::string& title) {
  double most_flops = 1, most_bytes = 1, least_bytes = 1e300;
  for (const auto* list : {&curve.points, &curve.others}) {
    for (const RecomputePoint& point : *list) {
      most_flops = std::max(most_flops, static_cast<double>(point.flops));
      most_bytes = std::max(most_bytes, static_cast<double>(point.peak));
      least_bytes = std::min(least_bytes, static_cast<double>(point.peak));
    }
  }
  least_bytes = std::min(least_bytes, most_bytes);
  const CurveUnit bytes = bytes_unit(most_bytes), flops = flops_unit(most_flops);
  const double y_tick = tick_of(std::max(most_bytes - least_bytes, most_bytes / 100) / bytes.one);
  const double y_least = std::floor(least_bytes / bytes.one / y_tick) * y_tick;
  const double y_most = std::ceil(most_bytes / bytes.one / y_tick) * y_tick;
  const double x_tick = tick_of(most_flops / flops.one);
  const double x_most = std::ceil(most_flops / flops.one / x_tick) * x_tick;
  const auto x_of = [&](double f) { return kLeft + (kWidth - kLeft - kRight) * f / flops.one / x_most; };
  const auto y_of = [&](double b) {
    return kTop + (kHeight - kTop - kBottom) * (1 - (b / bytes.one - y_least) / (y_most - y_least));
  };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n"
      "<text x=\"{2}\" y=\"24\" font-size=\"15\">{3}</text>\n",
      kWidth, kHeight, kLeft, xml_text(title));
  for (int i = 0; y_least + i * y_tick <= y_most * (1 + 1e-9); ++i) {
    const double value = y_least + i * y_tick;
    const double y = y_of(value * bytes.one);
    svg += fmt::format(
        "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#ddd\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:.4g}</text>\n",
        kLeft, y, kWidth - kRight, kLeft - 8, y + 4, value);
  }
  for (int i = 0; i * x_tick <= x_most * (1 + 1e-9); ++i) {
    const double x = x_of(i * x_tick * flops.one);
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4:.4g}</text>\n",
        x, kTop, kHeight - kBottom, kHeight - kBottom + 18, i * x_tick);
  }
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">recomputed matmul {} (one step: {:.4g})</text>\n"
      "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">peak of live bytes, {}</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 14, flops.name, static_cast<double>(curve.flops) / flops.one,
      (kTop + kHeight - kBottom) / 2, bytes.name);
  std::string steps;
  for (size_t i = 0; i < curve.points.size(); ++i) {
    const double x = x_of(static_cast<double>(curve.points[i].flops));
    const double y = y_of(static_cast<double>(curve.points[i].peak));
    steps += i == 0 ? fmt::format("M{:.1f} {:.1f}", x, y) : fmt::format("H{:.1f}V{:.1f}", x, y);
  }
  svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#1f6fb4\" stroke-width=\"1.5\"/>\n", steps);
  const auto mark = [&](const RecomputePoint& point, const char* color, double radius) {
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}: {}, {} FLOPs "
        "recomputed</title></circle>\n",
        x_of(static_cast<double>(point.flops)), y_of(static_cast<double>(point.peak)), radius, color, point.policy,
        human_bytes(point.peak), human_count(point.flops));
  };
  for (const RecomputePoint& point : curve.points) mark(point, "#1f6fb4", 2.5);
  const auto color_of = [](const std::string& policy) {
    return policy == "budget" ? "#c46210" : policy == "sqrt" ? "#2e8b57" : "#8a2be2";
  };
  for (const RecomputePoint& point : curve.others) mark(point, color_of(point.policy), 3.5);
  double y = kTop + 16;
  for (const auto& [name, color] : {std::pair("optimal", "#1f6fb4"), std::pair("budget", "#c46210"),
                                    std::pair("sqrt", "#2e8b57"), std::pair("each, every 2", "#8a2be2")}) {
    svg += fmt::format("<circle cx=\"{}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{:.1f}\">{}</text>\n",
                       kWidth - 130, y, color, kWidth - 118, y + 4, name);
    y += 18;
  }
  return svg + "</svg>\n";
}

}  // namespace shadowgraph
