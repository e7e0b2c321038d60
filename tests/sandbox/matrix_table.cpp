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

// Reports whether the error means a missing permission or a missing object. Other errors are about arguments.
bool is_refusal(const std::string& error, bool raw_call) {
  static const std::vector<std::string> kAlways = {"EPERM", "EACCES", "EROFS", "ENOSYS", "ENOSPC", "EMFILE"};
  static const std::vector<std::string> kMissingObject = {
      "ENOENT",       "EXDEV",           "ELOOP",           "ETXTBSY",     "ENXIO",        "ESRCH",  "EAGAIN", "EFBIG",
      "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENETUNREACH", "ECONNREFUSED", "ENOMEM", "EIO"};
  return is_among(kAlways, error) || (!raw_call && is_among(kMissingObject, error));
}

// Calls that succeed for all users because their arguments request nothing. This holds for all calls of SK4 with zeros
// as arguments, except PTRACE_TRACEME.
bool requests_nothing(const MatrixRow& row) {
  static const std::vector<std::string> kNames = {
      "call splice 0 0 0 0 0 0", "call tee 0 0 0 0",       "call vmsplice 0 0 0 0", "call sendmmsg 3 0 0 0",
      "call madvise 0 0 12",     "call prlimit64 1 7 0 0", "call modify_ldt 0 0 0"};
  return (row.row == "SK4" && row.name != "call ptrace") || is_among(kNames, row.name);
}

char get_answer_letter(const std::string& line, const std::string& result, const std::vector<std::string>& accepted) {
  if (is_among(accepted, result)) return 'D';
  // setfsuid and setfsgid return the previous id and never an error. Without capabilities they change nothing.
  if (line.starts_with("call setfs")) return 'D';
  if (line.starts_with("calls_let_through")) return result.find("=ok") == std::string::npos ? 'R' : 'O';
  if (line.starts_with("let_through")) return 'O';
  const std::string error = find_errno(result);
  if (error.empty()) return 'O';
  const bool raw_call = line.starts_with("call") || line.starts_with("prctl") || line.starts_with("ioctl") ||
                        line.starts_with("socket_ioctl");
  return is_refusal(error, raw_call) ? 'D' : 'R';
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

std::string make_row_key(const MatrixRow& row) { return row.row + ": " + row.name; }

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
  char worst = 'D';
  std::istringstream lines(row.lines);
  for (std::string line; std::getline(lines, line);) {
    const auto found = result.answers.find(line);
    const char letter = found == result.answers.end() ? 'O' : get_answer_letter(line, found->second, row.accepted);
    if (letter == 'O' && requests_nothing(row)) {
      worst = 'R';
    } else if (letter == 'O' || (letter == 'R' && worst == 'D')) {
      worst = letter;
    }
  }
  return worst;
}

char MatrixTable::at(const std::string& key, const std::string& column) const {
  const auto row = letters.find(key);
  const auto index = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), column) - columns.begin());
  return row == letters.end() || index >= row->second.size() ? ' ' : row->second[index];
}

// The first column defines the rows.
void MatrixTable::set_column(const std::string& column, const std::vector<std::pair<std::string, char>>& all) {
  auto index = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), column) - columns.begin());
  if (index == columns.size()) columns.push_back(column);
  if (index == 0) keys.clear();
  for (const auto& [key, letter] : all) {
    if (!is_among(keys, key)) keys.push_back(key);
    std::string& row = letters[key];
    row.resize(columns.size(), '?');
    row[index] = letter;
  }
}

std::string MatrixTable::text() const {
  std::string all =
      "# Every attempt that must fail, with one layer of the sandbox left out: what still holds.\n"
      "# D denied  V ended the job  R reached the kernel, and did nothing there  O open  - not tried\n"
      "# Compared by sandbox_tests (Matrix*); written anew by MYCOJOBS_MATRIX_WRITE=1 sandbox_tests "
      "--gtest_filter='*Matrix*'\n";
  all += "kernel " + kernel + "\nlandlock " + std::to_string(landlock) + "\ncolumns";
  for (const auto& column : columns) all += " " + column;
  all += "\n";
  for (const auto& key : keys) {
    for (char letter : letters.at(key)) all += std::string(1, letter) + " ";
    all += " " + key + "\n";
  }
  return all;
}

// A long row names only its first attempts; matrix.txt has all of them.
std::string MatrixTable::markdown() const {
  constexpr std::size_t kMaxNamed = 3, kMaxLength = 60;
  std::string all = "| row | attempts |";
  std::string rule = "|---|---|";
  for (const auto& column : columns) {
    all += " " + column + " |";
    rule += "---|";
  }
  all += "\n" + rule + "\n";
  std::vector<std::pair<std::string, std::string>> lines;  // row and letters, in order
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> attempts;
  for (const auto& key : keys) {
    const std::size_t colon = key.find(": ");
    const std::pair<std::string, std::string> line{key.substr(0, colon), letters.at(key)};
    if (!attempts.contains(line)) lines.push_back(line);
    attempts[line].push_back(key.substr(colon + 2));
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& line : lines) {
    const auto& names = attempts[line];
    all += "| " + line.first + " | ";
    for (std::size_t i = 0; i < std::min(kMaxNamed, names.size()); ++i) {
      const std::string name = names[i].size() > kMaxLength ? names[i].substr(0, kMaxLength) + " …" : names[i];
      all += (i > 0 ? ", `" : "`") + name + "`";
    }
    if (names.size() > kMaxNamed) all += " and " + std::to_string(names.size() - kMaxNamed) + " more";
    all += " |";
    for (char letter : line.second)
      all += letter == 'O' || letter == 'R' ? " **" + std::string(1, letter) + "** |"
                                            : " " + std::string(1, letter) + " |";
    all += "\n";
  }
  return all;
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
      table.keys.push_back(key);
      table.letters[key] = letters;
    }
  }
  return table;
}

}  // namespace mycojobs::test
