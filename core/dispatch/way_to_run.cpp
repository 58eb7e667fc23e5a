#include "core/dispatch/way_to_run.h"

#include "core/dispatch/operator_info.h"
#include "core/dispatch/out_form.h"

namespace shadowgraph {

WayToRun way_to_run(const c10::OperatorHandle& op) {
  using Kind = WayToRun::Kind;
  const OperatorInfo& info = OperatorInfo::of(op);
  switch (info.route) {
    case Route::kRule:
      if (info.depends_on_data) return {.kind = Kind::kDataDependent, .takes_sizes = true};
      return {.kind = Kind::kRule};
    case Route::kComposite:
      return {.kind = Kind::kDecomposition};
    case Route::kMeta:
      return {.kind = Kind::kMeta};
    case Route::kDataDependent:
    case Route::kNone:
      break;
  }
  if (const FreshForm* form = form_of_tensors(info.target)) {
    WayToRun way = way_to_run(form->op);
    way.form = form;
    if (way.kind != Kind::kDataDependent && way.kind != Kind::kNone) way.kind = Kind::kOutForm;
    return way;
  }
  return {.kind = info.route == Route::kDataDependent ? Kind::kDataDependent : Kind::kNone};
}

}  // namespace shadowgraph
