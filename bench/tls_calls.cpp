// CPU time of this process for one call of Redis, over a plain connection or TLS: the minimum of several rounds, since
// other processes can only add to it. bench/tls.py runs it. Usage: tls_calls_bench URL CA-FILE
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "store/redis/redis_connection.h"

namespace {

constexpr int kRounds = 20, kCalls = 5000;

double get_cpu_us() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Returns the CPU time of one call in microseconds, or a negative number if a call fails.
double measure(mycojobs::RedisConnection& connection, const mycojobs::Arguments& call) {
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < kRounds; ++round) {
    const double start = get_cpu_us();
    for (int i = 0; i < kCalls; ++i) {
      if (!connection.command(call)) return -1;
    }
    best = std::min(best, (get_cpu_us() - start) / kCalls);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const auto endpoint = mycojobs::parse_redis_url(argv[1]);
  if (!endpoint) return 64;
  mycojobs::TlsSettings settings;
  settings.ca = argv[2];
  mycojobs::RedisConnection::Options options;
  options.endpoint = *endpoint;
  options.tls = std::make_shared<mycojobs::TlsContext>(settings);
  mycojobs::RedisConnection connection(options);
  const std::string value(4096, 'x');
  const double ping = measure(connection, {"PING"});
  const double set = measure(connection, {"SET", "tls_calls_bench", value});
  const double get = measure(connection, {"GET", "tls_calls_bench"});
  std::printf("%.2f %.2f %.2f\n", ping, set, get);
  return std::min({ping, set, get}) < 0 ? 1 : 0;
}
