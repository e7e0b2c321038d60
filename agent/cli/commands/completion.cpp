#include "cli/commands/completion.h"

#include <map>
#include <set>

#include "cli/config/options.h"

namespace mycojobs {
namespace {

// Returns the words that may follow each command prefix: "job" -> "list show logs".
std::map<std::string, std::set<std::string>> collect_subcommands(const CommandRows& commands) {
  std::map<std::string, std::set<std::string>> words;
  for (const auto& row : commands) {
    std::string path;
    for (std::size_t word_begin = 0; word_begin <= row.name.size();) {
      const auto word_end = std::min(row.name.find(' ', word_begin), row.name.size());
      const std::string word = row.name.substr(word_begin, word_end - word_begin);
      words[path].insert(word);
      path += (path.empty() ? "" : " ") + word;
      words[path];
      word_begin = word_end + 1;
    }
  }
  return words;
}

std::string join_words(const std::set<std::string>& words, std::string_view separator) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : std::string(separator)) + word;
  return out;
}

// The script finds the command from the words of the line. The word before the cursor then selects the candidates:
// values of a flag, flags, subcommands, or the first argument. Without candidates bash offers file names. The script
// splits the line itself, because bash treats the colon of an id as a word break.
constexpr std::string_view kBash = R"bash(# Completion of mycojobs for bash, made by `mycojobs completion bash`.
# Lists only names without special characters, because compgen expands its list of words and other users choose the names.
_mycojobs_listed() {
  timeout 3 mycojobs complete "$@" 2>/dev/null </dev/null | grep -x '[A-Za-z0-9:._-]*'
}
_mycojobs() {
  local current="${COMP_WORDS[COMP_CWORD]}" with_value=' @WITH_VALUE@ ' path='' words='' flags='--help' i arguments=0
  local -a line=("${COMP_WORDS[@]:0:COMP_CWORD}") where=()
  if [[ -n "${COMP_LINE-}" ]]; then
    read -ra line <<< "${COMP_LINE:0:COMP_POINT}"
    current=''
    if [[ "${COMP_LINE:0:COMP_POINT}" != *[[:space:]] ]]; then current="${line[-1]}"; unset 'line[-1]'; fi
  fi
  local previous="${line[-1]}"
  COMPREPLY=()
  for ((i = 1; i < ${#line[@]}; i++)); do
    if [[ "$with_value" == *" ${line[i]} "* ]]; then
      case "${line[i]}" in
        --redis|--context|--state-dir|--config) where+=("${line[i]}" "${line[i+1]-}") ;;
      esac
      ((i++)); continue
    fi
    case "${path:+$path }${line[i]}" in
      @PATHS@) path="${path:+$path }${line[i]}" ;;
      *) if [[ "${line[i]}" != -* ]]; then ((++arguments)); fi ;;
    esac
  done
  case "$path $previous" in
@CHOICES@  esac
  if [[ "$with_value" == *" $previous "* ]]; then return; fi
  case "$path" in
@WORDS@  esac
  case "$path" in
@FLAGS@  esac
  if [[ "$current" == -* ]]; then
    words="$flags"
  else
    case "$path $arguments" in
@ARGUMENTS@    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ "$current" == *:* && "${COMP_WORDBREAKS-}" == *:* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*:}"}"}")
  fi
}
complete -o default -F _mycojobs mycojobs
)bash";

// The script for zsh uses the algorithm of the script for bash. The words are passed to compadd, which does not expand
// them.
constexpr std::string_view kZsh = R"zsh(#compdef mycojobs
# Completion of mycojobs for zsh, made by `mycojobs completion zsh`.
_mycojobs() {
  emulate -L zsh
  local current="${words[CURRENT]}" previous="${words[CURRENT-1]}" typed='' word
  local -a with_value=(@WITH_VALUE@) paths=(@PATHS@) where=() flags=(--help) offered=()
  integer i arguments=0
  for ((i = 2; i < CURRENT; i++)); do
    word="${words[i]}"
    if (( ${with_value[(Ie)$word]} )); then
      case "$word" in
        --redis|--context|--state-dir|--config) where+=("$word" "${(Q)words[i+1]}") ;;
      esac
      (( i++ )); continue
    fi
    if (( ${paths[(Ie)${typed:+$typed }$word]} )); then
      typed="${typed:+$typed }$word"
    elif [[ "$word" != -* ]]; then
      (( ++arguments ))
    fi
  done
  case "$typed $previous" in
@CHOICES@  esac
  if (( ${with_value[(Ie)$previous]} )); then _files; return; fi
  case "$typed" in
@FLAGS@  esac
  if [[ "$current" == -* ]]; then compadd -a flags; return; fi
  if (( arguments == 0 )); then
    case "$typed" in
@WORDS@    esac
    case "$typed" in
@ARGUMENTS@    esac
  fi
  _files
}
if [[ "${funcstack[1]-}" == _mycojobs ]]; then _mycojobs "$@"; elif (( $+functions[compdef] )); then compdef _mycojobs mycojobs; fi
)zsh";

