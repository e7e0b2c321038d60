// Converts results to letters, and the table of letters to its file and to a part of docs/sandbox-matrix.md.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>

#include "matrix.h"

namespace mycojobs::test {
namespace {

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream parts(text);
  for (std::string word; parts >> word;) words.push_back(word);
  return words;
}

// Returns the errno in "EAGAIN after 14", "folder: ENOENT" or "EPERM", or "" if there is none.
std::string find_errno(const std::string& result) {
  for (const auto& word : split_words(result)) {
    if (word.size() > 2 && word[0] == 'E' &&
        word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == std::string::npos)
      return word;
  }
  return {};
}

// Returns whether the error means a missing permission or a missing object. Other errors are about arguments.
bool is_refusal(const std::string& error, bool is_raw_call) {
  static const std::vector<std::string> kPermissionErrors = {"EPERM", "EACCES", "EROFS", "ENOSYS", "ENOSPC", "EMFILE"};
  static const std::vector<std::string> kMissingObjectErrors = {
      "ENOENT",       "EXDEV",           "ELOOP",           "ETXTBSY",     "ENXIO",        "ESRCH",  "EAGAIN", "EFBIG",
      "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENETUNREACH", "ECONNREFUSED", "ENOMEM", "EIO"};
  return is_among(kPermissionErrors, error) || (!is_raw_call && is_among(kMissingObjectErrors, error));
}

// Returns whether the calls of the row succeed for all users because their arguments have no effect. This holds for all
// calls of SK4 with zeros as arguments, except PTRACE_TRACEME.
bool requests_nothing(const MatrixRow& row) {
  static const std::vector<std::string> kCallsWithoutEffect = {
      "call splice 0 0 0 0 0 0", "call tee 0 0 0 0",       "call vmsplice 0 0 0 0", "call sendmmsg 3 0 0 0",
      "call madvise 0 0 12",     "call prlimit64 1 7 0 0", "call modify_ldt 0 0 0"};
  return (row.id == "SK4" && row.name != "call ptrace") || is_among(kCallsWithoutEffect, row.name);
}

char get_answer_letter(const std::string& line, const std::string& result,
                       const std::vector<std::string>& accepted_results) {
  if (is_among(accepted_results, result)) return 'D';
  // setfsuid and setfsgid return the previous id and never an error. Without capabilities they change nothing.
  if (line.starts_with("call setfs")) return 'D';
  if (line.starts_with("calls_let_through")) return result.find("=ok") == std::string::npos ? 'R' : 'O';
  if (line.starts_with("let_through")) return 'O';
  const std::string error = find_errno(result);
  if (error.empty()) return 'O';
  const bool is_raw_call = line.starts_with("call") || line.starts_with("prctl") || line.starts_with("ioctl") ||
                           line.starts_with("socket_ioctl");
  return is_refusal(error, is_raw_call) ? 'D' : 'R';
}

std::string format_letter(char letter) {
  const std::string text(1, letter);
  return letter == 'O' || letter == 'R' ? "**" + text + "**" : text;
}

}  // namespace

const std::vector<MatrixColumn>& matrix_columns() {
  static const std::vector<MatrixColumn> kColumns = {
      {"all", {}},
      {"seccomp", {"seccomp"}},
      {"landlock", {"landlock"}},
      {"rights", {"rights"}},
      {"dumpable", {"dumpable"}},
      {"netns", {"netns"}},
      {"seal", {"zygote_seal"}},
      {"proc", {"proc"}},
      {"rlimits", {"rlimits"}},
      {"cgroups", {"cgroups"}},
      {"userns", {"zygote_userns_limit"}},
      // Pairs of layers: the value of the second layer if the first is missing.
      {"seccomp+landlock", {"seccomp", "landlock"}},
      {"seccomp+rights", {"seccomp", "rights"}},
      {"seccomp+netns", {"seccomp", "netns"}},
      {"seccomp+userns", {"seccomp", "zygote_userns_limit"}},
  };
  return kColumns;
}

std::string make_row_key(const MatrixRow& row) { return row.id + ": " + row.name; }

char get_outcome_letter(const MatrixRow& row, const MatrixColumn& column, const RunResult& result) {
  switch (result.outcome.status) {
    case RunStatus::violation:
      return 'V';
    case RunStatus::oom:
    case RunStatus::pids_limit:
    case RunStatus::file_limit:
      return 'D';
    case RunStatus::signal:
      // SIGSYS is the answer of the filter to foreign call numbers. Without the filter, the job caused SIGSYS itself
      // (prctl).
      return result.outcome.signal == SIGSYS && !is_among(column.disabled_steps, "seccomp") ? 'V' : 'O';
    case RunStatus::ok:
    case RunStatus::exit:
      break;
    default:
      return '?';
  }
  // The row has the worst letter of its lines. A line without a result replaced the program or closed the channel, and
  // was not refused.
  char worst_letter = 'D';
  std::istringstream lines(row.attempts);
  for (std::string line; std::getline(lines, line);) {
    const auto position = result.results.find(line);
    const char letter =
        position == result.results.end() ? 'O' : get_answer_letter(line, position->second, row.accepted_results);
    if (letter == 'O' && requests_nothing(row)) {
      worst_letter = 'R';
    } else if (letter == 'O' || (letter == 'R' && worst_letter == 'D')) {
      worst_letter = letter;
    }
  }
  return worst_letter;
}

