#include "client/job_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/spec/alternatives.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

// A little more than any server takes; the parser names the exact bound.
constexpr size_t kMaxBytes = (4 << 20) + 1;
// Of what an option was given, in a message.
constexpr size_t kShown = 200;
constexpr char kSet[] = "--set ";

absl::StatusOr<std::string> ReadStream(std::istream& in, const std::string& name) {
  std::string text(kMaxBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return absl::InvalidArgumentError(absl::StrCat(name, ": cannot be read"));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

// Whether the field at `path` is the one at `set`, or lies within it.
bool IsWithin(absl::string_view path, absl::string_view set) {
  return absl::StartsWith(path, set) &&
         (path.size() == set.size() || path[set.size()] == '.' || path[set.size()] == '[');
}

std::string PathOf(const std::string& set) { return set.substr(0, set.find('=')); }

// Of "sweep.list[3].train.epochs" what follows the point, unless the point itself gives that field; else all of it.
absl::string_view WithinPoint(absl::string_view path, const v1::SweepSpec& sweep) {
  absl::string_view rest = path;
  const bool is_grid = absl::ConsumePrefix(&rest, "sweep.grid[");
  if (!is_grid && !absl::ConsumePrefix(&rest, "sweep.list[")) return path;
  const size_t close = rest.find("].");
  int index = 0;
  if (close == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, close), &index)) return path;
  rest.remove_prefix(close + 2);
  const auto gives = [rest](const auto& entry) { return IsWithin(rest, entry.first) || IsWithin(entry.first, rest); };
  if (is_grid) return absl::c_any_of(sweep.grid(), gives) ? path : rest;
  if (index < 0 || index >= sweep.list_size()) return path;
  return absl::c_any_of(sweep.list(index).fields(), gives) ? path : rest;
}

}  // namespace

absl::StatusOr<JobFile> JobFile::Read(const std::string& path, const std::vector<std::string>& sets) {
  absl::StatusOr<std::string> text;
  const std::string name = path == "-" ? "<stdin>" : path;
  if (path == "-") {
    text = ReadStream(std::cin, name);
  } else {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory"));
    }
    std::ifstream file(path, std::ios::binary);
    if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
    text = ReadStream(file, name);
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<JobFile> parsed = Parse(*text, name, sets);
  const size_t slash = path.rfind('/');
  if (parsed.ok() && slash != std::string::npos) parsed->folder_ = slash == 0 ? "/" : path.substr(0, slash);
  return parsed;
}

namespace {

// Whether points have a value at `path`.
bool Sweeps(const v1::SweepSpec& sweep, const std::string& path) {
  return sweep.grid().count(path) > 0 ||
         absl::c_any_of(sweep.list(), [&](const auto& point) { return point.fields().count(path) > 0; });
}

}  // namespace

absl::StatusOr<JobFile> JobFile::Parse(const std::string& text, const std::string& name,
                                       const std::vector<std::string>& sets) {
  JobFile file;
  file.name_ = name;
  if (absl::Status status = ParseYaml(text, name, &file.spec_, &file.lines_); !status.ok()) return status;
  std::vector<std::string> paths;
  for (const std::string& set : sets) {
    if (absl::Status status = ApplySet(&file.spec_, set); !status.ok()) return status;
    file.changes_.push_back({PathOf(set), absl::StrCat(kSet, set)});
    paths.push_back(PathOf(set));
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string excluded = ExcludedBy(paths[i], file.spec_);
    // A point would take its place in turn, without a word.
    if (excluded.empty() || !Sweeps(file.spec_.sweep(), excluded)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(kSet, sets[i], ": the sweep gives ", excluded, ", which excludes it"));
  }
  ClearReplaced(paths, &file.spec_);
  return file;
}

absl::Status JobFile::SetByOption(const std::string& option, const std::string& set) {
  if (const absl::Status status = ApplySet(&spec_, set); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Cut(option, kShown), ": ", absl::StripPrefix(status.message(), kSet)));
  }
  NoteOption(option, PathOf(set));
  return absl::OkStatus();
}

void JobFile::NoteOption(const std::string& option, const std::string& path) { changes_.push_back({path, option}); }

const JobFile::Change* JobFile::ChangeOf(absl::string_view path) const {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    if (IsWithin(path, change->path)) return &*change;
  }
  return nullptr;
}

std::string JobFile::FolderOf(const std::string& path) const { return ChangeOf(path) == nullptr ? folder_ : "."; }

std::string JobFile::Explain(const FieldViolation& violation) const {
  const std::string what =
      violation.field.empty() ? violation.description : absl::StrCat(violation.field, ": ", violation.description);
  if (const Change* change = ChangeOf(WithinPoint(violation.field, spec_.sweep()))) {
    return absl::StrCat(Cut(change->text, kShown), ": ", what);
  }
  const int line = lines_.LineOf(violation.field);
  return line == 0 ? absl::StrCat(name_, ": ", what) : absl::StrCat(name_, ":", line, ": ", what);
}

}  // namespace ampd::client
