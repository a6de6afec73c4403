#include "engine/data/csv.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "engine/core/status.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/path.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"

namespace ampd::data {
namespace {

constexpr size_t kChunk = size_t{1} << 18;
constexpr size_t kMaxField = 4096;
constexpr size_t kMaxFields = size_t{1} << 20;
constexpr int kEnd = -1;
constexpr int kNone = -2;

// What an error quotes of the file, which may hold any bytes.
std::string Shown(absl::string_view text, size_t most) { return ValidUtf8(Cut(text, most)); }

// The columns that are read, by their numbers.
struct ChosenColumns {
  std::vector<size_t> inputs;
  std::vector<size_t> targets;
  // Of class labels, in place of `targets`.
  absl::optional<size_t> label;
  // Of a record.
  size_t fields = 0;
};

// What every record names: its own columns.
class ColumnNames {
 public:
  // `names` is empty where the file has none.
  ColumnNames(std::vector<std::string> names, size_t fields, std::string file)
      : names_(std::move(names)), fields_(fields), file_(std::move(file)) {}

  absl::StatusOr<size_t> Find(absl::string_view field, const std::string& column) const {
    const auto found = std::find(names_.begin(), names_.end(), column);
    if (found != names_.end()) return static_cast<size_t>(found - names_.begin());
    uint64_t number;
    if (absl::SimpleAtoi(column, &number) && number < fields_) return static_cast<size_t>(number);
    std::vector<std::string> some(names_.begin(), names_.begin() + std::min<size_t>(names_.size(), 20));
    for (std::string& name : some) name = Shown(name, 40);
    return absl::InvalidArgumentError(absl::StrCat("csv.", field, ": ", file_, " has no column '", column, "'; ",
                                                   names_.empty() ? absl::StrCat("its columns are 0 to ", fields_ - 1)
                                                                  : "its columns are " + absl::StrJoin(some, ", ")));
  }

