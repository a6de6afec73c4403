#include "client/top/screen.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/exit_code.h"
#include "client/output/color.h"
#include "client/output/job_text.h"
#include "client/output/text.h"
#include "client/top/sparkline.h"

namespace ampd::client {
namespace {

constexpr char kReverse[] = "\x1b[7m";
constexpr char kPlain[] = "\x1b[0m";
constexpr int kIdColumns = 10;
constexpr int kWide = 110;

int Columns(absl::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Exactly `columns` columns of foreign text.
std::string Cell(absl::string_view text, int columns, bool right = false) {
  const std::string cut = Truncate(Clean(text), std::max(columns, 0));
  const std::string padding(static_cast<size_t>(std::max(columns - Columns(cut), 0)), ' ');
  return right ? padding + cut : cut + padding;
}

// A figure in at most `columns`, five or more: rounded rather than cut.
std::string Short(double value, int columns) {
  const std::string text = Count(value);
  return Columns(text) <= columns ? text : absl::StrFormat("%.0e", value);
}

std::string LossText(double loss, int columns) {
  std::string text;
  for (int digits = 3; digits > 0; --digits) {
    text = absl::StrFormat("%.*g", digits, loss);
    if (Columns(text) <= columns) break;
  }
  return text;
}

std::string StepsText(const v1::JobSummary& summary, int columns) {
  if (summary.total_steps() <= 0) return "-";
  const std::string text = absl::StrCat(summary.step(), "/", summary.total_steps());
  if (Columns(text) <= columns) return text;
  const int half = (columns - 1) / 2;
  return absl::StrCat(Short(static_cast<double>(summary.step()), half), "/",
                      Short(static_cast<double>(summary.total_steps()), half));
}

std::string SkipsText(int64_t skips, int columns) {
  const std::string text = absl::StrCat(skips);
  return Columns(text) <= columns ? text : Short(static_cast<double>(skips), columns);
}

std::string EtaText(double seconds, int columns) {
  if (seconds < 0) return "-";
  const std::string text = Duration(seconds);
  if (Columns(text) <= columns) return text;
  const double days = seconds / 86400;
  const int minutes = static_cast<int>(std::min(seconds, 100.0 * 3600) / 60);
  return seconds < 100 * 3600 ? absl::StrFormat("%dh %02dm", minutes / 60, minutes % 60)
                              : absl::StrCat(Short(days, columns - 1), "d");
}

// In lines of at most `columns`, broken between words where there are any.
std::vector<std::string> Wrap(std::string text, int columns) {
  std::vector<std::string> lines;
  while (Columns(text) > columns) {
    const std::string line = Truncate(text, columns);
    size_t end = text[line.size()] == ' ' ? line.size() : line.rfind(' ');
    if (end == std::string::npos || end == 0) end = line.size();
    lines.push_back(text.substr(0, end));
    text.erase(0, text.find_first_not_of(' ', end));
  }
  if (!text.empty() || lines.empty()) lines.push_back(text);
  return lines;
}

// How many characters of each id tell it from the others, at least `least`.
int UniquePrefix(const std::vector<const v1::Job*>& jobs, int least) {
  std::vector<absl::string_view> ids;
  for (const v1::Job* job : jobs) ids.push_back(job->id());
  std::sort(ids.begin(), ids.end());
  size_t needed = static_cast<size_t>(least);
  for (size_t i = 1; i < ids.size(); ++i) {
    const size_t size = std::min(ids[i - 1].size(), ids[i].size());
    size_t same = 0;
    while (same < size && ids[i - 1][same] == ids[i][same]) ++same;
    needed = std::max(needed, std::min(same + 1, ids[i].size()));
  }
  return static_cast<int>(needed);
}

std::string TimeText(absl::Time time) {
  google::protobuf::Timestamp timestamp;
  timestamp.set_seconds(absl::ToUnixSeconds(time));
  return absl::StrCat(TimeOfDay(timestamp), " ", ZoneOf(timestamp));
}

class Screen {
 public:
  Screen(const TopState& state, const TopView& view)
      : state_(state), view_(view), rows_(std::max(view.rows, 1)), jobs_(ShownJobs(state, view)) {
    const auto selected =
        std::find_if(jobs_.begin(), jobs_.end(), [&](const v1::Job* job) { return job->id() == view.selected; });
    selected_ = selected == jobs_.end() ? 0 : static_cast<size_t>(selected - jobs_.begin());
  }

  std::vector<std::string> Draw() {
    // The curves give way first, then devices, then jobs.
    const int detail = jobs_.empty() || rows_ < 16 ? 0 : std::min(7, rows_ / 3);
    Head();
    const int body = std::max(rows_ - 1 - static_cast<int>(lines_.size()) - detail, 0);
    const int wanted = static_cast<int>(state_.devices.size()) + 1;
    const int devices = std::clamp(wanted, 0, std::max(body / 3, 2));
    Devices(devices);
    Jobs(body - devices);
    if (detail > 0) Detail(detail);
    while (static_cast<int>(lines_.size()) < rows_ - 1) Add("");
    Keys();
    lines_.resize(std::min(lines_.size(), static_cast<size_t>(rows_)));
    return std::move(lines_);
  }

 private:
  void Add(const std::string& line, Color color = Color::kNone) {
    lines_.push_back(Paint(view_.color ? color : Color::kNone, Truncate(line, view_.columns)));
  }
  // The whole width.
  void AddReverse(const std::string& line) {
    const std::string text = Cell(line, view_.columns);
    lines_.push_back(view_.color ? absl::StrCat(kReverse, text, kPlain) : text);
  }

  void Head() {
    if (!state_.lost.ok()) {
      const std::string since = state_.answered ? absl::StrCat(" since ", TimeText(state_.time)) : "";
      const std::string text =
          absl::StrCat("ampd at ", state_.address, " does not answer", since, ": ", Clean(state_.lost.message()));
      std::vector<std::string> lines = Wrap(text, std::max(view_.columns, 1));
      lines.resize(std::min(lines.size(), static_cast<size_t>(std::max(rows_ / 4, 1))));
      for (const std::string& line : lines) Add(line, Color::kRed);
      return;
    }
    int running = 0, queued = 0;
    for (const v1::Job& job : state_.jobs) {
      if (job.state() == v1::Job::QUEUED) {
        ++queued;
      } else if (!IsTerminal(job.state()) && job.state() != v1::Job::PAUSED) {
        ++running;
      }
    }
    const auto held = std::count_if(state_.devices.begin(), state_.devices.end(),
                                    [](const v1::Device& device) { return !device.job_id().empty(); });
    const std::string left = absl::StrCat("ampd ", Clean(state_.server.version()), " at ", state_.address,
                                          state_.server.draining() ? ", draining" : "");
    const std::string right = absl::StrCat(running, " running, ", queued, " queued, ", held, "/", state_.devices.size(),
                                           " devices  ", TimeText(state_.time));
    const int gap = std::max(view_.columns - Columns(left) - Columns(right), 2);
    Add(absl::StrCat(left, std::string(static_cast<size_t>(gap), ' '), right), Color::kBold);
  }

  std::string NameOf(const std::string& job_id) const {
    for (const v1::Job& job : state_.jobs) {
      if (job.id() == job_id) return job.spec().name();
    }
    return job_id;
  }

  static std::string Conditions(const v1::Device& device) {
    return absl::StrJoin(device.conditions(), ",", [](std::string* out, const v1::DeviceCondition& condition) {
      absl::StrAppend(out, v1::DeviceCondition::Kind_Name(condition.kind()));
    });
  }

  void Devices(int rows) {
    if (rows < 2) return;
    const int extra = std::max(view_.columns - 80, 0);
    const int name = 16 + extra / 2, job = 12 + extra - extra / 2;
    AddReverse(absl::StrCat(Cell("DEVICE", 9), " ", Cell("NAME", name), " ", Cell("LOAD", 15), " ", Cell("MEMORY", 17),
                            " ", Cell("TEMP", 4, true), " ", Cell("JOB", job)));
    const int shown = static_cast<int>(state_.devices.size()) <= rows - 1 ? rows - 1 : rows - 2;
    for (int i = 0; i < static_cast<int>(state_.devices.size()) && i < shown; ++i) {
      const v1::Device& device = state_.devices[static_cast<size_t>(i)];
      std::string load = "-", memory = "-";
      if (device.has_utilization()) {
        load = absl::StrCat(Bar(device.utilization(), 10), absl::StrFormat("%4.0f%%", 100 * device.utilization()));
      }
      if (device.has_memory_total_bytes()) memory = Bytes(device.memory_total_bytes());
      if (device.has_memory_used_bytes()) memory = absl::StrCat(Bytes(device.memory_used_bytes()), "/", memory);
      const v1::GpuStatus& gpu = device.gpu();
      const std::string wrong = Conditions(device);
      std::string held = wrong.empty() ? "free" : wrong;
      if (!device.job_id().empty()) held = NameOf(device.job_id());
      if (device.job_ids_size() > 1) absl::StrAppend(&held, " +", device.job_ids_size() - 1);
      Add(absl::StrCat(
              Cell(device.id(), 9), " ", Cell(device.name(), name), " ", Cell(load, 15), " ", Cell(memory, 17), " ",
              Cell(gpu.has_temperature_celsius() ? absl::StrFormat("%.0fC", gpu.temperature_celsius()) : "-", 4, true),
              " ", Cell(held, job)),
          wrong.empty() ? Color::kNone : Color::kYellow);
    }
    if (static_cast<int>(state_.devices.size()) > shown) {
      Add(absl::StrCat("  and ", static_cast<int>(state_.devices.size()) - shown, " more"), Color::kGrey);
    }
  }

  const TopHistory* HistoryOf(const v1::Job& job) const {
    const auto found = state_.histories.find(job.id());
    return found == state_.histories.end() ? nullptr : &found->second;
  }

  std::vector<double> Values(const TopHistory& history, double TopHistory::Point::*member) const {
    std::vector<double> values;
    for (const TopHistory::Point& point : history.points()) values.push_back(point.*member);
    return values;
  }

  // Where there is no room for what tells the ids apart, the end of one does.
  std::string IdCell(const std::string& id, int columns) const {
    const auto same = std::count_if(jobs_.begin(), jobs_.end(), [&](const v1::Job* job) {
      return absl::StartsWith(job->id(), id.substr(0, static_cast<size_t>(columns)));
    });
    if (same <= 1 || static_cast<int>(id.size()) <= columns) return Cell(id, columns);
    return absl::StrCat("..", id.substr(id.size() - static_cast<size_t>(columns - 2)));
  }

  std::string JobRow(const v1::Job& job, int id, int name, int curve) const {
    const v1::JobSummary& summary = job.summary();
    const TopHistory* history = HistoryOf(job);
    const double eta = history == nullptr || job.state() != v1::Job::RUNNING ? -1 : history->EtaSeconds();
    const bool runs = job.state() == v1::Job::RUNNING;
    std::string line = absl::StrCat(
        IdCell(job.id(), id), " ", Cell(job.spec().name(), name), " ", Cell(v1::Job::State_Name(job.state()), 10), " ",
        Cell(StepsText(summary, 12), 12, true), " ",
        Cell(summary.has_loss() ? LossText(summary.loss(), 8) : "-", 8, true), " ",
        Cell(summary.loss_scale() != 0 ? Short(summary.loss_scale(), 5) : "-", 5, true), " ",
        Cell(SkipsText(summary.steps_skipped(), 5), 5, true), " ",
        Cell(runs && summary.samples_per_second() > 0 ? Short(summary.samples_per_second(), 6) : "-", 6, true), " ",
        Cell(EtaText(eta, 7), 7, true));
    if (curve > 0 && history != nullptr) {
      absl::StrAppend(&line, "  ", Sparkline(Values(*history, &TopHistory::Point::loss), curve - 2, view_.ascii));
    }
    return line;
  }

  void Jobs(int rows) {
    if (rows < 1) return;
    // A curve of the loss in every row, where there is room.
    const int curve = view_.columns >= kWide ? (view_.columns - 80) / 2 : 0;
    // Without colours the selected row has a mark in front.
    const int mark = view_.color ? 0 : 1;
    const int left = 9 + kIdColumns + view_.columns - 80 - curve - mark;
    const int id = std::clamp(UniquePrefix(jobs_, kIdColumns), kIdColumns, std::max(left - 9, kIdColumns));
    const int name = std::max(left - id, 4);
    const std::string gap(static_cast<size_t>(mark), ' ');
    AddReverse(absl::StrCat(gap, Cell("JOB", id), " ", Cell("NAME", name), " ", Cell("STATE", 10), " ",
                            Cell("STEP", 12, true), " ", Cell("LOSS", 8, true), " ", Cell("SCALE", 5, true), " ",
                            Cell("SKIPS", 5, true), " ", Cell("SMPL/S", 6, true), " ", Cell("ETA", 7, true),
                            curve > 0 ? "  LOSS" : ""));
    const size_t room = static_cast<size_t>(rows - 1);
    if (jobs_.empty()) {
      const bool none = state_.answered && state_.jobs.empty();
      if (room > 0) Add(none ? "no jobs; ampctl submit FILE makes one" : "", Color::kGrey);
      for (size_t i = 1; i < room; ++i) Add("");
      return;
    }
    const bool all = jobs_.size() <= room;
    const size_t shown = all || room == 0 ? room : room - 1;
    const size_t first = selected_ < shown ? 0 : selected_ - shown + 1;
    for (size_t i = first; i < jobs_.size() && i < first + shown; ++i) {
      const std::string row = JobRow(*jobs_[i], id, name, curve);
      if (i == selected_) {
        AddReverse(view_.color ? row : ">" + row);
      } else {
        Add(gap + row, ColorOf(jobs_[i]->state()));
      }
    }
    if (!all && room > 0)
      Add(absl::StrCat("  and ", jobs_.size() - std::min(shown, jobs_.size()), " more"), Color::kGrey);
    for (size_t i = jobs_.size(); all && i < room; ++i) Add("");
  }

  void Curve(const std::string& name, const std::vector<double>& values,
             const std::function<std::string(double)>& text) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const double value : values) {
      if (!(value >= -std::numeric_limits<double>::max() && value <= std::numeric_limits<double>::max())) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
    const std::string now = values.empty() ? "-" : text(values.back());
    const std::string range = low <= high ? absl::StrCat(text(low), " to ", text(high)) : "";
    constexpr int kName = 10, kNow = 9, kRange = 20;
    Add(absl::StrCat(Cell(name, kName), " ", Cell(now, kNow, true), "  ",
                     Sparkline(values, view_.columns - kName - kNow - kRange - 5, view_.ascii), "  ", range));
  }

  // What it is, the three curves, what it said last.
  void Detail(int rows) {
    const v1::Job& job = *jobs_[selected_];
    const v1::JobSummary& summary = job.summary();
    const TopHistory* history = HistoryOf(job);
    std::string title =
        absl::StrCat(Clean(job.spec().name()), "  ", job.id(), "  ", ModeText(job), "  ", StateText(job));
    if (!job.devices().empty()) absl::StrAppend(&title, " on ", absl::StrJoin(job.devices(), ", "));
    if (summary.epoch() > 0) absl::StrAppend(&title, "  epoch ", summary.epoch());
    if (summary.has_accuracy()) absl::StrAppend(&title, "  accuracy ", Figure(summary.accuracy()));
    if (summary.has_model_flops_utilization())
      absl::StrAppend(&title, "  MFU ", Percent(summary.model_flops_utilization()));
    AddReverse(title);
    int left = rows - 1;
    if (history != nullptr && left >= 3) {
      Curve("loss", Values(*history, &TopHistory::Point::loss), Figure);
      Curve("loss scale", Values(*history, &TopHistory::Point::scale), Count);
      Curve("samples/s", Values(*history, &TopHistory::Point::samples_per_second), Count);
      left -= 3;
    }
    std::vector<std::string> notes;
    if (job.has_failure())
      notes.push_back(absl::StrCat(v1::Failure::Class_Name(job.failure().class_()), ": ", job.failure().message()));
    if (job.state() == v1::Job::QUEUED && !job.queue_message().empty())
      notes.push_back(absl::StrCat("waits: ", job.queue_message()));
    if (history != nullptr) notes.insert(notes.end(), history->notes().begin(), history->notes().end());
    const size_t room = static_cast<size_t>(std::max(left, 0));
    for (size_t i = notes.size() > room ? notes.size() - room : 0; i < notes.size(); ++i) Add(Clean(notes[i]));
    for (size_t i = notes.size(); i < room; ++i) Add("");
  }

  void Keys() {
    Add(absl::StrCat("q quit   up/down job   e ", view_.ended ? "without" : "with", " jobs that ended   space now"),
        Color::kGrey);
  }

  const TopState& state_;
  const TopView& view_;
  const int rows_;
  const std::vector<const v1::Job*> jobs_;
  size_t selected_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<const v1::Job*> ShownJobs(const TopState& state, const TopView& view) {
  std::vector<const v1::Job*> jobs;
  for (const v1::Job& job : state.jobs) {
    if (view.ended || !IsTerminal(job.state())) jobs.push_back(&job);
  }
  return jobs;
}

std::vector<std::string> TopScreen(const TopState& state, const TopView& view) { return Screen(state, view).Draw(); }

}  // namespace ampd::client
