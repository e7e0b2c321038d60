#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

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

bool json_lines = false;

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = spdlog::stderr_color_mt("mycojobs");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *instance;
}

}  // namespace

void init_log(LogLevel level, LogFormat format) {
  json_lines = format == LogFormat::json || (format == LogFormat::automatic && ::isatty(STDERR_FILENO) == 0);
  logger().set_level(to_spdlog(level));
  // spdlog has no JSON formatter: the line is made here, and the pattern passes it through.
  logger().set_pattern(json_lines ? "%v" : "%H:%M:%S.%e %^%-5l%$ %v");
  if (std::getenv("NO_COLOR") != nullptr && !json_lines) logger().set_pattern("%H:%M:%S.%e %-5l %v");
}

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view component, std::string_view message) {
  if (!json_lines) {
    logger().log(to_spdlog(level), "{}: {}", component, message);
    return;
  }
  static constexpr const char* kWords[] = {"debug", "info", "warn", "error"};
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const nlohmann::json line = {
      {"ts_ms", now}, {"level", kWords[static_cast<int>(level)]}, {"component", component}, {"message", message}};
  logger().log(to_spdlog(level), "{}", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace mycojobs