 private:
  const std::vector<std::string> names_;
  const size_t fields_;
  const std::string file_;
};

absl::StatusOr<ChosenColumns> Choose(const v1::CsvDataset& spec, const ColumnNames& names, size_t fields) {
  if (spec.label().empty() == spec.targets().empty()) {
    return absl::InvalidArgumentError("csv: needs exactly one of label and targets");
  }
  ChosenColumns chosen;
  chosen.fields = fields;
  std::set<size_t> taken;
  if (!spec.label().empty()) {
    AMPD_ASSIGN_OR_RETURN(chosen.label, names.Find("label", spec.label()));
    taken.insert(*chosen.label);
  }
  for (const std::string& column : spec.targets()) {
    AMPD_ASSIGN_OR_RETURN(const size_t at, names.Find("targets", column));
    chosen.targets.push_back(at);
    taken.insert(at);
  }
  for (const std::string& column : spec.inputs()) {
    AMPD_ASSIGN_OR_RETURN(const size_t at, names.Find("inputs", column));
    if (taken.count(at) > 0) {
      return absl::InvalidArgumentError(absl::StrCat("csv.inputs: '", column, "' is a target, too"));
    }
    chosen.inputs.push_back(at);
  }
  for (size_t i = 0; i < fields && spec.inputs().empty(); ++i) {
    if (taken.count(i) == 0) chosen.inputs.push_back(i);
  }
  if (chosen.inputs.empty()) return absl::InvalidArgumentError("csv: no column is left for the inputs");
  return chosen;
}

std::vector<size_t> ReadBy(const ChosenColumns& chosen) {
  std::vector<size_t> read = chosen.inputs;
  read.insert(read.end(), chosen.targets.begin(), chosen.targets.end());
  if (chosen.label.has_value()) read.push_back(*chosen.label);
  return read;
}

bool IsNumber(const std::string& field) {
  double value;
  return absl::SimpleAtod(field, &value);
}

// Whether the record has a number in each of them, or nothing.
bool AreNumbers(const std::vector<std::string>& record, const ChosenColumns& chosen) {
  const std::vector<size_t> read = ReadBy(chosen);
  return std::all_of(read.begin(), read.end(), [&](size_t at) { return record[at].empty() || IsNumber(record[at]); });
}

// Whether programs write this where a value is missing.
bool IsMissing(absl::string_view field) {
  static const auto* const words =
      new std::set<std::string>{"", "?", "-", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"};
  return words->count(absl::AsciiStrToLower(absl::StripAsciiWhitespace(field))) > 0;
}

// Whether the record has a number in one of them at least, and in the others nothing but marks of missing values.
bool MayLackValues(const std::vector<std::string>& record, const ChosenColumns& chosen) {
  const std::vector<size_t> read = ReadBy(chosen);
  const auto is_number = [&](size_t at) { return IsNumber(record[at]); };
  return std::any_of(read.begin(), read.end(), is_number) &&
         std::all_of(read.begin(), read.end(), [&](size_t at) { return is_number(at) || IsMissing(record[at]); });
}

// Whether the record counts from 0, from the second field on where the first is no number, as pandas names columns that
// have no names.
bool Counts(const std::vector<std::string>& record) {
  const size_t begin = IsNumber(record[0]) ? 0 : 1;
  if (record.size() < begin + 3) return false;
  for (size_t i = begin; i < record.size(); ++i) {
    if (record[i] != absl::StrCat(i - begin)) return false;
  }
  return true;
}

// Whether what is read of the record, three numbers at least, goes up or down in even steps, as years and wavelengths
// do that name columns.
bool StepsEvenly(const std::vector<std::string>& record, const ChosenColumns& chosen) {
  const std::vector<size_t> columns = ReadBy(chosen);
  const std::set<size_t> read(columns.begin(), columns.end());
  std::vector<double> steps;
  double last = 0;
  for (const size_t at : read) {
    double value;
    if (!absl::SimpleAtod(record[at], &value)) return false;
    if (at != *read.begin()) steps.push_back(value - last);
    last = value;
  }
  const auto is_even = [&](double step) { return std::abs(step - steps[0]) <= 1e-6 * std::abs(steps[0]); };
  return steps.size() >= 2 && steps[0] != 0 && std::all_of(steps.begin(), steps.end(), is_even);
}

// Whether the record has all columns that `spec` names, none twice, and text, or like an index nothing in the first
// place.
bool HasNames(const v1::CsvDataset& spec, const std::vector<std::string>& record) {
  const std::set<absl::string_view> fields(record.begin(), record.end());
  const auto is_name = [&](const std::string& column) { return fields.count(column) > 0; };
  const auto is_text = [](const std::string& field) { return !field.empty() && !IsNumber(field); };
  return fields.size() == record.size() && (record[0].empty() || std::any_of(record.begin(), record.end(), is_text)) &&
         std::all_of(spec.inputs().begin(), spec.inputs().end(), is_name) &&
         std::all_of(spec.targets().begin(), spec.targets().end(), is_name) &&
         (spec.label().empty() || is_name(spec.label()));
}

absl::StatusOr<ChosenColumns> ChooseByNumber(const v1::CsvDataset& spec, const std::vector<std::string>& first) {
  return Choose(spec, ColumnNames({}, first.size(), spec.path()), first.size());
}

absl::StatusOr<ChosenColumns> ChooseByName(const v1::CsvDataset& spec, const std::vector<std::string>& first) {
  AMPD_ASSIGN_OR_RETURN(ChosenColumns named, Choose(spec, ColumnNames(first, first.size(), spec.path()), first.size()));
  if (spec.inputs().empty() && first[0].empty() && named.inputs[0] == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("csv.inputs: column 0 of ", spec.path(),
                     " has no name, as an index of the rows that pandas wrote; name those that are to be read"));
  }
  return named;
}

// Whether the first record names the columns, by itself. Columns that are not read may hold text.
absl::StatusOr<bool> FindHeader(const v1::CsvDataset& spec, const std::vector<std::string>& first) {
  const absl::StatusOr<ChosenColumns> numbered = ChooseByNumber(spec, first);
  const bool all_numbers =
      std::all_of(first.begin(), first.end(), [](const std::string& f) { return f.empty() || IsNumber(f); });
  const bool sample = all_numbers || (numbered.ok() && AreNumbers(first, *numbered));
  const bool lacks_values = !sample && numbered.ok() && MayLackValues(first, *numbered);
  if (!sample && !lacks_values) return true;
  if (lacks_values || Counts(first) || HasNames(spec, first) || (!all_numbers && StepsEvenly(first, *numbered))) {
    std::vector<std::string> some(first.begin(), first.begin() + std::min<size_t>(first.size(), 8));
    for (std::string& field : some) field = Shown(field, 20);
    if (some.size() < first.size()) some.push_back("...");
    return absl::InvalidArgumentError(absl::StrCat("csv.header: the first record of ", spec.path(), ", '",
                                                   absl::StrJoin(some, ","),
                                                   "', may be names or a sample: PRESENT or ABSENT says which"));
  }
  // Numbers alone name nothing.
  AMPD_RETURN_IF_ERROR(numbered.status());
  return false;
}

// The columns to read, and whether the first record names them.
absl::StatusOr<std::pair<ChosenColumns, bool>> ChooseBy(const v1::CsvDataset& spec,
                                                        const std::vector<std::string>& first) {
  bool named = spec.header() == v1::CsvDataset::PRESENT;
  if (spec.header() == v1::CsvDataset::HEADER_UNSPECIFIED) {
    AMPD_ASSIGN_OR_RETURN(named, FindHeader(spec, first));
  }
  AMPD_ASSIGN_OR_RETURN(ChosenColumns chosen, named ? ChooseByName(spec, first) : ChooseByNumber(spec, first));
  return std::pair(std::move(chosen), named);
}

// Fills columns record by record.
class Table {
 public:
  // `names`: of all columns; empty where they have none. `keep`: the values, rather than what describes them.
  Table(std::string name, ChosenColumns chosen, const std::vector<std::string>& names, bool keep)
      : name_(std::move(name)), chosen_(std::move(chosen)), keep_(keep) {
    columns_.info.name = name_;
    for (size_t i = 0; i < chosen_.inputs.size() && !names.empty(); ++i) {
      columns_.info.input_names.push_back(names[chosen_.inputs[i]]);
    }
    for (size_t i = 0; i < chosen_.targets.size() && !names.empty(); ++i) {
      columns_.info.target_names.push_back(names[chosen_.targets[i]]);
    }
    if (chosen_.label.has_value() && !names.empty()) columns_.info.target_names.push_back(names[*chosen_.label]);
    columns_.info.input_shape = {static_cast<int64_t>(chosen_.inputs.size())};
    columns_.info.target_kind = chosen_.label.has_value() ? TargetKind::kClass : TargetKind::kFloat;
    columns_.info.target_features = static_cast<int64_t>(chosen_.targets.size());
  }

