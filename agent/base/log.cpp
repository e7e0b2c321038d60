#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "base/log_level.h"

namespace mycojobs {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

bool writes_json_lines = false;

// Escapes a message to one line of printable text. Control characters (C0 and C1), line separators and marks that
// change the writing direction become "\n", "\x1b", "\xc2\x9b"; other characters are unchanged.
std::string escape(std::string_view text) {
  const auto byte_at = [text](std::size_t index) {
    return index < text.size() ? static_cast<unsigned char>(text[index]) : 0U;
  };
  std::string out;
  std::size_t bytes_to_escape = 0;  // number of bytes from here on that are escaped
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = byte_at(i), second = byte_at(i + 1), third = byte_at(i + 2);
    if (byte < ' ' || byte == 0x7f) bytes_to_escape = std::max<std::size_t>(bytes_to_escape, 1);
    if (byte == 0xc2 && second >= 0x80 && second <= 0x9f) bytes_to_escape = 2;
    if (byte == 0xd8 && second == 0x9c) bytes_to_escape = 2;
    if (byte == 0xe2 && second == 0x80 && (third == 0x8e || third == 0x8f || (third >= 0xa8 && third <= 0xae)))
      bytes_to_escape = 3;
    if (byte == 0xe2 && second == 0x81 && third >= 0xa6 && third <= 0xa9) bytes_to_escape = 3;
    if (bytes_to_escape == 0) {
      out += text[i];
      continue;
    }
    --bytes_to_escape;
    out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : fmt::format("\\x{:02x}", byte);
  }
  return out;
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto created = spdlog::stderr_color_mt("mycojobs");
    created->set_level(spdlog::level::warn);
    return created;
  }();
  return *instance;
}

void write_line(LogLevel level, std::string_view component, std::string_view message) {
  if (!writes_json_lines) {
    logger().log(to_spdlog(level), "{}: {}", component, escape(message));
    return;
  }
  static constexpr const char* kLevelNames[] = {"debug", "info", "warn", "error"};
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const nlohmann::json line = {
      {"ts_ms", now}, {"level", kLevelNames[static_cast<int>(level)]}, {"component", component}, {"message", message}};
  // ASCII only, so that a terminal that shows the file receives no C1 control characters.
  logger().log(to_spdlog(level), "{}", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

// Suppresses repeated lines: a line is written once, then counted, and the count is written every kReportInterval.
class RepeatFilter {
 public:
  void write(LogLevel level, std::string_view component, std::string_view message) {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    while (!lines_oldest_first_.empty() && lines_oldest_first_.front()->second.interval_start + kReportInterval <= now)
      report_oldest(now, true);
    if (lines_oldest_first_.size() >= kMaxLines) report_oldest(now, false);
    std::string key = std::to_string(static_cast<int>(level));
    key.append(component).append(1, '\0').append(message);
    const auto [line, is_new] = lines_.try_emplace(std::move(key), Line{level, component.size(), now, 0});
    if (!is_new) {
      ++line->second.repetitions;
      return;
    }
    lines_oldest_first_.push_back(line);
    write_line(level, component, message);
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    lines_oldest_first_.clear();
    lines_.clear();
  }

 private:
  static constexpr std::chrono::seconds kReportInterval{30};
  static constexpr std::size_t kMaxLines = 500;
  struct Line {
    LogLevel level;
    std::size_t component_length;  // length of the component in the key of the line
    std::chrono::steady_clock::time_point interval_start;
    std::uint64_t repetitions;  // number of suppressed lines since interval_start
  };
  using Lines = std::map<std::string, Line>;  // by level digit, component, NUL and message

  void report_oldest(std::chrono::steady_clock::time_point now, bool keep_line) {
    const auto line = lines_oldest_first_.front();
    lines_oldest_first_.pop_front();
    auto& [key, entry] = *line;
    if (entry.repetitions > 0) {
      const std::string_view text(key);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - entry.interval_start).count();
      write_line(entry.level, text.substr(1, entry.component_length),
                 fmt::format("{} ({} times more in {} s)", text.substr(2 + entry.component_length), entry.repetitions,
                             seconds));
    }
    if (entry.repetitions == 0 || !keep_line) {
      lines_.erase(line);
      return;
    }
    entry.interval_start = now;
    entry.repetitions = 0;
    lines_oldest_first_.push_back(line);
  }

  std::mutex mutex_;
  Lines lines_;
  std::deque<Lines::iterator> lines_oldest_first_;  // sorted by interval_start
};

RepeatFilter& repeat_filter() {
  static RepeatFilter instance;
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void init_log(LogLevel level, LogFormat format) {
  repeat_filter().clear();
  writes_json_lines = format == LogFormat::json || (format == LogFormat::automatic && ::isatty(STDERR_FILENO) == 0);
  logger().set_level(to_spdlog(level));
  // spdlog has no JSON formatter, so the line is formatted here and the pattern passes it through.
  logger().set_pattern(writes_json_lines ? "%v" : "%H:%M:%S.%e %^%-5l%$ %v");
  if (std::getenv("NO_COLOR") != nullptr && !writes_json_lines) logger().set_pattern("%H:%M:%S.%e %-5l %v");
}

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

// The level is not checked here: spdlog drops lines below its level.
void log_line(LogLevel level, std::string_view component, std::string_view message) {
  repeat_filter().write(level, component, message);
}

}  // namespace mycojobs