char MatrixTable::get_letter(const std::string& key, const std::string& column) const {
  const auto row = letters.find(key);
  const auto index = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), column) - columns.begin());
  return row == letters.end() || index >= row->second.size() ? ' ' : row->second[index];
}

// The first column defines the rows.
void MatrixTable::set_column(const std::string& column,
                             const std::vector<std::pair<std::string, char>>& column_letters) {
  auto index = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), column) - columns.begin());
  if (index == columns.size()) columns.push_back(column);
  if (index == 0) row_keys.clear();
  for (const auto& [key, letter] : column_letters) {
    if (!is_among(row_keys, key)) row_keys.push_back(key);
    std::string& row = letters[key];
    row.resize(columns.size(), '?');
    row[index] = letter;
  }
}

std::string MatrixTable::to_text() const {
  std::string output =
      "# Results of every attempt that must fail, in sandboxes without one or two layers (columns).\n"
      "# D: denied, V: ended the job, R: reached the kernel without effect, O: open, -: not tried\n"
      "# sandbox_tests (Matrix*) compare this file and write it again with MYCOJOBS_MATRIX_WRITE=1 sandbox_tests "
      "--gtest_filter='*Matrix*'\n";
  output += "kernel " + kernel + "\nlandlock " + std::to_string(landlock) + "\ncolumns";
  for (const auto& column : columns) output += " " + column;
  output += "\n";
  for (const auto& key : row_keys) {
    for (char letter : letters.at(key)) output += std::string(1, letter) + " ";
    output += " " + key + "\n";
  }
  return output;
}

std::string MatrixTable::format_differences(const std::string& row_letters) const {
  std::string output;
  for (const char letter : std::string("ORVD-?")) {
    std::string names;
    for (std::size_t i = 1; letter != row_letters[0] && i < columns.size(); ++i)
      if (row_letters[i] == letter) names += (names.empty() ? "" : ", ") + columns[i];
    if (!names.empty()) output += (output.empty() ? "" : "; ") + format_letter(letter) + ": " + names;
  }
  return output;
}

// A long row names only its first attempts; matrix.txt has all of them.
std::string MatrixTable::to_markdown() const {
  constexpr std::size_t kMaxNamedAttempts = 3, kMaxNameLength = 60;
  std::string output = "| row | attempts | " + columns.front() + " | other results without |\n|---|---|---|---|\n";
  std::vector<std::pair<std::string, std::string>> lines;  // Row id and letters, in the order of the table.
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> attempts;
  for (const auto& key : row_keys) {
    const std::size_t colon = key.find(": ");
    const std::pair<std::string, std::string> line{key.substr(0, colon), letters.at(key)};
    if (!attempts.contains(line)) lines.push_back(line);
    attempts[line].push_back(key.substr(colon + 2));
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& line : lines) {
    const auto& names = attempts[line];
    output += "| " + line.first + " | ";
    for (std::size_t i = 0; i < std::min(kMaxNamedAttempts, names.size()); ++i) {
      const std::string name = names[i].size() > kMaxNameLength ? names[i].substr(0, kMaxNameLength) + " …" : names[i];
      output += (i > 0 ? ", `" : "`") + name + "`";
    }
    if (names.size() > kMaxNamedAttempts)
      output += " and " + std::to_string(names.size() - kMaxNamedAttempts) + " more";
    output += " | " + format_letter(line.second[0]) + " | " + format_differences(line.second) + " |\n";
  }
  return output;
}

MatrixTable read_matrix(const std::string& path) {
  MatrixTable table;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto words = split_words(line);
    if (words.empty() || words[0] == "#") continue;
    if (words[0] == "kernel") {
      table.kernel = words.at(1);
    } else if (words[0] == "landlock") {
      table.landlock = std::stoi(words.at(1));
    } else if (words[0] == "columns") {
      table.columns.assign(words.begin() + 1, words.end());
    } else {
      std::string letters;
      for (std::size_t i = 0; i < table.columns.size(); ++i) letters += words.at(i).at(0);
      const std::string key = line.substr(2 * table.columns.size() + 1);
      table.row_keys.push_back(key);
      table.letters[key] = letters;
    }
  }
  return table;
}

}  // namespace mycojobs::test
