#include "client/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/access.h"
#include "client/commands/command.h"
#include "client/completion/complete.h"
#include "client/completion/scripts.h"
#include "client/completion/values.h"
#include "client/exit_code.h"
#include "client/help.h"
#include "client/output/color.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

const std::map<std::string, Format> kFormats = {
    {"table", Format::kTable}, {"json", Format::kJson}, {"jsonl", Format::kJsonl}, {"yaml", Format::kYaml}};

void AddGlobalOptions(CLI::App* app, CommandContext* context) {
  AddAccessOptions(app, &context->server);
  app->add_option_function<std::string>(
         "-o,--output",
         [context](const std::string& name) { context->format = kFormats.at(CLI::detail::to_lower(name)); },
         "table (default), json, jsonl or yaml")
      ->check(CLI::IsMember({"table", "json", "jsonl", "yaml"}, CLI::ignore_case))
      ->type_name("FORMAT");
  app->set_version_flag("--version", "ampctl " AMPD_VERSION);
}

void AddVerbs(CLI::App* app, CommandContext* context) {
  AddSubmit(app, context);
  AddPlan(app, context);
  AddProfile(app, context);
  AddWatch(app, context);
  AddLogs(app, context);
  AddWait(app, context);
  AddGet(app, context);
  AddList(app, context);
  AddTop(app, context);
  AddBench(app, context);
  AddCancel(app, context);
  AddPause(app, context);
  AddResume(app, context);
  AddRetry(app, context);
  AddUpdate(app, context);
  AddCheckpoint(app, context);
  AddCheckpoints(app, context);
  AddSweep(app, context);
  AddSweeps(app, context);
  AddDatasets(app, context);
  AddDevices(app, context);
  AddDrain(app, context);
  AddUndrain(app, context);
  AddTokens(app, context);
  AddDownload(app, context);
  AddArtifacts(app, context);
  AddWhy(app, context);
  AddCost(app, context);
  AddHistogram(app, context);
  AddDiff(app, context);
  AddInit(app, context);
  AddContexts(app, context);
  AddCompletion(app, context);
  AddMan(app, context);
  AddSchema(app, context);
  AddVersion(app, context);
}

// What shells ask: not for people, and not parsed as their commands are.
int RunComplete(const CLI::App& app, std::vector<std::string> words, std::ostream* out) {
  *out << CompletionText(Complete(app, words, FindValues)) << std::flush;
  return kExitSucceeded;
}

// The command that was parsed, with those around it.
const CLI::App* Innermost(const CLI::App& app, std::string* name) {
  const CLI::App* at = &app;
  *name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    absl::StrAppend(name, " ", at->get_name());
  }
  return at;
}

// Commands of ours that other programs call by these names.
const std::map<std::string, std::string> kSynonyms = {
    {"kill", "cancel"},    {"ps", "list"},  {"queue", "list"},  {"run", "submit"}, {"sbatch", "submit"},
    {"scancel", "cancel"}, {"show", "get"}, {"squeue", "list"}, {"status", "get"}, {"stop", "cancel"}};

std::string MeantVerb(const std::string& word, const CLI::App* at, const std::vector<std::string>& verbs) {
  const auto synonym = kSynonyms.find(word);
  const bool is_known = at->get_parent() == nullptr && synonym != kSynonyms.end();
  return is_known ? absl::StrCat("; did you mean ", synonym->second, "?") : DidYouMean(word, verbs);
}

std::string MeantOption(const std::string& option, const CLI::App* at, const std::vector<std::string>& options) {
  const bool is_version = at->get_parent() == nullptr && (option == "-v" || option == "-V");
  return is_version ? "; did you mean --version?" : DidYouMean(option, options);
}

