// A plan as people read it, at 120 columns.
#ifndef AMPD_CLIENT_OUTPUT_PLAN_TEXT_H_
#define AMPD_CLIENT_OUTPUT_PLAN_TEXT_H_

#include <string>

#include "ampd/v1/plan.pb.h"

namespace ampd::client {

// What was planned for what; a table of layers with totals; a table of modes; advice. Figures that need the speed of
// the device are "-" where it is not known, and a line says how to tell it.
std::string PlanReportText(const v1::PlanReport& report);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_PLAN_TEXT_H_
