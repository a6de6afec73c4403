#include "client/completion/complete.h"

#include <CLI/CLI.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ampd::client {
namespace {

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// "FILE" of "FILE:INT in [1 - 64]".
std::string KindOf(const CLI::Option& option) {
  const std::string kind = option.get_positional() ? option.get_name(true, false) : option.get_type_name();
  return kind.substr(0, kind.find(':'));
}

// The members of "TEXT:{table,json}", which is how CLI11 tells of them.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return absl::StrSplit(type.substr(open + 1, close - open - 1), ',', absl::SkipEmpty());
}

class Completer {
 public:
  Completer(const CLI::App& app, const std::function<std::vector<Candidate>(const ValueQuery&)>& values)
      : root_(app), app_(&app), values_(values) {}

  Completion Run(const std::vector<std::string>& words) {
    for (size_t i = 0; i + 1 < words.size(); ++i) Pass(words[i]);
    const std::string prefix = words.empty() ? "" : words.back();
    if (pending_ != nullptr) {
      AddValues(*pending_, prefix, "");
    } else if (!only_values_ && absl::StartsWith(prefix, "--") && prefix.find('=') != std::string::npos) {
      AddAttached(prefix);
    } else if (!only_values_ && absl::StartsWith(prefix, "-")) {
      AddOptions(prefix);
    } else if (!AddVerbs(prefix)) {
      AddPositional(prefix);
    }
    return std::move(result_);
  }

 private:
  // Options of the verb come before those of the verbs around it.
  const CLI::Option* Find(const std::string& name) const {
    for (const CLI::App* app = app_; app != nullptr; app = app->get_parent()) {
      if (const CLI::Option* option = app->get_option_no_throw(name); option != nullptr && !option->get_positional()) {
        return option;
      }
    }
    return nullptr;
  }
  const CLI::App* FindVerb(const std::string& name) const {
    const std::vector<const CLI::App*> found =
        app_->get_subcommands([&name](const CLI::App* verb) { return verb->check_name(name); });
    return found.empty() ? nullptr : found[0];
  }
  bool IsGlobal(const CLI::Option& option) const { return root_.get_option_no_throw(option.get_name()) == &option; }

  void Pass(const std::string& word) {
    if (pending_ != nullptr) {
      if (IsGlobal(*pending_)) query_.globals.push_back(word);
      pending_ = nullptr;
    } else if (word == "--") {
      only_values_ = true;
    } else if (!only_values_ && word.size() > 1 && word[0] == '-') {
      PassOption(word);
    } else if (const CLI::App* verb = only_values_ ? nullptr : FindVerb(word); verb != nullptr) {
      app_ = verb;
      absl::StrAppend(&query_.verb, query_.verb.empty() ? "" : " ", word);
    } else {
      query_.values.push_back(word);
    }
  }

  void PassOption(const std::string& word) {
    const size_t equals = word.find('=');
    const CLI::Option* option = Find(word.substr(0, equals));
    if (option == nullptr) return;
    if (IsGlobal(*option)) query_.globals.push_back(word);
    if (equals == std::string::npos && TakesValue(*option)) pending_ = option;
  }

  void Add(const std::string& prefix, const std::string& value, const std::string& description) {
    if (absl::StartsWith(value, prefix) && added_.insert(value).second) {
      // The first paragraph's first sentence would do; one line must.
      result_.candidates.push_back({value, description.substr(0, description.find('\n'))});
    }
  }

  void AddValues(const CLI::Option& option, const std::string& prefix, const std::string& before) {
    for (const std::string& choice : ChoicesOf(option)) Add(before + prefix, before + choice, "");
    if (!result_.candidates.empty()) return;
    query_.kind = KindOf(option);
    query_.prefix = prefix;
    if (query_.kind == "FILE" || query_.kind == "PATH" || query_.kind == "DIR" || query_.kind == "FILE|JOB") {
      result_.files = true;
    }
    for (const Candidate& candidate : values_(query_)) {
      Add(before + prefix, before + candidate.value, candidate.description);
    }
    // A path of fields, say, that is not at its end.
    result_.open = !result_.candidates.empty();
    for (const Candidate& candidate : result_.candidates) {
      const char end = candidate.value.empty() ? ' ' : candidate.value.back();
      result_.open = result_.open && (end == '.' || end == '=');
    }
  }

  // "--name=val".
  void AddAttached(const std::string& word) {
    const size_t equals = word.find('=');
    const CLI::Option* option = Find(word.substr(0, equals));
    if (option != nullptr && TakesValue(*option)) {
      AddValues(*option, word.substr(equals + 1), word.substr(0, equals + 1));
    }
  }

  void AddOptions(const std::string& prefix) {
    for (const CLI::App* app = app_; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : app->get_options()) {
        if (option->get_positional() || option->get_group().empty()) continue;
        for (const std::string& name : option->get_lnames()) Add(prefix, "--" + name, option->get_description());
        // Who has typed one dash may mean a short one.
        if (absl::StartsWith(prefix, "--")) continue;
        for (const std::string& name : option->get_snames()) Add(prefix, "-" + name, option->get_description());
      }
    }
  }

  bool AddVerbs(const std::string& prefix) {
    const std::vector<const CLI::App*> verbs = app_->get_subcommands([](const CLI::App*) { return true; });
    if (only_values_ || verbs.empty()) return false;
    for (const CLI::App* verb : verbs) {
      if (!verb->get_group().empty()) Add(prefix, verb->get_name(), verb->get_description());
    }
    // A verb with verbs of its own may take a value instead ("bench job.yaml").
    return !result_.candidates.empty() || Positional() == nullptr;
  }

  // Whose turn it is; the last one may take any number.
  const CLI::Option* Positional() const {
    const CLI::Option* last = nullptr;
    size_t place = 0;
    for (const CLI::Option* option : app_->get_options()) {
      if (!option->get_positional()) continue;
      last = option;
      if (place++ == query_.values.size()) return option;
    }
    return last != nullptr && last->get_items_expected_max() > 1 ? last : nullptr;
  }

  void AddPositional(const std::string& prefix) {
    if (const CLI::Option* option = Positional(); option != nullptr) AddValues(*option, prefix, "");
  }

  const CLI::App& root_;
  const CLI::App* app_;
  const std::function<std::vector<Candidate>(const ValueQuery&)>& values_;
  const CLI::Option* pending_ = nullptr;  // Its value comes next.
  bool only_values_ = false;              // After "--".
  ValueQuery query_;
  std::set<std::string> added_;
  Completion result_;
};

}  // namespace

Completion Complete(const CLI::App& app, const std::vector<std::string>& words,
                    const std::function<std::vector<Candidate>(const ValueQuery&)>& values) {
  return Completer(app, values).Run(words);
}

}  // namespace ampd::client
