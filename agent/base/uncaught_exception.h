// Reports an uncaught exception in one line on stderr and exits with code 70 (EX_SOFTWARE of sysexits.h). If the host
// is out of memory or threads, the line names the resource and the exit code is 71 (EX_OSERR).
#pragma once

#include <unistd.h>

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "base/fd.h"
#include "base/shortage.h"

namespace mycojobs {

inline constexpr int kBugExitCode = 70, kShortageExitCode = 71;

// Writes "mycojobs: a bug: vector::at ..." with one write and returns the exit code. Must be called while an exception
// is being handled.
inline int report_uncaught_exception(std::string_view program) noexcept {
  std::string_view message = "an exception that is none of the library's";
  const ResourceShortage* shortage = nullptr;
  std::exception_ptr cause = std::current_exception();
  try {
    if (cause) std::rethrow_exception(cause);
    message = "terminated without an exception";
  } catch (const std::bad_alloc&) {
    shortage = find_shortage(ENOMEM);
  } catch (const std::system_error& error) {
    shortage = find_shortage(error.code().value());
    message = error.what();
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {  // NOLINT(bugprone-empty-catch): named above
  }
  try {
    std::string line(program);
    if (shortage != nullptr) {
      line += ": " + describe_shortage(*shortage);
    } else {
      line += ": a bug: ";
      for (char c : message) line += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c;
      line += "; please report it with what you called";
    }
    line += '\n';
    (void)write_all(STDERR_FILENO, line);
  } catch (...) {  // The line could not be allocated either.
    const ResourceShortage* memory = find_shortage(ENOMEM);
    for (std::string_view text : {program, std::string_view(": out of "), std::string_view(memory->resource),
                                  std::string_view(": "), std::string_view(memory->remedy), std::string_view("\n")})
      (void)write_all(STDERR_FILENO, text);
  }
  return shortage != nullptr ? kShortageExitCode : kBugExitCode;
}

// For the main functions of helpers. Exits without exit handlers, since some helpers fork and each child would run
// them.
[[noreturn]] inline void exit_with_report(std::string_view program) noexcept {
  ::_exit(report_uncaught_exception(program));
}

}  // namespace mycojobs
