#include "cli/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
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

const char* get_colour_code(OutputStyle style) {
  switch (style) {
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
  explicit Stream(std::FILE* file) : file_(file), is_terminal_(::isatty(::fileno(file)) != 0) {}

  void write(std::string_view text) {
    const bool is_complete = std::fwrite(text.data(), 1, text.size(), file_) == text.size();
    if ((!is_complete || std::fflush(file_) != 0) && write_errno_ == 0) write_errno_ = errno;
  }
  int write_error() const { return write_errno_; }  // errno of the first failed write; 0: no error
  void write_result(std::string_view text) {
    write(is_terminal_ ? to_printable_with_colours(text) : std::string(text));
  }
  void write_job_output(std::string_view bytes) {
    const std::string text = is_terminal_ ? screen_.add(bytes) : std::string(bytes);
    if (!text.empty()) has_open_line_ = !text.ends_with('\n');
    write(text);
  }
  // Writes the rest of the job's output. Returns true if its last line is not terminated.
  bool end_job_output() {
    if (const std::string text = screen_.finish(); !text.empty()) has_open_line_ = !text.ends_with('\n'), write(text);
    return std::exchange(has_open_line_, false);
  }
  bool is_same_as(const Stream& other) const {
    struct stat status {};
    struct stat other_status {};
    return ::fstat(::fileno(file_), &status) == 0 && ::fstat(::fileno(other.file_), &other_status) == 0 &&
           status.st_dev == other_status.st_dev && status.st_ino == other_status.st_ino;
  }

 private:
  std::FILE* file_;
  bool is_terminal_;
  int write_errno_ = 0;
  PrintableTextStream screen_;
  bool has_open_line_ = false;
};

Stream& stdout_stream() {
  static Stream stream(stdout);
  return stream;
}
Stream& stderr_stream() {
  static Stream stream(stderr);
  return stream;
}

// Terminates an unfinished line of the job if the next message would be appended to it. Output that is redirected to a
// file of its own stays unchanged.
void end_open_line() {
  const bool is_open_on_stdout = stdout_stream().end_job_output();
  const bool is_open_on_stderr = stderr_stream().end_job_output();
  if (is_open_on_stderr || (is_open_on_stdout && stdout_stream().is_same_as(stderr_stream())))
    stderr_stream().write("\n");
}

}  // namespace

namespace {

bool has_colours(bool to_stderr) {
  static const bool colours[2] = {::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr,
                                  ::isatty(STDERR_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr};
  return colours[to_stderr ? 1 : 0];
}

}  // namespace

std::string paint(OutputStyle style, std::string_view text, bool to_stderr) {
  if (text.empty() || style == OutputStyle::plain || !has_colours(to_stderr)) return std::string(text);
  return std::string(get_colour_code(style)) + std::string(text) + "\033[0m";
}

std::string paint_distinct(std::size_t position, std::string_view text) {
  constexpr const char* kColourCodes[] = {"\033[36m", "\033[33m", "\033[32m", "\033[35m", "\033[34m", "\033[31m"};
  if (text.empty() || !has_colours(false)) return std::string(text);
  return kColourCodes[position % std::size(kColourCodes)] + std::string(text) + "\033[0m";
}

void print_message(std::string_view line) {
  end_open_line();
  std::string text;
  for (char c : to_printable_with_colours(line)) text += c == '\n' ? "\n  " : std::string(1, c);
  stderr_stream().write(text + "\n");
}

void print(std::string_view text) { stdout_stream().write_result(text); }

namespace {

constexpr std::size_t kGap = 2, kMinCellWidth = 6;

std::vector<std::size_t> get_column_widths(const TableRows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], count_columns(row[i]));
  }
  return widths;
}

std::size_t get_table_width(const std::vector<std::size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
}

// Matches the format of format_local_time().
bool is_local_time(std::string_view cell) {
  constexpr std::string_view kFormat = "0000-00-00 00:00:00";
  return cell.size() == kFormat.size() &&
         std::equal(cell.begin(), cell.end(), kFormat.begin(),
                    [](char c, char format) { return format == '0' ? c >= '0' && c <= '9' : c == format; });
}

// Cuts the cell to `max` columns. REQUIRES: a coloured cell has one colour for the whole text.
std::string cut_cell(const std::string& cell, std::size_t max) {
  constexpr std::string_view kReset = "\033[0m";
  if (count_columns(cell) <= max) return cell;
  const std::size_t begin = cell.starts_with('\033') ? cell.find('m') + 1 : 0;
  const bool is_coloured = begin > 0 && cell.ends_with(kReset);
  if (!is_coloured) return shorten_text(cell, max);
  const std::size_t text_bytes = cell.size() - begin - kReset.size();
  return cell.substr(0, begin) + shorten_text(std::string_view(cell).substr(begin, text_bytes), max) +
         std::string(kReset);
}

std::size_t get_screen_width() {
  const Terminal terminal = get_terminal(stdout);
  if (terminal.lines == 0) return 0;
  const char* variable = std::getenv("COLUMNS");
  std::uint64_t columns = 0;
  return variable != nullptr && parse_u64(variable, columns) && columns > 0 ? static_cast<std::size_t>(columns)
                                                                            : terminal.columns;
}

