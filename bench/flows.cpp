// Measures a step of a flow, from the end of a job to the dispatch of its successor, by the size of the flow and of the
// context. Uses a real Redis server and a separate coordinator process. Prints tables.
//   ninja -C build programs flows_bench && build/bin/flows_bench > bench/flows.md
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/store_bench.h"
#include "flows/flow_creation.h"
#include "flows/flow_progress.h"
#include "model/codec.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"

using namespace mycojobs;

namespace {

FlowPlan plan_of(const nlohmann::json& definition) {
  ParsedPlan read = read_plan(definition);
  if (!read.plan) {
    std::fprintf(stderr, "%s\n", join(read.problems).c_str());
    std::exit(1);
  }
  return std::move(*read.plan);
}

// Builds a flow of `count` chains, each of `length` jobs.
FlowPlan chains(int count, int length, const std::string& type, int max_parallel = 0) {
  nlohmann::json jobs;
  for (int chain = 0; chain < count; ++chain) {
    for (int i = 0; i < length; ++i) {
      const auto name = [&](int n) { return "c" + std::to_string(chain) + "-" + std::to_string(n); };
      nlohmann::json& job = jobs[name(i)];
      job = {{"script", "pass"}, {"type", type}};
      if (i > 0) job["needs"] = {name(i - 1)};
    }
  }
  return plan_of({{"name", "chains"}, {"jobs", jobs}, {"max_parallel", max_parallel}});
}

class Bench {
 public:
  explicit Bench(const std::string& folder) : folder_(folder), redis_(must(EmbeddedRedis::start(folder))) {
    RedisStoreConfig config;
    config.default_url = EmbeddedRedis::url(folder);
    stores_ = make_redis_stores(config);
    flows_ = must(stores_->open_flows());
    store_ = must(stores_->open());
    must(store_->save(1, "context:1", {{"id", "1"}}));  // a context exists if it has keys
  }
  std::string url() const { return EmbeddedRedis::url(folder_); }
  const std::string& folder() const { return folder_; }
  std::vector<std::string> coordinator() const {
    return {program(), "coordinator", "--redis", url(), "--state-dir", folder_ + "/c", "--log-level", "warn"};
  }
  Id create(const FlowPlan& plan) {
    NewFlow asked;
    asked.context = asked.caller = 1;
    return must(create_flow(*flows_, plan, asked)).id;
  }
  void start(Id flow) {
    ProgressRequest request;
    request.context = 1;
    request.flow = flow;
    request.start = StartRun{"manual", 1};
    must(advance_run(*flows_, cache_, request));
  }
  bool ended(Id flow) {
    const auto status =
        must(store_->load_fields(1, "flow:" + std::to_string(flow), std::vector<std::string_view>{"status"}));
    return status.at(0).second == "finished" || status.at(0).second == "error";
  }
  void await(Id flow) {
    while (!ended(flow)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  // Ends `count` jobs of queue:bench like a runner, at most `slots` at a time. Returns, for each job, the time from the
  // end of a job until the next job can be claimed.
  std::vector<double> drain(std::size_t count, std::uint32_t slots) {
    auto waiter = must(stores_->open_waiter({{1, "queue:bench"}}, ""));
    std::vector<double> steps;
    ClaimRequest request;
    request.context = request.runner = 1;
    request.instance = "bench";
    request.queues = {"queue:bench"};
    request.max_jobs = slots;
    request.lease_ms = 3600000;
    Moment::time_point end{};
    for (std::size_t done = 0; done < count;) {
      const auto jobs = must(store_->claim(request)).jobs;
      if (jobs.empty()) {
        must(waiter->wait(1000, true));
        continue;
      }
      if (end != Moment::time_point{}) steps.push_back(ms_since(end));
      std::vector<Report> reports;
      for (const ClaimedJob& claimed : jobs) {
        JobEnd ended;
        ended.status = JobStatus::finished;
        ended.detail = "ok";
        reports.emplace_back(EndReport{claimed.ref, ended});
      }
      end = Moment::now();
      for (const auto& each : must(store_->report(1, reports))) must(each);
      done += jobs.size();
    }
    return steps;
  }
  // Returns the times from the end of each job to the dispatch of its successor, from the time stamps of the records.
  std::vector<double> stamps(Id flow, int length) {
    std::vector<double> steps;
    const auto record = decode<Flow>(must(store_->load(1, "flow:" + std::to_string(flow)))).record;
    std::vector<Job> jobs;
    for (const Id id : record.jobs) jobs.push_back(decode<Job>(must(store_->load(1, job_key(1, id)))).record);
    std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.started_ms < b.started_ms; });
    for (int i = 1; i < length; ++i) {
      steps.push_back(static_cast<double>(jobs[static_cast<std::size_t>(i)].queued_ms) -
                      static_cast<double>(jobs[static_cast<std::size_t>(i) - 1].ended_ms));
    }
    return steps;
  }

