#include "client/completion/scripts.h"

#include "absl/strings/str_cat.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

constexpr char kBash[] = R"(# Completion of ampctl in bash: source <(ampctl completion bash)
_ampctl() {
  local line index part joined word before
  local -a words=()
  # Bash takes words apart at '=' and ':'.
  for part in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ ${#words[@]} -gt 0 && ( "$part" == [:=] || -n "$joined" ) ]]; then words[-1]+="$part"; else words+=("$part"); fi
    if [[ "$part" == [:=] ]]; then joined=1; else joined=; fi
  done
  COMPREPLY=()
  while IFS= read -r line; do
    case "$line" in
      :files) compopt -o default 2>/dev/null ;;
      :open) compopt -o nospace 2>/dev/null ;;
      *) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
  # It replaces the last part alone.
  word="${words[-1]}"
  before="${word%"${word##*[:=]}"}"
  for index in "${!COMPREPLY[@]}"; do COMPREPLY[index]="${COMPREPLY[index]#"$before"}"; done
}
complete -F _ampctl ampctl
)";

constexpr char kZsh[] = R"(#compdef ampctl
# Completion of ampctl in zsh: source <(ampctl completion zsh), or as a file _ampctl in a folder of $fpath.
_ampctl() {
  local line files open
  local -a values
  while IFS= read -r line; do
    case "$line" in
      :files) files=1 ;;
      :open) open=1 ;;
      *$'\t'*) values+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
      *) values+=("${line//:/\\:}") ;;
    esac
  done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( ${#values} )); then
    if [[ -n "$open" ]]; then _describe -V ampctl values -S ''; else _describe -V ampctl values; fi
  fi
  if [[ -n "$files" ]]; then _files; fi
}
if [[ "$funcstack[1]" == _ampctl ]]; then _ampctl "$@"; else compdef _ampctl ampctl; fi
)";

constexpr char kFish[] = R"(# Completion of ampctl in fish: ampctl completion fish | source
function __ampctl_complete
  set -l before (commandline -opc)
  set -l word (commandline -ct)
  for line in ($before[1] __complete $before[2..-1] "$word" 2>/dev/null)
    switch $line
      case :files
        __fish_complete_path "$word"
      case :open
      case '*'
        echo $line
    end
  end
end
complete -c ampctl -e
complete -c ampctl -f -k -a '(__ampctl_complete)'
)";

}  // namespace

const char* CompletionScript(const std::string& shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  return shell == "fish" ? kFish : "";
}

std::string CompletionText(const Completion& completion) {
  std::string text;
  if (completion.files) text += ":files\n";
  if (completion.open) text += ":open\n";
  for (const Candidate& candidate : completion.candidates) {
    absl::StrAppend(&text, Clean(candidate.value), candidate.description.empty() ? "" : "\t",
                    Clean(candidate.description), "\n");
  }
  return text;
}

}  // namespace ampd::client
