// Shared code of the benchmarks with a real Redis server: child programs, a runner that ends jobs at once, and times.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/support.h"
#include "model/job_end.h"
#include "store/store.h"

namespace mycojobs {

using Moment = std::chrono::steady_clock;
inline double ms_since(Moment::time_point begin) {
  return std::chrono::duration<double, std::milli>(Moment::now() - begin).count();
}
// Returns a quantile: at(values, 0.99) is the 99th percentile.
inline double at(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(static_cast<double>(values.size() - 1) * part)];
}

// Returns the resident memory of a process in MiB. process: its name below /proc.
inline double resident_mib_of(const std::string& process) {
  std::ifstream status("/proc/" + process + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

// A child program of the benchmark. Ctrl-C stops the benchmark process only; the child programs are killed with it,
// before they report a lost connection to Redis.
class BenchProgram {
 public:
  explicit BenchProgram(std::vector<std::string> argv) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<char*> words;
    for (std::string& word : argv) words.push_back(word.data());
    words.push_back(nullptr);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ~BenchProgram() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  BenchProgram(const BenchProgram&) = delete;
  BenchProgram& operator=(const BenchProgram&) = delete;
  double cpu_ms() const {  // CPU time of all threads
    double ns = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
      double ran = 0;
      if (std::ifstream(task.path() / "schedstat") >> ran) ns += ran;
    }
    return ns / 1e6;
  }
  double resident_mib() const { return resident_mib_of(std::to_string(pid_)); }

 private:
  pid_t pid_;
};
inline std::string program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "mycojobs").string();
}

// Ends jobs of queue:bench as soon as they can be claimed.
inline void end_jobs(StoreFactory& stores, Id context, Id runner, const std::atomic<bool>& stop) {
  auto store = must(stores.open());
  auto waiter = must(stores.open_waiter({{context, "queue:bench"}}, ""));
  ClaimRequest request;
  request.context = context;
  request.runner = runner;
  request.instance = "bench";
  request.queues = {"queue:bench"};
  request.max_jobs = 64;
  request.lease_ms = 3600000;
  while (!stop) {
    const auto jobs = must(store->claim(request)).jobs;
    if (jobs.empty()) {
      must(waiter->wait(200, true));
      continue;
    }
    std::vector<Report> reports;
    for (const ClaimedJob& claimed : jobs) {
      JobEnd ended;
      ended.status = JobStatus::finished;
      ended.detail = "ok";
      reports.emplace_back(EndReport{claimed.ref, ended});
    }
    for (const auto& each : must(store->report(context, reports))) must(each);
  }
}

}  // namespace mycojobs
