// What becomes of an exception that nobody caught: one line on stderr, and exit code 70 (EX_SOFTWARE of sysexits.h).
#pragma once

#include <unistd.h>

#include <exception>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace mycojobs {

inline constexpr int kBugExit = 70;

// "mycojobs: a bug: std::bad_alloc ...", as one write. Call it where an exception is being handled.
inline void say_last_words(std::string_view program) noexcept {
  std::string_view what = "an exception that is none of the library's";
  std::exception_ptr cause = std::current_exception();
  try {
    if (cause) std::rethrow_exception(cause);
    what = "terminated without an exception";
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {  // NOLINT(bugprone-empty-catch): named above
  }
  try {
    std::string line(program);
    line += ": a bug: ";
    for (char c : what) line += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c;
    line += "; please report it with what you called\n";
    (void)write_all(STDERR_FILENO, line);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory even for that
  }
}

// For the mains of helpers: at once, without exit handlers, since some of them fork and each child would run them.
[[noreturn]] inline void leave_with_last_words(std::string_view program) noexcept {
  say_last_words(program);
  ::_exit(kBugExit);
}

}  // namespace mycojobs
