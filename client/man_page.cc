#include "client/man_page.h"

#include <CLI/CLI.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/help.h"

namespace ampd::client {
namespace {

constexpr char kExitStatus[] =
    "0|All went well; the job that was followed succeeded.\n"
    "1|The job failed, or what was asked for could not be done.\n"
    "2|Wrong usage, a bad job file, an unknown job.\n"
    "3|The job was cancelled.\n"
    "4|The server could not be reached, or did not answer in time.\n"
    "5|Not authorised.\n"
    "124|The time of \"wait --timeout\" ran out.\n"
    "130|Interrupted; a job that was followed continues.";

constexpr char kEnvironment[] =
    "AMPCTL_CONFIG|The file with the contexts; default ~/.config/ampctl/config.yaml.\n"
    "AMPCTL_CONTEXT|The context that holds where --context names none.\n"
    "AMPD_TOKEN|The token to show, in place of the context's.\n"
    "AMPD_TOKEN_FILE|A file that holds it.\n"
    "NO_COLOR|Set to anything, no colours are used. They never are where output is no terminal.";

// Text within a line.
std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}, {"`", "\\(ga"}, {"^", "\\(ha"}, {"~", "\\(ti"}});
}

std::string Bold(absl::string_view text) { return absl::StrCat("\\fB", Escaped(text), "\\fR"); }
std::string Italic(absl::string_view text) { return absl::StrCat("\\fI", Escaped(text), "\\fR"); }

class Page {
 public:
  void Macro(const std::string& line) { absl::StrAppend(&text_, line, "\n"); }

  void Heading(const std::string& macro, const std::string& title) { Macro(absl::StrCat(macro, " \"", title, "\"")); }

  // A line that begins with a dot is a macro, unless something stands before it.
  void Line(const std::string& line) {
    if (line.empty()) return;
    absl::StrAppend(&text_, line[0] == '.' ? "\\&" : "", line, "\n");
  }

  // Lines of two spaces and more stand as they are; "Example:" begins a paragraph. After a macro that does so itself.
  void Prose(const std::string& text) {
    bool open = false, fresh = true;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const bool verbatim = absl::StartsWith(line, "  ");
      if (verbatim != open) Macro(verbatim ? ".RS 4\n.nf" : ".fi\n.RE\n.PP");
      fresh = fresh || (open && !verbatim);
      open = verbatim;
      if ((line == "Example:" || line == "Examples:") && !fresh) Macro(".PP");
      Line(Escaped(verbatim ? line.substr(2) : line));
      fresh = false;
    }
    if (open) Macro(".fi\n.RE");
  }

  void Entry(const std::string& tag, const std::string& text) {
    Macro(".TP");
    Line(tag);
    Line(text);
  }

  // "name|text" a line.
  void Table(absl::string_view rows) {
    for (const absl::string_view row : absl::StrSplit(rows, '\n')) {
      const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(row, absl::MaxSplits('|', 1));
      Entry(Bold(parts.first), Escaped(parts.second));
    }
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string OptionTag(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(Bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(Bold("--" + name));
  const std::string value = ValueName(option);
  return absl::StrCat(absl::StrJoin(names, ", "), value.empty() ? "" : " ", value.empty() ? "" : Italic(value));
}

void Options(const CLI::App& app, Page* page) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty() || option == app.get_help_ptr()) continue;
    if (option->get_positional()) {
      page->Entry(Italic(option->get_name(true, false)), Escaped(OptionText(*option)));
    } else {
      page->Entry(OptionTag(*option), Escaped(OptionText(*option)));
    }
  }
}

// "submit FILE [options]".
std::string Synopsis(const std::string& name, const CLI::App& app) {
  std::string line = Bold(name);
  bool options = false;
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr()) continue;
    if (!option->get_positional()) {
      options = true;
      continue;
    }
    const std::string value = Italic(option->get_name(true, false));
    const char* many = option->get_items_expected_max() > 1 ? "..." : "";
    absl::StrAppend(&line, " ", option->get_required() ? "" : "[", value, many, option->get_required() ? "" : "]");
  }
  return line + (options ? " [\\fIoptions\\fR]" : "");
}

void Verb(const std::string& name, const CLI::App& app, Page* page) {
  if (app.get_group().empty()) return;
  const std::vector<const CLI::App*> inner = app.get_subcommands([](const CLI::App*) { return true; });
  page->Heading(".SS", Synopsis(name, app));
  page->Line(Escaped(app.get_description()) + ".");
  Options(app, page);
  if (!app.get_footer().empty()) {
    page->Macro(".PP");
    page->Prose(app.get_footer());
  }
  for (const CLI::App* verb : inner) Verb(absl::StrCat(name, " ", verb->get_name()), *verb, page);
}

}  // namespace

std::string ManPage(const CLI::App& app) {
  Page page;
  page.Macro(absl::StrCat(".TH AMPCTL 1 \"\" \"ampd ", AMPD_VERSION, "\" \"User Commands\""));
  // No words broken, and the right margin left alone.
  page.Macro(".nh\n.ad l");
  page.Heading(".SH", "NAME");
  page.Line("ampctl \\- " + Escaped("submits training jobs to ampd, watches them and fetches what they learned"));
  page.Heading(".SH", "SYNOPSIS");
  page.Line("\\fBampctl\\fR [\\fIoptions\\fR] \\fIverb\\fR [\\fIarguments\\fR]");
  page.Heading(".SH", "DESCRIPTION");
  page.Line(Escaped(app.get_description()));
  page.Line(Escaped("A JOB is a job's id, or a prefix of at least 4 characters that no other job's id has."));
  page.Heading(".SH", "OPTIONS");
  page.Line(Escaped("These may stand anywhere on the command line."));
  Options(app, &page);
  page.Heading(".SH", "VERBS");
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    Verb(verb->get_name(), *verb, &page);
  }
  page.Heading(".SH", "EXIT STATUS");
  page.Table(kExitStatus);
  page.Heading(".SH", "ENVIRONMENT");
  page.Table(kEnvironment);
  page.Heading(".SH", "FILES");
  page.Entry("\\fI~/.config/ampctl/config.yaml\\fR", "The contexts; of mode 0600 where a token is in it.");
  return page.text();
}

}  // namespace ampd::client
