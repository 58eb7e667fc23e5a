// A plan of a cluster as a page: plans by seconds and bytes, what other values of a knob cost, what ranks do and hold.
//
//     write_file("report.html", plan_html(plan_training(source, request)));
#pragma once

#include <string>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct PlanAnswer;  // shadowgraph/parallel/training_plan.h

// One file that loads nothing from outside.
std::string plan_html(const PlanAnswer& answer);

}  // namespace shadowgraph
