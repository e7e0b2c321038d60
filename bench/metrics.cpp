// Measures the cost of a metric update: CPU time per call in ns, with existing series, from one thread and from four.
//   cmake --build build --target metrics_bench && build/bin/metrics_bench
#include <fmt/core.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "telemetry/metrics.h"

namespace mycojobs {
namespace {

constexpr int kTimes = 2'000'000;

double ns_of(const std::function<void()>& call, int threads) {
  const std::clock_t began = std::clock();
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) call();
    });
  }
  for (std::thread& each : all) each.join();
  return 1e9 * static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC / kTimes / threads;
}

int run() {
  for (const auto& [name, metrics] : {std::pair{"counting", Metrics::make()}, {"no listener", no_metrics()}}) {
    Metrics& to = *metrics;
    for (const int threads : {1, 4}) {
      fmt::print("{}, threads {}: counter {:.0f} ns, histogram {:.0f} ns, end of a job (4 labels) {:.0f} ns\n", name,
                 threads, ns_of([&] { to.add(Metric::queue_entries_dropped, {Id{1}}); }, threads),
                 ns_of([&] { to.observe(Metric::store_calls, {"claim"}, 0.001); }, threads),
                 ns_of(
                     [&] {
                       to.add(Metric::job_ends, {Id{1}, "python", "finished", "ok"});
                     },
                     threads));
    }
    const auto began = std::chrono::steady_clock::now();
    const std::size_t bytes = to.render().size();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    fmt::print("{}: a scrape of {} bytes takes {:.0f} us\n", name, bytes, took.count());
  }
  return 0;
}

}  // namespace
}  // namespace mycojobs

int main() { return mycojobs::run(); }
