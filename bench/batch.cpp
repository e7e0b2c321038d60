// Measures the submission of many jobs, singly and in batches: jobs per second, and CPU time of redis-server and the
// client. Prints tables.
//   ninja -C build batch_bench && build/bin/batch_bench > bench/batch.md
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "bench/support.h"
#include "service/job_service.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"

using namespace mycojobs;

namespace {

constexpr std::size_t kOneByOne = 2000, kTogether = 20000, kOfCall = 1000;
constexpr int kRounds = 5;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double own_cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}
double cpu_us_of(pid_t pid) {  // CPU time of the main thread, which runs the scripts
  double ns = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/schedstat") >> ns;
  return ns / 1e3;
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class BatchBench {
 public:
  explicit BatchBench(const std::string& folder) : redis_(must(EmbeddedRedis::start(folder))) {
    RedisStoreConfig config;
    config.default_url = EmbeddedRedis::url(folder);
    stores_ = make_redis_stores(config);
    store_ = must(stores_->open());
  }

  // Measures the cost of one job. `add` submits `count` jobs.
  double measure(const char* what, std::size_t count, const std::function<void(std::vector<Job>)>& add) {
    std::vector<double> rate, server, client, cpu;
    for (int round = -1; round < kRounds; ++round) {  // round -1 is a warm-up
      std::vector<Job> all = jobs(count);
      const double began = seconds(), own = own_cpu_us(), its = cpu_us_of(redis_->pid());
      add(std::move(all));
      if (round < 0) continue;
      const auto jobs = static_cast<double>(count);
      rate.push_back(jobs / (seconds() - began));
      client.push_back((own_cpu_us() - own) / jobs);
      server.push_back((cpu_us_of(redis_->pid()) - its) / jobs);
      cpu.push_back(client.back() + server.back());
    }
    std::printf("| %s | %.0f | %.1f | %.1f | %.1f |\n", what, median(rate), median(server), median(client),
                median(cpu));
    std::fflush(stdout);
    return median(cpu);
  }

  void submit_one_by_one(const std::vector<Job>& all) {
    for (const Job& job : all) must(service::submit_job(by_, *store_, std::nullopt, job));
  }
  void add(std::vector<Job> all, bool queued) {
    for (std::size_t from = 0; from < all.size(); from += kOfCall) {
      NewJobs made;
      must(service::add_jobs(by_, *store_, std::nullopt,
                             std::span(all).subspan(from, std::min(kOfCall, all.size() - from)), queued, made));
      if (made.rejected) must(Result<void>(tl::unexpected(made.rejected->error)));
    }
  }

  // Measures a flow in which all jobs start at once: the write, then the dispatch in commits of kOfCommit jobs.
  void measure_flow() {
    std::vector<double> put, commit;
    for (int round = -1; round < kRounds; ++round) {
      auto flows = must(stores_->open_flows());
      FlowDraft draft;
      draft.context = draft.caller = 1;
      draft.job_count = kOfFlow;
      const FlowIds place = must(flows->create(draft));
      std::vector<Job> all = jobs(kOfFlow);
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].idempotency_key.clear();
        all[i].caller_id = all[i].context_id = 1;
        all[i].id = place.first_job + static_cast<Id>(i);
      }
      Flow flow;
      flow.id = place.flow;
      flow.caller_id = flow.context_id = 1;
      flow.definition_hash = "bench";
      const auto its = [&] { return cpu_us_of(redis_->pid()); };
      double before = its();
      must(flows->put_jobs(1, place.flow, all));
      if (round >= 0) put.push_back((its() - before) / kOfFlow);
      must(flows->put_flow(flow, "bench"));
      std::uint64_t revision = must(flows->read(1, place.flow, std::nullopt)).revision;
      before = its();
      for (std::size_t from = 0; from < all.size(); from += kOfCommit) {
        FlowCommit step;
        step.context = 1;
        step.flow = place.flow;
        step.expected_revision = revision;
        step.facts.resize(1);
        step.facts[0].kind = "bench";
        for (std::size_t i = from; i < from + kOfCommit; ++i) step.dispatches.push_back({redis_key(all[i]), {}, {}});
        revision = must(flows->commit(step));
      }
      if (round >= 0) commit.push_back((its() - before) / kOfFlow);
    }
    std::printf("| a flow's jobs written, 200 a step | | %.1f | | |\n", median(put));
    std::printf("| a flow's jobs dispatched, 500 a commit | | %.1f | | |\n", median(commit));
  }

 private:
  static constexpr std::uint32_t kOfFlow = 5000, kOfCommit = 500;
  std::vector<Job> jobs(std::size_t count) {
    std::vector<Job> all(count);
    for (Job& job : all) {
      job.script = "pass";
      job.script_type = "python";
      job.timeout = 60;
      job.idempotency_key = "batch:" + std::to_string(next_++);
    }
    return all;
  }

  std::unique_ptr<EmbeddedRedis> redis_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<Store> store_;
  service::RequestContext by_{1, 1, EntryPoint::command, true};
  std::uint64_t next_ = 0;
};

}  // namespace

int main() {
  const ScratchFolder folder("mycojobs-batch");
  BatchBench bench(folder.path());
  std::printf(
      "# Submitting many jobs\n\nMeasured by `batch_bench` (bench/batch.cpp) with a private Redis with its AOF on, "
      "over a socket. Values are medians of %d rounds. Each job has a script, a timeout\nand an idempotency key.\n\n"
      "| operation | jobs/s | redis-server, us a job | client, us a job | both |\n|---|---|---|---|---|\n",
      kRounds);
  const double before = bench.measure("`submit_job()`, one job at a time", kOneByOne,
                                      [&](std::vector<Job> all) { bench.submit_one_by_one(all); });
  const double after = bench.measure("`jobs.create` with `start`, 1000 a call", kTogether,
                                     [&](std::vector<Job> all) { bench.add(std::move(all), true); });
  bench.measure_flow();
  bench.measure("`jobs.create`, records only", kTogether,
                [&](std::vector<Job> all) { bench.add(std::move(all), false); });
  std::printf("\nSubmitting one job at a time takes %.1f times the CPU time of a batch.\n", before / after);
  return 0;
}
