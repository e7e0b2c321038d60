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

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// Returns a number of /proc/self/stat. field: numbered as in proc(5), after the name.
double field_of_stat(const std::string& stat, int field) {
  constexpr int kName = 2;
  std::size_t at = stat.rfind(')');  // the name may contain any character
  for (int i = kName; i < field && at != std::string::npos; ++i) at = stat.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtod(stat.c_str() + at, nullptr);
}

double booted_s() {
  timespec now{}, since_boot{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return static_cast<double>(now.tv_sec - since_boot.tv_sec) +
         static_cast<double>(now.tv_nsec - since_boot.tv_nsec) / 1e9;
}

double open_files() {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator each("/proc/self/fd", error), end; !error && each != end;
       each.increment(error)) {
    ++count;
  }
  return count > 0 ? count - 1 : 0;  // the read itself opens one
}

}  // namespace

ProcessFacts process_facts() {
  constexpr int kStartTime = 22, kResidentPages = 24;
  ProcessFacts facts;
  rusage used{};
  if (::getrusage(RUSAGE_SELF, &used) == 0) facts.cpu_s = seconds(used.ru_utime) + seconds(used.ru_stime);
  std::ifstream file("/proc/self/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  if (stat.empty()) return facts;
  facts.started_s = booted_s() + field_of_stat(stat, kStartTime) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  facts.memory_bytes = field_of_stat(stat, kResidentPages) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  facts.open_files = open_files();
  return facts;
}

}  // namespace mycojobs