  absl::Status Add(const std::vector<std::string>& fields, int64_t line) {
    line_ = line;
    if (fields.size() != chosen_.fields) {
      return Bad(absl::StrCat(fields.size(), " fields where the first record has ", chosen_.fields));
    }
    for (size_t at : chosen_.inputs) AMPD_RETURN_IF_ERROR(AddNumber(fields[at], at, columns_.floats));
    for (size_t at : chosen_.targets) AMPD_RETURN_IF_ERROR(AddNumber(fields[at], at, columns_.targets));
    if (chosen_.label.has_value()) AMPD_RETURN_IF_ERROR(AddLabel(fields[*chosen_.label]));
    ++columns_.info.size;
    return CheckMemory();
  }

  absl::StatusOr<Columns> Finish() && {
    if (columns_.info.size == 0) return absl::DataLossError(absl::StrCat(name_, ": holds no records"));
    if (chosen_.label.has_value()) {
      columns_.info.classes = highest_ + 1;
      columns_.info.other_classes = second_ + 1;
    }
    return std::move(columns_);
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(name_, ", line ", line_, ": ", what));
  }

  absl::StatusOr<double> Number(const std::string& field, size_t column) const {
    double value;
    if (absl::SimpleAtod(field, &value)) return value;
    return Bad(absl::StrCat("'", Shown(field, 40), "' in column ", column, " is no number"));
  }

