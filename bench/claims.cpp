// Measures the cost of a job in the store, without a sandbox: CPU time of redis-server and the client, by step and by
// the number of jobs claimed and reported in one round trip; then the cost of a claim by queue length. Prints tables.
//   ninja -C build claims_bench && build/bin/claims_bench > bench/claims.md
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "bench/support.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"

using namespace mycojobs;

namespace {

constexpr std::uint32_t kJobs = 1600;  // jobs of one round; a multiple of each batch size
constexpr int kRounds = 5;
constexpr const char* kReceipt =
    R"({"job":"job:1:1","layers":["userns","pidns","netns","ipcns","utsns","mntns","cgroupns","landlock","seccomp"],)"
    R"("limits":{"cpu_ms":60000,"memory":268435456,"pids":64,"wall_ms":60000},"profile":"python","status":"ok",)"
    R"("stragglers":0,"usage":{"memory_peak_bytes":1679360,"pids_peak":1,"stderr_bytes":0,"stdout_bytes":0,)"
    R"("system_us":1500,"user_us":500,"wall_us":2900}})";

double own_cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}
double cpu_us_of(pid_t pid) {  // CPU time of all threads
  double ns = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    double ran = 0;
    if (std::ifstream(task.path() / "schedstat") >> ran) ns += ran;
  }
  return ns / 1e3;
}

struct Cost {
  std::vector<double> server, client;  // us per job, for each round
};
double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

class Run {
 public:
  explicit Run(const std::string& folder) : redis_(must(EmbeddedRedis::start(folder))) {
    RedisStoreConfig config;
    config.default_url = EmbeddedRedis::url(folder);
    stores_ = make_redis_stores(config);
    store_ = must(stores_->open());
    plain_ = std::make_unique<RedisConnection>(must(connection_options(config, 1)));
  }

  void measure(std::uint32_t batch) {
    Cost submit, push, claim, log, end;
    for (int round = -1; round < kRounds; ++round) {  // round -1 is a warm-up
      const bool count = round >= 0;
      const auto step = [&](Cost& cost, const auto& work) {
        Cost ignored;
        timed(count ? cost : ignored, kJobs, work);
      };
      std::vector<ClaimedJob> taken;
      const auto claim_all = [&] {
        while (taken.size() < kJobs) {
          for (ClaimedJob& job : must(store_->claim(request(batch))).jobs) taken.push_back(std::move(job));
        }
      };
      step(submit, [&] {
        for (std::uint32_t i = 0; i < kJobs; ++i) must(store_->submit(job()));
      });
      step(claim, claim_all);
      step(log, [&] { report(taken, batch, [](const ClaimedJob& each) { return Report(lines(each.ref)); }); });
      step(end, [&] {
        report(taken, batch, [](const ClaimedJob& each) { return Report(EndReport{each.ref, ending()}); });
      });
      taken.clear();
      Cost unused;
      step(push, [&] { push_jobs(kJobs); });  // as a plain client does, so that its claim has nothing to begin with
      step(plain_claim_[batch], claim_all);
      report(taken, batch, [](const ClaimedJob& each) { return Report(EndReport{each.ref, ending()}); });
    }
    std::printf("| %u ", batch);
    for (const Cost* cost : {&submit, &push, &claim, &plain_claim_[batch], &log, &end})
      std::printf("| %.0f + %.0f ", median(cost->server), median(cost->client));
    const auto sum = [](const std::vector<double>& a, const std::vector<double>& b) { return median(a) + median(b); };
    std::printf("| %.0f + %.0f |\n", sum(plain_claim_[batch].server, end.server),
                sum(plain_claim_[batch].client, end.client));
    std::fflush(stdout);
  }

  // Measures the claim and the end of one job with `queued` jobs behind it. The queued jobs have no records, because
  // they are never claimed.
  void measure_queue(std::uint64_t queued) {
    const std::uint64_t have = must(store_->queue_length(1, kQueue));
    for (std::uint64_t i = have; i < queued; i += 1000) {
      Arguments push{"LPUSH", kQueue};
      std::vector<std::string> keys;
      for (std::uint64_t n = i; n < std::min(i + 1000, queued); ++n) keys.push_back("job:2:" + std::to_string(n + 1));
      for (const std::string& key : keys) push.add(key);
      must(plain_->command(push));
    }
    Cost submit, claim, lease;
    for (int round = -1; round < kRounds; ++round) {
      Cost ignored;
      constexpr std::uint32_t kSome = 400;
      std::vector<ClaimedJob> taken;
      for (std::uint32_t i = 0; i < kSome; ++i) {  // RPUSH: the end from which jobs are claimed
        push_jobs(1, "RPUSH");
        timed(round < 0 ? ignored : claim, 1, [&] { taken = must(store_->claim(request(1))).jobs; });
        report(taken, 1, [](const ClaimedJob& each) { return Report(EndReport{each.ref, ending()}); });
      }
      timed(round < 0 ? ignored : submit, kSome, [&] {
        for (std::uint32_t i = 0; i < kSome; ++i) {
          Job created = must(store_->create_job(job()));
          must(store_->start_job(1, "job:1:" + std::to_string(created.id)));
        }
      });
    }
    std::printf("| %llu | %.0f + %.0f | %.0f + %.0f |\n", static_cast<unsigned long long>(queued), median(claim.server),
                median(claim.client), median(submit.server), median(submit.client));
    std::fflush(stdout);
  }

