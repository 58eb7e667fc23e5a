// A pipeline's run as a picture: what each rank does when, and the bytes that it holds meanwhile.
//
//     write_file("pipeline.svg", pipeline_svg(run, {.memory = 80'000'000'000}));
//     write_file("pipeline.html", pipeline_html(run, {.title = "llama3_70b"}));     // with tables, one file, no script
//
// Each rank has a row of boxes, coloured by F, B, I and W and shaded by micro-batch in turn. Below it are the
// live bytes, all on one scale. Boxes have their action, seconds and bytes as tooltips.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

class PipelineRun;  // shadowgraph/parallel/pipeline.h

struct PipelinePictureOptions {
  std::string title;
  std::optional<int64_t> memory;  // bytes of a device: a line across each rank's bytes
};
std::string pipeline_svg(const PipelineRun& run, const PipelinePictureOptions& options = {});
std::string pipeline_html(const PipelineRun& run, const PipelinePictureOptions& options = {});

}  // namespace shadowgraph