  absl::Status AddNumber(const std::string& field, size_t column, std::vector<float>& values) {
    AMPD_ASSIGN_OR_RETURN(const double value, Number(field, column));
    if (!keep_) return absl::OkStatus();
    values.push_back(static_cast<float>(value));
    if (!std::isfinite(values.back())) columns_.non_finite.push_back({columns_.info.size, value, name_});
    return absl::OkStatus();
  }

  absl::Status AddLabel(const std::string& field) {
    AMPD_ASSIGN_OR_RETURN(const double value, Number(field, *chosen_.label));
    if (!(value >= 0 && value < static_cast<double>(kMaxClasses)) || value != std::floor(value)) {
      return Bad(
          absl::StrCat("label ", Shown(field, 40), "; class labels are whole numbers from 0 to ", kMaxClasses - 1));
    }
    const auto label = static_cast<int64_t>(value);
    if (label != highest_) second_ = std::max(second_, std::min(label, highest_));
    highest_ = std::max(highest_, label);
    if (keep_) columns_.labels.push_back(static_cast<int32_t>(value));
    return absl::OkStatus();
  }

  // How much there will be, only the end of the file tells.
  absl::Status CheckMemory() const {
    const uint64_t values = columns_.floats.size() + columns_.targets.size() + columns_.labels.size();
    if (values * sizeof(float) < memory_) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ": does not fit this machine's memory of ", memory_, " bytes"));
  }

  const std::string name_;
  const ChosenColumns chosen_;
  const bool keep_;
  const uint64_t memory_ = PhysicalMemory();
  Columns columns_;
  // Of different labels.
  int64_t highest_ = -1;
  int64_t second_ = -1;
  int64_t line_ = 0;
};

absl::StatusOr<Columns> ReadColumns(const v1::CsvDataset& spec, absl::Span<const std::string> roots, bool keep) {
  AMPD_ASSIGN_OR_RETURN(auto file, OpenBeneath(spec.path(), roots));
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, OpenMaybeGzip(std::move(file)));
  if (spec.delimiter().size() > 1 || spec.delimiter() == "\"" || spec.delimiter() == "\n" || spec.delimiter() == "\r") {
    return absl::InvalidArgumentError("csv.delimiter: one character, no quote and no line end");
  }
  CsvReader reader(*source, spec.delimiter().empty() ? ',' : spec.delimiter()[0]);
  std::vector<std::string> fields;
  AMPD_ASSIGN_OR_RETURN(bool more, reader.Next(fields));
  if (!more) return absl::DataLossError(absl::StrCat(spec.path(), ": is empty"));
  AMPD_ASSIGN_OR_RETURN(auto choice, ChooseBy(spec, fields));
  auto& [chosen, named] = choice;
  Table table(spec.path(), std::move(chosen), named ? fields : std::vector<std::string>(), keep);
  if (named) {
    AMPD_ASSIGN_OR_RETURN(more, reader.Next(fields));
  }
  while (more) {
    AMPD_RETURN_IF_ERROR(table.Add(fields, reader.line()));
    AMPD_ASSIGN_OR_RETURN(more, reader.Next(fields));
  }
  return std::move(table).Finish();
}

}  // namespace