 private:
  static constexpr const char* kQueue = "queue:python";

  static Job job() {
    Job job;
    job.caller_id = job.context_id = 1;
    job.script = "pass";
    job.script_type = "python";
    job.timeout = 60;
    return job;
  }
  static JobEnd ending() {
    JobEnd end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    end.usage =
        R"({"memory_peak_bytes":1679360,"pids_peak":1,"stderr_bytes":0,"stdout_bytes":0,"system_us":1500,"user_us":500,"wall_us":2900})";
    end.layers = "userns pidns netns ipcns utsns mntns cgroupns landlock seccomp";
    end.receipt = kReceipt;
    return end;
  }
  static LogAppend lines(const ClaimRef& claim) {
    return {claim, {{1700000000000, 1, LogStream::out, "hello\n"}, {1700000000001, 2, LogStream::out, "world\n"}}};
  }
  static ClaimRequest request(std::uint32_t batch) {
    ClaimRequest request;
    request.context = request.runner = 1;
    request.instance = "0123456789abcdef";
    request.queues = {"mj:queue:runner1", kQueue};
    request.max_jobs = batch;
    request.lease_ms = 600000;
    return request;
  }
  template <class Work>
  void timed(Cost& cost, std::uint32_t jobs, const Work& work) {
    const double server = cpu_us_of(redis_->pid());
    const double client = own_cpu_us();
    work();
    cost.client.push_back((own_cpu_us() - client) / jobs);
    cost.server.push_back((cpu_us_of(redis_->pid()) - server) / jobs);
  }
  template <class Make>
  void report(const std::vector<ClaimedJob>& jobs, std::uint32_t batch, const Make& make) {
    for (std::size_t i = 0; i < jobs.size(); i += batch) {
      std::vector<Report> reports;
      for (std::size_t n = i; n < std::min<std::size_t>(i + batch, jobs.size()); ++n) reports.push_back(make(jobs[n]));
      for (Result<void>& answer : must(store_->report(1, reports))) must(std::move(answer));
    }
  }
  void push_jobs(std::uint32_t count, const char* how = "LPUSH") {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::string id = std::to_string(++plain_id_);
      const std::string key = "job:9:" + id;
      must(plain_->command({"HSET", key, "id", id, "caller_id", "9", "context_id", "1", "script", "pass", "script_type",
                            "python", "timeout", "60", "status", "dispatched"}));
      must(plain_->command({how, kQueue, key}));
    }
  }

  std::unique_ptr<EmbeddedRedis> redis_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<RedisConnection> plain_;
  std::map<std::uint32_t, Cost> plain_claim_;
  std::uint64_t plain_id_ = 0;
};

}  // namespace

int main() {
  const ScratchFolder folder("mj-claims");
  std::printf(
      "# Claims: microseconds of CPU a job\n\n"
      "By `claims_bench` (bench/claims.cpp): a private Redis with `appendonly yes`, `appendfsync everysec` on a socket "
      "and one\nclient, no sandbox. Each figure is redis-server + client, the median of %d rounds of %u jobs.\n\n"
      "| jobs a trip | submit, one at a time | HSET and LPUSH of a plain client | claim, submitted | claim, pushed | "
      "two "
      "lines of log | end | pushed: claim and end |\n|---|---|---|---|---|---|---|---|\n",
      kRounds, kJobs);
  {
    Run run(folder.path());
    for (std::uint32_t batch : {1U, 4U, 16U}) run.measure(batch);
    std::printf(
        "\n## By the length of the queue\n\n"
        "| queued | claim of one | a record first, then its start |\n|---|---|---|\n");
    for (std::uint64_t queued : {1000ULL, 1000000ULL}) run.measure_queue(queued);
  }
  return 0;
}
