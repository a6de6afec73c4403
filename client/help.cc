#include "client/help.h"

#include <CLI/CLI.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ampd::client {
namespace {

constexpr size_t kColumns = 80;
// Where what options and verbs do begins.
constexpr size_t kOptionText = 26;
constexpr size_t kVerbText = 15;

// "  NAME   what it does", the name on a line of its own where it is long.
std::string Entry(const std::string& name, const std::string& text, size_t column) {
  std::string line = absl::StrCat("  ", name);
  if (line.size() + 2 > column) {
    absl::StrAppend(&line, "\n");
    line.append(column, ' ');
  } else {
    line.append(column - line.size(), ' ');
  }
  return absl::StrCat(line, Wrapped(text, kColumns - column, column), "\n");
}

// Lines that begin with two spaces, and headings before them, stand as they are; the others are prose.
std::string Prose(const std::string& text) {
  std::string out, paragraph;
  const auto end = [&] {
    if (!paragraph.empty()) absl::StrAppend(&out, Wrapped(paragraph, kColumns, 0), "\n");
    paragraph.clear();
  };
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, "  ") || absl::EndsWith(line, ":")) {
      end();
      absl::StrAppend(&out, line, "\n");
    } else {
      absl::StrAppend(&paragraph, paragraph.empty() ? "" : " ", line);
    }
  }
  end();
  return out;
}

// What stays together: "[env: AMPD_KEY]" is one word.
std::vector<std::string> Words(absl::string_view text) {
  std::vector<std::string> words;
  for (const absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool inside = !words.empty() && (words.back() == "[env:" || words.back() == "[default:");
    if (inside) {
      absl::StrAppend(&words.back(), " ", part);
    } else {
      words.emplace_back(part);
    }
  }
  return words;
}

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    label("OPTIONS", "options");
    label("SUBCOMMAND", "VERB");
    label("Positionals", "Arguments");
  }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    return Entry(positional ? option->get_name(true, false) : Names(*option), OptionText(*option), kOptionText);
  }

  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    std::string out;
    for (const CLI::App* verb : app->get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
      absl::StrAppend(&out, out.empty() ? "\nVerbs:\n" : "",
                      Entry(verb->get_name(), verb->get_description(), kVerbText));
    }
    return out;
  }

  std::string make_description(const CLI::App* app) const override {
    return Wrapped(app->get_description(), kColumns, 0) + "\n";
  }

  std::string make_footer(const CLI::App* app) const override {
    const char* const more = app->get_parent() == nullptr ? "" : "\nOptions of all verbs: ampctl --help\n";
    return absl::StrCat(Prose(app->get_footer()), more);
  }

 private:
  static std::string Names(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
    const std::string value = ValueName(option);
    return absl::StrCat(absl::StrJoin(names, ", "), value.empty() ? "" : " ", value);
  }
};

}  // namespace

std::string ValueName(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  // CLI11 writes what is checked behind a colon: "N:INT in [1 - 64]", "FORMAT:{table,json}".
  std::string name = option.get_type_name();
  for (const char* check : {":{", ":INT in [", ":UINT in [", ":FLOAT in ["}) name = name.substr(0, name.find(check));
  if (name == "INT" || name == "UINT" || name == "FLOAT") return "N";
  return name.empty() || name == "TEXT" || name == "ENUM" ? "VALUE" : name;
}

std::string OptionText(const CLI::Option& option) {
  std::string text = option.get_description();
  if (option.get_required() && !option.get_positional()) text += " [required]";
  if (!option.get_default_str().empty()) absl::StrAppend(&text, " [default: ", option.get_default_str(), "]");
  if (!option.get_envname().empty()) absl::StrAppend(&text, " [env: ", option.get_envname(), "]");
  return text;
}

std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter() { return std::make_shared<HelpFormatter>(); }

std::string Wrapped(absl::string_view text, size_t columns, size_t indent) {
  std::string out;
  size_t column = 0;
  for (const std::string& word : Words(text)) {
    if (column > 0 && column + 1 + word.size() > columns) {
      absl::StrAppend(&out, "\n");
      out.append(indent, ' ');
      column = 0;
    } else if (column > 0) {
      out += " ";
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

}  // namespace ampd::client
