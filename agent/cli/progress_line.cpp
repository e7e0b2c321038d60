#include "cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace mycojobs {
namespace {

constexpr std::uint64_t kQuietMs = 1000;  // what is over sooner needs no line
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

}  // namespace mycojobs
