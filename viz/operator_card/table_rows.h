// Asks every table what it says of one operator. Internal to viz/operator_card.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string_view>
#include <vector>

#include "shadowgraph/operator_card.h"

namespace shadowgraph {

// Returns a row for each of OperatorCard::tables().
std::vector<OperatorCard::Row> table_rows(const c10::OperatorHandle& op);

}  // namespace shadowgraph