// Where a command is missing and a word stands that is none: what to say of it; else empty.
std::string UnknownVerb(const CLI::App& app) {
  std::string name;
  const CLI::App* at = Innermost(app, &name);
  std::vector<std::string> verbs;
  for (const CLI::App* verb : at->get_subcommands([](const CLI::App*) { return true; })) {
    verbs.push_back(verb->get_name());
  }
  for (const std::string& word : app.remaining(true)) {
    if (absl::StartsWith(word, "-")) continue;
    return absl::StrCat(name, " has no command ", Quoted(word), MeantVerb(word, at, verbs));
  }
  return "";
}

// Where a word stands that looks like an option and is none: what to say of it; else empty.
std::string UnknownOption(const CLI::App& app) {
  std::string name;
  const CLI::App* at = Innermost(app, &name);
  std::vector<std::string> options;
  for (const CLI::App* part = at; part != nullptr; part = part->get_parent()) {
    for (const CLI::Option* option : part->get_options()) {
      for (const std::string& known : option->get_lnames()) options.push_back("--" + known);
    }
  }
  for (const std::string& word : app.remaining(true)) {
    const std::string option = word.substr(0, word.find('='));
    if (option.size() < 2 || option[0] != '-') continue;
    return absl::StrCat(name, " has no option ", Quoted(option), MeantOption(option, at, options));
  }
  return "";
}

// "help submit" as "submit --help".
std::vector<std::string> Arguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  }
  // As CLI11 wants them.
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

}  // namespace

void AddProgram(CLI::App* app, CommandContext* context) {
  // Before the verbs, which inherit it.
  app->formatter(MakeHelpFormatter());
  app->require_subcommand(1);
  app->fallthrough();
  AddGlobalOptions(app, context);
  AddVerbs(app, context);
  app->footer(
      "Times are local (TZ), those of -o json, jsonl and yaml UTC.\n"
      "Exit codes: 0 succeeded, 1 job or call failed, 2 usage or bad spec, 3 cancelled, 4 server unreachable, 5 not "
      "authorised, 124 the time of wait ran out, 130 interrupted.\nExample:\n  ampctl init job.yaml && ampctl submit "
      "job.yaml --watch");
}

int RunProgram(int argc, const char* const* argv, std::ostream* out, std::ostream* err, bool terminal) {
  CommandContext context;
  context.out = out;
  context.err = err;
  context.terminal = terminal;
  // Once, however many connections a verb opens.
  context.server.warn = [err, warned = false](const std::string& text) mutable {
    if (!std::exchange(warned, true)) *err << "ampctl: warning: " << text << std::endl;
  };
  context.color = terminal && ColorsAreWanted();
  CLI::App app("Submits training jobs to ampd, watches them and fetches their checkpoints.", "ampctl");
  AddProgram(&app, &context);
  if (argc > 1 && std::string(argv[1]) == kCompleteVerb) return RunComplete(app, {argv + 2, argv + argc}, out);
  try {
    app.parse(Arguments(argc, argv));
  } catch (const CLI::RequiredError& e) {
    std::string unknown = UnknownVerb(app);
    if (unknown.empty()) unknown = UnknownOption(app);
    if (unknown.empty()) return app.exit(e, *out, *err) == 0 ? kExitSucceeded : kExitUsage;
    *err << unknown << "\nRun with --help for more information." << std::endl;
    return kExitUsage;
  } catch (const CLI::ExtrasError& e) {
    const std::string unknown = UnknownOption(app);
    if (unknown.empty()) return app.exit(e, *out, *err) == 0 ? kExitSucceeded : kExitUsage;
    *err << unknown << "\nRun with --help for more information." << std::endl;
    return kExitUsage;
  } catch (const CLI::ParseError& e) {
    // Help for what there is not.
    const std::string unknown = argc > 1 && std::string(argv[1]) == "help" ? UnknownVerb(app) : "";
    if (!unknown.empty()) {
      *err << unknown << "\nRun with --help for more information." << std::endl;
      return kExitUsage;
    }
    return app.exit(e, *out, *err) == 0 ? kExitSucceeded : kExitUsage;
  }
  return context.exit_code;
}

}  // namespace ampd::client
