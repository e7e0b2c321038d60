#include "cli/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "base/errno_text.h"
#include "base/parse.h"
#include "model/artifact.h"
#include "model/enums.h"
#include "text/json.h"
#include "text/timestamp.h"

namespace mycojobs {
namespace {

const char* code_of(OutputStyle tone) {
  switch (tone) {
    case OutputStyle::plain:
      return "";
    case OutputStyle::good:
      return "\033[32m";
    case OutputStyle::bad:
      return "\033[31m";
    case OutputStyle::warn:
      return "\033[33m";
    case OutputStyle::faint:
      return "\033[2m";
    case OutputStyle::strong:
      return "\033[1m";
  }
  return "";
}

// An output stream, with the state of job output on it.
class Stream {
 public:
  explicit Stream(std::FILE* to) : to_(to), terminal_(::isatty(::fileno(to)) != 0) {}

  void write(std::string_view text) {
    const bool whole = std::fwrite(text.data(), 1, text.size(), to_) == text.size();
    if ((!whole || std::fflush(to_) != 0) && failed_ == 0) failed_ = errno;
  }
  int failed() const { return failed_; }  // errno of the first failed write; 0: none
  void answer(std::string_view text) { write(terminal_ ? printable_with_colours(text) : std::string(text)); }
  void output(std::string_view bytes) {
    const std::string text = terminal_ ? screen_.take(bytes) : std::string(bytes);
    if (!text.empty()) open_line_ = !text.ends_with('\n');
    write(text);
  }
  // Returns true if the last line of job output is not terminated, and resets this state.
  bool left_open() {
    if (const std::string text = screen_.rest(); !text.empty()) open_line_ = !text.ends_with('\n'), write(text);
    return std::exchange(open_line_, false);
  }
  bool is_same_as(const Stream& other) const {
    struct stat ours {};
    struct stat theirs {};
    return ::fstat(::fileno(to_), &ours) == 0 && ::fstat(::fileno(other.to_), &theirs) == 0 &&
           ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  }

 private:
  std::FILE* to_;
  bool terminal_;
  int failed_ = 0;
  ScreenText screen_;
  bool open_line_ = false;
};

Stream& out() {
  static Stream stream(stdout);
  return stream;
}
Stream& err() {
  static Stream stream(stderr);
  return stream;
}

// Terminates an unfinished line of the job if the next message would follow it. Output in a separate file stays
// unchanged.
void end_open_line() {
  const bool in_out = out().left_open();
  const bool in_err = err().left_open();
  if (in_err || (in_out && out().is_same_as(err()))) err().write("\n");
}

}  // namespace

std::string paint(OutputStyle tone, std::string_view text, bool to_stderr) {
  static const bool colours[2] = {::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr,
                                  ::isatty(STDERR_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr};
  if (tone == OutputStyle::plain || !colours[to_stderr ? 1 : 0]) return std::string(text);
  return std::string(code_of(tone)) + std::string(text) + "\033[0m";
}

void print_message(std::string_view line) {
  end_open_line();
  std::string text;
  for (char c : printable_with_colours(line)) text += c == '\n' ? "\n  " : std::string(1, c);
  err().write(text + "\n");
}

void print(std::string_view text) { out().answer(text); }

namespace {

using Rows = std::vector<std::vector<std::string>>;
constexpr std::size_t kGap = 2, kMinCellWidth = 6;

std::vector<std::size_t> widths_of(const Rows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  }
  return widths;
}

std::size_t whole(const std::vector<std::size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
}

// Matches the format of local_time().
bool is_moment(std::string_view cell) {
  constexpr std::string_view kForm = "0000-00-00 00:00:00";
  return cell.size() == kForm.size() && std::equal(cell.begin(), cell.end(), kForm.begin(), [](char is, char form) {
           return form == '0' ? is >= '0' && is <= '9' : is == form;
         });
}

// REQUIRES: a coloured cell has one colour for the whole text.
std::string cut(const std::string& cell, std::size_t max) {
  constexpr std::string_view kPlain = "\033[0m";
  if (columns(cell) <= max) return cell;
  const std::size_t begin = cell.starts_with('\033') ? cell.find('m') + 1 : 0;
  const bool coloured = begin > 0 && cell.ends_with(kPlain);
  if (!coloured) return shortened(cell, max);
  const std::size_t inner = cell.size() - begin - kPlain.size();
  return cell.substr(0, begin) + shortened(std::string_view(cell).substr(begin, inner), max) + std::string(kPlain);
}

std::size_t screen_columns() {
  const Terminal terminal = terminal_of(stdout);
  if (terminal.lines == 0) return 0;
  const char* named = std::getenv("COLUMNS");
  std::uint64_t columns = 0;
  return named != nullptr && parse_u64(named, columns) && columns > 0 ? static_cast<std::size_t>(columns)
                                                                      : terminal.columns;
}

void fit(Rows& rows, std::size_t screen) {
  if (rows.empty() || whole(widths_of(rows)) <= screen) return;
  const std::string today = local_time(static_cast<std::uint64_t>(std::time(nullptr)) * 1000).substr(0, 10);
  std::set<std::size_t> moments;
  for (auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!is_moment(row[i])) continue;
      row[i] = row[i].starts_with(today) ? row[i].substr(11) : row[i].substr(0, 10);
      moments.insert(i);
    }
  }
  std::vector<std::size_t> widths = widths_of(rows);
  while (whole(widths) > screen) {
    std::size_t widest = 0;
    for (std::size_t i = 1; i < widths.size(); ++i) {
      if (!moments.contains(i) && (widest == 0 || widths[i] > widths[widest])) widest = i;
    }
    if (widest == 0 || widths[widest] <= kMinCellWidth) break;
    --widths[widest];
  }
  for (auto& row : rows) {
    for (std::size_t i = 1; i < row.size(); ++i) row[i] = cut(row[i], widths[i]);
  }
}

}  // namespace