void fit_to_screen(TableRows& rows, std::size_t screen_width) {
  if (rows.empty() || get_table_width(get_column_widths(rows)) <= screen_width) return;
  const std::string today = format_local_time(static_cast<std::uint64_t>(std::time(nullptr)) * 1000).substr(0, 10);
  std::set<std::size_t> time_columns;
  for (auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!is_local_time(row[i])) continue;
      row[i] = row[i].starts_with(today) ? row[i].substr(11) : row[i].substr(0, 10);
      time_columns.insert(i);
    }
  }
  std::vector<std::size_t> widths = get_column_widths(rows);
  while (get_table_width(widths) > screen_width) {
    std::size_t widest = 0;
    for (std::size_t i = 1; i < widths.size(); ++i) {
      if (!time_columns.contains(i) && (widest == 0 || widths[i] > widths[widest])) widest = i;
    }
    if (widest == 0 || widths[widest] <= kMinCellWidth) break;
    --widths[widest];
  }
  for (auto& row : rows) {
    for (std::size_t i = 1; i < row.size(); ++i) row[i] = cut_cell(row[i], widths[i]);
  }
}

// Wraps the last cell of a row below itself, if it is plain text that is too wide for the screen.
std::string wrap_cell(const std::string& cell, std::size_t indent, std::size_t screen_width) {
  constexpr std::size_t kMinTextBytes = 24;
  if (screen_width < indent + kMinTextBytes || indent + count_columns(cell) <= screen_width ||
      cell.find('\033') != std::string::npos)
    return cell;
  std::string out;
  for (char c : wrap_text(cell, screen_width - indent))
    out += c == '\n' ? "\n" + std::string(indent, ' ') : std::string(1, c);
  return out;
}

}  // namespace

void print_table(const TableRows& rows) {
  const std::vector<std::size_t> widths = get_column_widths(rows);
  const std::size_t screen_width = get_screen_width();
  const std::size_t indent = widths.empty() ? 0 : get_table_width(widths) - widths.back();
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string cell = row[i];
      for (char& c : cell) c = c == '\n' || c == '\t' ? ' ' : c;
      line += i + 1 == widths.size() ? wrap_cell(cell, indent, screen_width) : cell;
      if (i + 1 < row.size()) line.append(widths[i] - count_columns(row[i]) + kGap, ' ');
    }
    print(line + "\n");
  }
}

void print_list(TableRows rows) {
  if (const std::size_t screen_width = get_screen_width(); screen_width > 0) fit_to_screen(rows, screen_width);
  print_table(rows);
}

void print_output(bool is_err, std::string_view bytes) {
  (is_err ? stderr_stream() : stdout_stream()).write_job_output(bytes);
}

void print_log(const Log& line) { print_output(line.stream != LogStream::out, line.text); }

bool is_output_closed() {
  const auto is_closed = [](int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || (!S_ISFIFO(status.st_mode) && !S_ISSOCK(status.st_mode))) return false;
    pollfd stream{fd, 0, 0};  // POLLERR and POLLHUP are always reported
    return ::poll(&stream, 1, 0) == 1 && (stream.revents & (POLLERR | POLLHUP)) != 0;
  };
  return is_closed(STDOUT_FILENO) || is_closed(STDERR_FILENO);
}

int check_output_written(int code) {
  const int error = stdout_stream().write_error();
  if (error == 0 || error == EPIPE) return code;
  return print_error(
      {Code::io, fmt::format("the answer could not be written to standard output: {}", errno_text(error))});
}

namespace {

bool errors_as_json = false;

}  // namespace

void print_errors_as_json() { errors_as_json = true; }
bool prints_errors_as_json() { return errors_as_json; }

int print_error(const Error& error) { return print_error(error, exit_code(error)); }

int print_error(const Error& error, int exit_status) {
  if (errors_as_json) {
    const nlohmann::json object = {{"code", to_string(error.code)}, {"message", error.message}, {"exit", exit_status}};
    print_message(dump_json({{"error", object}}));
    return exit_status;
  }
  print_message(paint(OutputStyle::bad, "mycojobs: ", true) + error.message);
  return exit_status;
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

int script_exit_code(const Job& job) {
  constexpr int kSignalBase = 128, kMaxExitCode = 255;
  const auto info = parse_json(job.error_info.empty() ? "{}" : job.error_info);
  const auto find_number = [&](const char* name) -> std::optional<int> {
    if (!info || !info->is_object() || !info->contains(name) || !(*info)[name].is_number_unsigned()) return {};
    return static_cast<int>(std::min<std::uint64_t>((*info)[name].get<std::uint64_t>(), kMaxExitCode));
  };
  if (job.detail == "exit" || job.detail == "exception") return find_number("exit").value_or(exit_code(job));
  if (job.detail == "signal") {
    const auto signal = find_number("signal");
    return signal ? std::min(kSignalBase + *signal, kMaxExitCode) : exit_code(job);
  }
  return exit_code(job);
}

namespace {

constexpr std::uint64_t kProgressDelayMs = 1000;  // shorter operations show no progress
constexpr std::uint64_t kProgressIntervalMs = 100;

void write_to_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

ProgressLine::~ProgressLine() {
  if (update_boot_ms_ != 0) write_to_stderr("\r\033[K");
}

void ProgressLine::show(std::string_view phase, std::uint64_t done, std::uint64_t total) {
  static const bool is_terminal = ::isatty(STDERR_FILENO) != 0;
  const std::uint64_t now = clock_.boot_ms();
  if (!is_terminal || now - start_boot_ms_ < kProgressDelayMs || now - update_boot_ms_ < kProgressIntervalMs) return;
  update_boot_ms_ = now;
  const std::string total_text = total == 0 ? "" : fmt::format(" of {} ({} %)", total, 100 * done / total);
  write_to_stderr(fmt::format("\r\033[K{}: {}{}", phase, done, total_text));
}

Terminal get_terminal(std::FILE* stream) {
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
