#include "telemetry/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace mycojobs {
namespace {

double to_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// Returns a numeric field of the text of /proc/self/stat, or 0 if the field is missing. `field_number` is the number of
// the field in proc(5). REQUIRES: field_number > kNameField.
double parse_stat_field(const std::string& stat, int field_number) {
  constexpr int kNameField = 2;
  std::size_t position = stat.rfind(')');  // End of the process name, which may contain spaces and parentheses.
  for (int i = kNameField; i < field_number && position != std::string::npos; ++i)
    position = stat.find(' ', position + 1);
  return position == std::string::npos ? 0 : std::strtod(stat.c_str() + position, nullptr);
}

double compute_boot_time_s() {
  timespec now{}, since_boot{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return static_cast<double>(now.tv_sec - since_boot.tv_sec) +
         static_cast<double>(now.tv_nsec - since_boot.tv_nsec) / 1e9;
}

double count_open_files() {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    ++count;
  }
  return count > 0 ? count - 1 : 0;  // Without the descriptor of the directory iterator.
}

}  // namespace

ProcessStats read_process_stats() {
  constexpr int kStartTimeField = 22, kResidentPagesField = 24;
  ProcessStats stats;
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) stats.cpu_time_s = to_seconds(usage.ru_utime) + to_seconds(usage.ru_stime);
  std::ifstream file("/proc/self/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  if (stat.empty()) return stats;
  stats.start_time_s =
      compute_boot_time_s() + parse_stat_field(stat, kStartTimeField) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  stats.resident_bytes = parse_stat_field(stat, kResidentPagesField) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  stats.open_files = count_open_files();
  return stats;
}

}  // namespace mycojobs