absl::StatusOr<int> CsvReader::Take() {
  if (pushed_back_ != kNone) return std::exchange(pushed_back_, kNone);
  if (at_ == buffer_.size()) {
    buffer_.resize(kChunk);
    AMPD_ASSIGN_OR_RETURN(const size_t n, source_.Read(absl::MakeSpan(buffer_)));
    buffer_.resize(n);
    at_ = 0;
    if (n == 0) return kEnd;
  }
  const int c = buffer_[at_++];
  if (c == '\n') ++line_;
  return c;
}

absl::Status CsvReader::Bad(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(source_.name(), ", line ", record_line_, ": ", what));
}

absl::Status CsvReader::Add(char c, std::string& field) const {
  if (field.size() == kMaxField) return Bad(absl::StrCat("a field of more than ", kMaxField, " bytes"));
  field.push_back(c);
  return absl::OkStatus();
}

// After the opening quote, to behind the closing one.
absl::Status CsvReader::ReadQuoted(std::string& field) {
  while (true) {
    AMPD_ASSIGN_OR_RETURN(int c, Take());
    if (c == kEnd) return Bad("a quote is never closed");
    if (c == '"') {
      AMPD_ASSIGN_OR_RETURN(c, Take());
      if (c != '"') {
        pushed_back_ = c;
        return absl::OkStatus();
      }
    }
    AMPD_RETURN_IF_ERROR(Add(static_cast<char>(c), field));
  }
}

// What ended the field: the delimiter, or '\n' for the end of the record.
absl::StatusOr<char> CsvReader::ReadField(std::string& field) {
  field.clear();
  bool quoted = false;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(int c, Take());
    if (c == '\r') {
      AMPD_ASSIGN_OR_RETURN(c, Take());
      if (c != '\n' && c != kEnd) return Bad("a carriage return that ends no line");
    }
    if (c == kEnd || c == '\n') return '\n';
    if (c == static_cast<unsigned char>(delimiter_)) return delimiter_;
    if (c == '"' && field.empty() && !quoted) {
      quoted = true;
      AMPD_RETURN_IF_ERROR(ReadQuoted(field));
    } else if (c == '"' || quoted) {
      return Bad("a quote amid a field");
    } else {
      AMPD_RETURN_IF_ERROR(Add(static_cast<char>(c), field));
    }
  }
}

// A byte order mark of UTF-8 is passed over.
absl::StatusOr<int> CsvReader::TakeFirst() {
  AMPD_ASSIGN_OR_RETURN(const int c, Take());
  const int next = at_ < buffer_.size() ? buffer_[at_] : kEnd;
  if ((c == 0xff && next == 0xfe) || (c == 0xfe && next == 0xff)) {
    return absl::DataLossError(absl::StrCat(source_.name(), ": is UTF-16 text; save it as UTF-8"));
  }
  if (c != 0xef) return c;
  AMPD_ASSIGN_OR_RETURN(const int second, Take());
  AMPD_ASSIGN_OR_RETURN(const int third, Take());
  if (second != 0xbb || third != 0xbf) return Bad("a byte that begins no text");
  return Take();
}

absl::StatusOr<bool> CsvReader::Next(std::vector<std::string>& fields) {
  int c = '\n';
  while (c == '\n' || c == '\r') {
    AMPD_ASSIGN_OR_RETURN(c, std::exchange(started_, true) ? Take() : TakeFirst());
  }
  fields.clear();
  if (c == kEnd) return false;
  pushed_back_ = c;
  record_line_ = line_;
  std::string field;
  char end = delimiter_;
  while (end == delimiter_) {
    if (fields.size() == kMaxFields) return Bad(absl::StrCat("more than ", kMaxFields, " fields"));
    AMPD_ASSIGN_OR_RETURN(end, ReadField(field));
    fields.push_back(field);
  }
  return true;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::CsvDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(Columns columns, ReadColumns(spec, roots, /*keep=*/true));
  return MakeMemoryDataset(std::move(columns), limit);
}

absl::StatusOr<DatasetInfo> DescribeCsv(const v1::CsvDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(Columns columns, ReadColumns(spec, roots, /*keep=*/false));
  return std::move(columns.info);
}

}  // namespace ampd::data
