#include "client/job_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

// A little more than any server takes; the parser names the exact bound.
constexpr size_t kMaxBytes = (4 << 20) + 1;
// Of what --set was given, in a message.
constexpr size_t kShown = 200;

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

}  // namespace

absl::StatusOr<JobFile> JobFile::Read(const std::string& path, const std::vector<std::string>& sets) {
  absl::StatusOr<std::string> text;
  const std::string name = path == "-" ? "<stdin>" : path;
  if (path == "-") {
    text = ReadStream(std::cin, name);
  } else {
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

absl::StatusOr<JobFile> JobFile::Parse(const std::string& text, const std::string& name,
                                       const std::vector<std::string>& sets) {
  JobFile file;
  file.name_ = name;
  file.sets_ = sets;
  if (absl::Status status = ParseYaml(text, name, &file.spec_, &file.lines_); !status.ok()) return status;
  for (const std::string& set : sets) {
    if (absl::Status status = ApplySet(&file.spec_, set); !status.ok()) return status;
  }
  return file;
}

const std::string* JobFile::SetOf(const std::string& path) const {
  for (auto set = sets_.rbegin(); set != sets_.rend(); ++set) {
    if (IsWithin(path, set->substr(0, set->find('=')))) return &*set;
  }
  return nullptr;
}

std::string JobFile::FolderOf(const std::string& path) const { return SetOf(path) == nullptr ? folder_ : "."; }

std::string JobFile::Explain(const FieldViolation& violation) const {
  const std::string what =
      violation.field.empty() ? violation.description : absl::StrCat(violation.field, ": ", violation.description);
  if (const std::string* set = SetOf(violation.field)) return absl::StrCat("--set ", Cut(*set, kShown), ": ", what);
  const int line = lines_.LineOf(violation.field);
  return line == 0 ? absl::StrCat(name_, ": ", what) : absl::StrCat(name_, ":", line, ": ", what);
}

}  // namespace ampd::client
