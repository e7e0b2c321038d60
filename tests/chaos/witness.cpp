#include "chaos/witness.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace mycojobs::test {
namespace {

constexpr auto kScanInterval = std::chrono::milliseconds(4);
constexpr std::size_t kNameLength = 15;  // maximum length of a process name in the kernel
constexpr std::size_t kIdDigits = 4;

std::uint64_t parse_base36(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 36); }

}  // namespace

const char* const kReportStart = R"(import ctypes, mycojobs, time
def introduce(me):
    def digits(number, width):
        text = ''
        for _ in range(width):
            number, last = divmod(number, 36)
            text = '0123456789abcdefghijklmnopqrstuvwxyz'[last] + text
        return text
    name = '~%d' % me.context_id + digits(me.id, 4) + digits(me.epoch, 9)
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
    print('begin', me.epoch, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000, flush=True)
me = mycojobs.job
introduce(me)
)";

bool parse_process_name(const std::string& comm, ProcessName& name) {
  if (comm.size() != kNameLength || comm[0] != '~') return false;
  name.job.context = comm[1] - '0';
  name.job.id = static_cast<std::uint32_t>(parse_base36(comm.substr(2, kIdDigits)));
  name.epoch = parse_base36(comm.substr(2 + kIdDigits));
  return true;
}

Witness::Witness(ProcessTree& tree) : tree_(tree) {
  thread_ = std::thread([this] {
    while (!stop_) {
      scan();
      std::this_thread::sleep_for(kScanInterval);
    }
  });
}

Witness::~Witness() {
  stop_ = true;
  thread_.join();
}

void Witness::scan() {
  const std::int64_t now_us = boot_time_us();
  auto processes = tree_.list_processes();
  const std::lock_guard lock(mutex_);
  if (last_scan_us_ != 0) gaps_us_.push_back(now_us - last_scan_us_);
  last_scan_us_ = now_us;
  for (const auto& process : processes) {
    if (process.component == Component::launcher &&
        std::find(launchers_.begin(), launchers_.end(), process.pid) == launchers_.end()) {
      launchers_.push_back(process.pid);
    }
    ProcessName name;
    if (process.component != Component::job || !parse_process_name(process.comm, name)) continue;
    auto& lifetimes = lifetimes_[name.job];
    auto life = std::find_if(lifetimes.begin(), lifetimes.end(), [&](const Lifetime& known_lifetime) {
      return known_lifetime.pid == process.pid && known_lifetime.start_ticks == process.start_ticks &&
             known_lifetime.epoch == name.epoch;
    });
    if (life == lifetimes.end()) {
      lifetimes.push_back(
          {name.epoch, process.pid, process.start_ticks, process.after_us, process.before_us, process.real_us});
    } else {
      life->last_us = process.before_us;
      life->last_real_us = process.real_us;
    }
  }
  latest_processes_ = std::move(processes);
}

std::vector<ObservedProcess> Witness::latest_processes() const {
  const std::lock_guard lock(mutex_);
  return latest_processes_;
}

std::map<JobName, std::vector<Lifetime>> Witness::lifetimes() const {
  const std::lock_guard lock(mutex_);
  return lifetimes_;
}

std::vector<pid_t> Witness::launchers() const {
  const std::lock_guard lock(mutex_);
  return launchers_;
}

std::pair<std::int64_t, std::int64_t> Witness::resolution_us() const {
  const std::lock_guard lock(mutex_);
  if (gaps_us_.empty()) return {};
  auto gaps = gaps_us_;
  std::sort(gaps.begin(), gaps.end());
  return {gaps[gaps.size() / 2], gaps.back()};
}

std::vector<Overlap> find_overlaps(const std::map<JobName, std::vector<Lifetime>>& lifetimes) {
  std::vector<Overlap> found_overlaps;
  for (const auto& [job, job_lifetimes] : lifetimes) {
    for (std::size_t i = 0; i < job_lifetimes.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        const Lifetime& first = job_lifetimes[k];
        const Lifetime& second = job_lifetimes[i];
        const std::int64_t overlap_us =
            std::min(first.last_us, second.last_us) - std::max(first.first_us, second.first_us);
        if (first.epoch != second.epoch && overlap_us > 0) found_overlaps.push_back({job, first, second, overlap_us});
      }
    }
  }
  return found_overlaps;
}

}  // namespace mycojobs::test