 private:
  std::string folder_;
  std::unique_ptr<EmbeddedRedis> redis_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<Store> store_;
  RunCache cache_;
};

void latency(Bench& bench) {
  std::printf(
      "\n## From the end of a job to the dispatch of its successor, ms\n\n"
      "| flow | measured by | median | p90 | maximum |\n|---|---|---|---|---|\n");
  const auto row = [](const char* flow, const char* by, const std::vector<double>& steps) {
    std::printf("| %s | %s | %.2f | %.2f | %.2f |\n", flow, by, at(steps, 0.5), at(steps, 0.9), at(steps, 1));
    std::fflush(stdout);
  };
  const BenchProgram coordinator(bench.coordinator());
  {
    const Id flow = bench.create(chains(1, 40, "bench"));
    bench.start(flow);
    row("chain of 40, one slot", "the clock of a client: from sending the end until the next job is claimed",
        bench.drain(40, 1));
    bench.await(flow);
  }
  {
    const BenchProgram agent({program(), "agent", "--redis", bench.url(), "--runner", "7", "--state-dir",
                              bench.folder() + "/agent", "--log-level", "warn"});
    std::this_thread::sleep_for(std::chrono::seconds(3));
    const Id flow = bench.create(chains(1, 40, "python"));
    const auto begin = Moment::now();
    bench.start(flow);
    bench.await(flow);
    const double took = ms_since(begin);
    row("chain of 40, a real agent", "the time stamps of end and dispatch in the store", bench.stamps(flow, 40));
    std::printf("\nThe chain of 40 Python jobs, each in a sandbox of its own, took %.0f ms.\n", took);
  }
}

void one_large(Bench& bench, int count, int length) {
  const BenchProgram coordinator(bench.coordinator());
  const FlowPlan plan = chains(count, length, "bench", 1);
  auto begin = Moment::now();
  const Id flow = bench.create(plan);
  const double created = ms_since(begin);
  begin = Moment::now();
  bench.start(flow);
  const double started = ms_since(begin);
  begin = Moment::now();
  const std::size_t all = plan.nodes.size();
  const auto steps = bench.drain(all, 1);
  const double ran = ms_since(begin);
  begin = Moment::now();
  bench.await(flow);
  const auto part = [&](std::size_t from) {
    return std::vector<double>(steps.begin() + static_cast<std::ptrdiff_t>(from),
                               steps.begin() + static_cast<std::ptrdiff_t>(from + steps.size() / 10));
  };
  std::printf("| %zu jobs, %d chains | %.0f | %.0f | %.2f | %.2f | %.2f | %.2f | %.0f | %.1f |\n", all, count, created,
              started, at(part(0), 0.5), at(part(steps.size() * 45 / 100), 0.5),
              at(part(steps.size() * 9 / 10 - 1), 0.5), ran / static_cast<double>(all), ms_since(begin),
              coordinator.resident_mib());
  std::fflush(stdout);
}

void many(Bench& bench, int count) {
  const BenchProgram coordinator(bench.coordinator());
  const FlowPlan plan = chains(2, 5, "bench");
  auto begin = Moment::now();
  std::vector<Id> flows;
  flows.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) flows.push_back(bench.create(plan));
  const double created = ms_since(begin);
  begin = Moment::now();
  for (const Id flow : flows) bench.start(flow);
  const double started = ms_since(begin);
  begin = Moment::now();
  bench.drain(static_cast<std::size_t>(count) * plan.nodes.size(), 16);
  for (const Id flow : flows) bench.await(flow);
  const double ran = ms_since(begin);
  const double jobs = static_cast<double>(count) * static_cast<double>(plan.nodes.size());
  std::printf("| %d | %.2f | %.2f | %.0f | %.1f |\n", count, created / count, started / count, jobs / ran * 1000,
              coordinator.resident_mib());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::string(argv[1]) == "--small";
  const ScratchFolder folder("mj-flows");
  std::printf(
      "# Flows: the cost of a step\n\n"
      "Measured by `flows_bench` (bench/flows.cpp) with a private Redis with `appendfsync everysec` on a socket, and\n"
      "`mycojobs coordinator` as a separate process. A test runner ends each job immediately; one row uses a real "
      "agent.\n");
  {
    Bench bench(folder.path());
    latency(bench);
    std::printf(
        "\n## One large flow\n\nOne job runs at a time (max_parallel). A step is the time from the end of a job until "
        "the next job is claimed; values are medians over a tenth of the flow.\n\n"
        "| flow | created, ms | started, ms | step at start, ms | in the middle | at the end | whole run, ms a job | "
        "from the last end to the end of the flow, ms | coordinator, MiB |\n|---|---|---|---|---|---|---|---|---|\n");
    one_large(bench, 10, 10);
    one_large(bench, 100, 10);
    one_large(bench, 100, small ? 20 : 100);
    std::printf(
        "\n## Many simultaneous flows of 10 jobs\n\nEach flow has two chains of five jobs; 16 slots.\n\n"
        "| flows | created, ms each | started, ms each | jobs a second | coordinator, MiB |\n|---|---|---|---|---|\n");
    many(bench, 100);
    many(bench, small ? 300 : 1000);
    if (!small) many(bench, 10000);
  }
  return 0;
}