namespace {

// Wraps the last cell of a row below itself, if it is plain text that is too wide for the screen.
std::string hung(const std::string& cell, std::size_t indent, std::size_t screen) {
  constexpr std::size_t kMinTextBytes = 24;
  if (screen < indent + kMinTextBytes || indent + columns(cell) <= screen || cell.find('\033') != std::string::npos)
    return cell;
  std::string out;
  for (char c : wrapped(cell, screen - indent)) out += c == '\n' ? "\n" + std::string(indent, ' ') : std::string(1, c);
  return out;
}

}  // namespace

void print_table(const std::vector<std::vector<std::string>>& rows) {
  const std::vector<std::size_t> widths = widths_of(rows);
  const std::size_t screen = screen_columns();
  const std::size_t indent = widths.empty() ? 0 : whole(widths) - widths.back();
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string cell = row[i];
      for (char& c : cell) c = c == '\n' || c == '\t' ? ' ' : c;
      line += i + 1 == widths.size() ? hung(cell, indent, screen) : cell;
      if (i + 1 < row.size()) line.append(widths[i] - columns(row[i]) + kGap, ' ');
    }
    print(line + "\n");
  }
}

void print_list(Rows rows) {
  if (const std::size_t screen = screen_columns(); screen > 0) fit(rows, screen);
  print_table(rows);
}

void print_output(bool is_err, std::string_view bytes) { (is_err ? err() : out()).output(bytes); }

void print_log(const Log& line) { print_output(line.stream != LogStream::out, line.text); }

bool is_output_closed() {
  const auto lost = [](int fd) {
    struct stat is {};
    if (::fstat(fd, &is) != 0 || (!S_ISFIFO(is.st_mode) && !S_ISSOCK(is.st_mode))) return false;
    pollfd stream{fd, 0, 0};  // a lost reader is reported without being requested
    return ::poll(&stream, 1, 0) == 1 && (stream.revents & (POLLERR | POLLHUP)) != 0;
  };
  return lost(STDOUT_FILENO) || lost(STDERR_FILENO);
}

int finish(const Result<int>& code) { return code ? *code : print_error(code.error()); }

int exit_process(int code) {
  const int failed = out().failed();
  if (failed == 0 || failed == EPIPE) return code;
  return print_error(
      {Code::io, fmt::format("the answer could not be written to standard output: {}", errno_text(failed))});
}

namespace {

bool json_errors = false;

}  // namespace

void print_errors_as_json() { json_errors = true; }
bool prints_errors_as_json() { return json_errors; }

int print_error(const Error& error) { return print_error(error, exit_code(error)); }

int print_error(const Error& error, int exit) {
  if (json_errors) {
    const nlohmann::json shown = {{"code", to_string(error.code)}, {"message", error.message}, {"exit", exit}};
    print_message(dump_json({{"error", shown}}));
    return exit;
  }
  print_message(paint(OutputStyle::bad, "mycojobs: ", true) + error.message);
  return exit;
}

int exit_code(const Error& error) {
  switch (error.code) {
    case Code::invalid:
    case Code::too_large:
      return EX_DATAERR;
    case Code::not_found:
      return EX_NOINPUT;
    case Code::conflict:
    case Code::stale_claim:
      return EX_TEMPFAIL;
    case Code::denied:
      return EX_NOPERM;
    case Code::unavailable:
    case Code::unsupported:
      return EX_UNAVAILABLE;
    case Code::io:
      return EX_IOERR;
    case Code::internal:
      return EX_SOFTWARE;
  }
  return EX_SOFTWARE;
}

int exit_code(const Job& job) {
  if (job.status == JobStatus::finished) return has_lost_artifacts(job.artifacts_dropped) ? EXIT_FAILURE : EXIT_SUCCESS;
  static constexpr std::pair<std::string_view, int> kCodes[] = {
      {"timeout", 124}, {"timeout_cpu", 124}, {"violation", 126}, {"cancelled", 130}, {"oom", 137}};
  for (const auto& [detail, code] : kCodes) {
    if (job.detail == detail) return code;
  }
  return EXIT_FAILURE;
}

namespace {

constexpr std::uint64_t kQuietMs = 1000;  // shorter operations show no progress
constexpr std::uint64_t kEveryMs = 100;

void write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

ProgressLine::~ProgressLine() {
  if (shown_boot_ms_ != 0) write("\r\033[K");
}

void ProgressLine::show(std::string_view phase, std::uint64_t done, std::uint64_t total) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  const std::uint64_t now = clock_.boot_ms();
  if (!terminal || now - since_boot_ms_ < kQuietMs || now - shown_boot_ms_ < kEveryMs) return;
  shown_boot_ms_ = now;
  const std::string of = total == 0 ? "" : fmt::format(" of {} ({} %)", total, 100 * done / total);
  write(fmt::format("\r\033[K{}: {}{}", phase, done, of));
}

Terminal terminal_of(std::FILE* stream) {
  Terminal out;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string text(value);
    out.ascii = text.find("UTF-8") == std::string::npos && text.find("utf8") == std::string::npos;
    break;
  }
  const int fd = ::fileno(stream);
  if (::isatty(fd) == 0) return out;
  out.colour = std::getenv("NO_COLOR") == nullptr;
  winsize size{};
  out.lines = 24;
  out.columns = 80;
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    out.lines = size.ws_row;
    out.columns = size.ws_col;
  }
  return out;
}

}  // namespace mycojobs