// Quotes a text for zsh.
std::string quote_for_zsh(std::string_view text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void replace_mark(std::string& text, std::string_view mark, const std::string& replacement) {
  text.replace(text.find(mark), mark.size(), replacement);
}

}  // namespace

std::vector<CommandOption> list_configuration_flags(std::string_view command) {
  std::vector<CommandOption> flags = {{"--config", true, ""}};
  for (const Option& option : options()) {
    if (!accepts_flag(option, command)) continue;
    const std::string flag = get_flag_name(option);
    flags.push_back({flag, option.type != OptionType::flag, std::string(option.choices)});
    if (option.type == OptionType::flag) flags.push_back({"--no-" + flag.substr(2), false, ""});
  }
  return flags;
}

std::string make_bash_completion(const CommandRows& commands) {
  std::set<std::string> with_value;
  std::set<std::string> paths;
  std::string choices;
  std::string words;
  std::string flags;
  std::string arguments;
  for (const auto& row : commands) {
    std::set<std::string> row_flags = {"--help"};
    for (const auto& option : row.options) {
      row_flags.insert(option.flag);
      if (option.has_value) with_value.insert(option.flag);
      if (option.choices.empty()) continue;
      choices += "    '" + row.name + ' ' + option.flag + "') COMPREPLY=($(compgen -W '" + option.choices +
                 "' -- \"$current\")); return ;;\n";
    }
    std::string candidates = row.argument_words.empty() ? "" : "'" + row.argument_words + "'";
    if (!row.argument_list.empty()) candidates = "\"$(_mycojobs_listed " + row.argument_list + " \"${where[@]}\")\"";
    if (!candidates.empty()) arguments += "      '" + row.name + " 0') words=" + candidates + " ;;\n";
    flags += "    '" + row.name + "') flags='" + join_words(row_flags, " ") + "' ;;\n";
  }
  for (const auto& [path, subcommands] : collect_subcommands(commands)) {
    if (!path.empty()) paths.insert("'" + path + "'");
    words += "    '" + path + "') words='" + join_words(subcommands, " ") + "' ;;\n";
  }
  std::string script(kBash);
  replace_mark(script, "@WITH_VALUE@", join_words(with_value, " "));
  replace_mark(script, "@PATHS@", paths.empty() ? "''" : join_words(paths, "|"));
  replace_mark(script, "@CHOICES@", choices);
  replace_mark(script, "@WORDS@", words);
  replace_mark(script, "@FLAGS@", flags);
  replace_mark(script, "@ARGUMENTS@", arguments);
  return script;
}

namespace {

// Returns the words after a prefix such as "job", with their help: "list:list jobs". Nouns have no help.
std::string describe_words(const CommandRows& commands, const std::string& path,
                           const std::set<std::string>& subcommands) {
  std::string out;
  for (const std::string& word : subcommands) {
    const std::string name = path.empty() ? word : path + ' ' + word;
    std::string help;
    for (const auto& row : commands) {
      if (row.name == name) help = row.help;
    }
    out += ' ' + quote_for_zsh(word + (help.empty() ? "" : ":" + help));
  }
  return out;
}

}  // namespace

std::string make_zsh_completion(const CommandRows& commands) {
  std::set<std::string> with_value, paths;
  std::string choices, words, flags, arguments;
  for (const auto& row : commands) {
    std::set<std::string> row_flags = {"--help"};
    for (const auto& option : row.options) {
      row_flags.insert(option.flag);
      if (option.has_value) with_value.insert(option.flag);
      if (option.choices.empty()) continue;
      choices += "    '" + row.name + ' ' + option.flag + "') offered=(" + option.choices +
                 "); compadd -a offered; return ;;\n";
    }
    flags += "    '" + row.name + "') flags=(" + join_words(row_flags, " ") + ") ;;\n";
    std::string offered = row.argument_words;
    if (!row.argument_list.empty()) {
      offered = "${(f)\"$(mycojobs complete " + row.argument_list + " \"${where[@]}\" 2>/dev/null </dev/null)\"}";
    }
    if (!offered.empty())
      arguments += "      '" + row.name + "') offered=(" + offered + "); compadd -a offered; return ;;\n";
  }
  for (const auto& [path, subcommands] : collect_subcommands(commands)) {
    if (!path.empty()) paths.insert("'" + path + "'");
    if (subcommands.empty()) continue;
    words += "      '" + path + "') offered=(" + describe_words(commands, path, subcommands) +
             "); _describe command offered; return ;;\n";
  }
  std::string script(kZsh);
  replace_mark(script, "@WITH_VALUE@", join_words(with_value, " "));
  replace_mark(script, "@PATHS@", join_words(paths, " "));
  replace_mark(script, "@CHOICES@", choices);
  replace_mark(script, "@FLAGS@", flags);
  replace_mark(script, "@WORDS@", words);
  replace_mark(script, "@ARGUMENTS@", arguments);
  return script;
}

}  // namespace mycojobs
