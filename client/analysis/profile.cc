#include "client/analysis/profile.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

using v1::ProfilePart;
using v1::StepProfile;

// Sums over the profiled steps.
struct Row {
  std::string name;
  std::set<std::string> stages;
  std::set<std::string> dtypes;
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;
  double bytes = 0;
};

std::string StageName(ProfilePart::Stage stage) {
  return stage == ProfilePart::STAGE_UNSPECIFIED ? "" : absl::AsciiStrToLower(ProfilePart::Stage_Name(stage));
}

int64_t StepsOfProfile(const StepProfile& profile) {
  return std::max<int64_t>(1, profile.last_step() - profile.first_step() + 1);
}

std::string KeyOf(const ProfilePart& part, ProfileBy by) {
  const std::string own = part.phase().empty() ? part.name() : absl::StrCat(part.phase(), ": ", part.name());
  if (by == ProfileBy::kLayer) return part.layer().empty() ? own : part.layer();
  if (by == ProfileBy::kOp) return part.op().empty() ? part.name() : part.op();
  if (by == ProfileBy::kStage) return part.stage() == ProfilePart::STAGE_UNSPECIFIED ? own : StageName(part.stage());
  return own;
}

std::vector<Row> RowsOf(const StepProfile& profile, ProfileBy by) {
  std::map<std::string, Row> rows;
  for (const ProfilePart& part : profile.parts()) {
    const std::string key = KeyOf(part, by);
    Row& row = rows[key];
    row.name = key;
    if (part.stage() != ProfilePart::STAGE_UNSPECIFIED) row.stages.insert(StageName(part.stage()));
    if (!part.dtype().empty()) row.dtypes.insert(part.dtype());
    row.calls += part.calls();
    row.seconds += part.seconds();
    row.flops += part.flops();
    row.bytes += part.bytes();
  }
  std::vector<Row> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  return sorted;
}

std::vector<Row> KernelRows(const StepProfile& profile) {
  std::vector<Row> rows;
  for (const v1::ProfileKernel& kernel : profile.kernels()) {
    Row row;
    row.name = kernel.layer().empty() ? kernel.name() : absl::StrCat(kernel.name(), "  (", kernel.layer(), ")");
    row.calls = kernel.calls();
    row.seconds = kernel.seconds();
    rows.push_back(std::move(row));
  }
  return rows;
}

// Means of a step, as a table has them.
class ProfileTable {
 public:
  explicit ProfileTable(const StepProfile& profile, const char* what)
      : steps_(static_cast<double>(StepsOfProfile(profile))),
        step_seconds_(profile.step_seconds()),
        table_({">TIME", ">SHARE", ">CALLS", ">GFLOP/S", ">GB/S", "STAGE", "DTYPE", what}) {}

  void Add(const Row& row) {
    const auto rate = [&](double amount) {
      return amount > 0 && row.seconds > 0 ? absl::StrFormat("%.1f", amount / row.seconds / 1e9) : std::string("-");
    };
    const double calls = static_cast<double>(row.calls) / steps_;
    table_.Add({StepTime(row.seconds / steps_), Share(row.seconds / steps_), row.calls > 0 ? Figure(calls) : "-",
                rate(row.flops), rate(row.bytes), absl::StrJoin(row.stages, ","), absl::StrJoin(row.dtypes, ","),
                row.name});
  }
  // Of a step, not of all.
  void AddRest(const char* name, double seconds) {
    table_.Add({StepTime(seconds), Share(seconds), "-", "-", "-", "", "", name});
  }
  std::string ToString() const { return table_.ToString(); }

 private:
  std::string Share(double seconds) const { return step_seconds_ > 0 ? Percent(seconds / step_seconds_) : "-"; }

  const double steps_;
  const double step_seconds_;
  Table table_;
};

std::string TimingText(StepProfile::Timing timing) {
  switch (timing) {
    case StepProfile::HOST_CLOCK:
      return "timed by the host's clock";
    case StepProfile::DEVICE_EVENTS:
      return "timed by events on the device: a part holds the gap before it";
    case StepProfile::KERNEL_ACTIVITY:
      return "timed by the device's record of each kernel";
    default:
      return "timed in a way that this program does not know";
  }
}

std::string Header(const StepProfile& profile) {
  std::string text =
      absl::StrCat("steps ", profile.first_step(), " to ", profile.last_step(), ": ", StepTime(profile.step_seconds()),
                   " each, ", StepTime(profile.input_wait_seconds()), " of it waiting for input");
  if (profile.has_usual_step_seconds()) {
    absl::StrAppend(&text, "; ", StepTime(profile.usual_step_seconds()), " when not profiled");
  }
  absl::StrAppend(&text, "\n", TimingText(profile.timing()), "\n");
  if (!profile.note().empty()) absl::StrAppend(&text, Clean(profile.note()), "\n");
  return text;
}

}  // namespace

absl::StatusOr<StepProfile> NewestProfile(const Events& events) {
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->has_step_profile()) return event->step_profile();
  }
  return absl::FailedPreconditionError("the job was never profiled; `ampctl profile JOB` does it while it runs");
}

absl::StatusOr<std::string> ProfileText(const StepProfile& profile, ProfileBy by, int top) {
  const bool kernels = by == ProfileBy::kKernel;
  if (kernels && profile.kernels().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the profile knows no kernels by name: it was ", TimingText(profile.timing()), ". ",
                     profile.note().empty() ? "" : absl::StrCat(Clean(profile.note()), ". "),
                     "On a GPU `ampctl profile JOB --by kernel` asks for them; the worker then needs NVIDIA's CUPTI "
                     "(libcupti.so.13 or .12, of the CUDA toolkit)"));
  }
  std::vector<Row> rows = kernels ? KernelRows(profile) : RowsOf(profile, by);
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  static constexpr const char* kHeads[] = {"NODE", "LAYER", "OP", "STAGE", "KERNEL"};
  ProfileTable table(profile, kHeads[static_cast<size_t>(by)]);
  Row rest;
  double seconds = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    seconds += rows[i].seconds;
    if (i < static_cast<size_t>(top)) {
      table.Add(rows[i]);
      continue;
    }
    rest.calls += rows[i].calls;
    rest.seconds += rows[i].seconds;
  }
  const size_t hidden = rows.size() > static_cast<size_t>(top) ? rows.size() - static_cast<size_t>(top) : 0;
  rest.name = absl::StrCat("(", hidden, " more; --top shows them)");
  if (hidden > 0) table.Add(rest);
  table.AddRest("(waiting for input)", profile.input_wait_seconds());
  const double known = seconds / static_cast<double>(StepsOfProfile(profile)) + profile.input_wait_seconds();
  table.AddRest("(between: the host's own work)", std::max(0.0, profile.step_seconds() - known));
  return absl::StrCat(Header(profile), table.ToString());
}

}  // namespace ampd::client
