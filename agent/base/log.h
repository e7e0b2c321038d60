// The program's own log on stderr: text on a terminal, JSON lines otherwise. The output of jobs is not logged here.
// Other external text (keys, names, errors) is escaped, so that a message is one line and moves no cursor.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace mycojobs {

enum class LogLevel { debug, info, warn, error };
enum class LogFormat { automatic, text, json };

void init_log(LogLevel, LogFormat);
// `component` is worker, store, sandbox, ... Thread-safe.
void log_line(LogLevel, std::string_view component, std::string_view message);
bool log_enabled(LogLevel);

template <class... Args>
void log(LogLevel level, std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, component, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace mycojobs
