#include "chaos/witness.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace mycojobs::test {
namespace {

constexpr auto kPause = std::chrono::milliseconds(4);
constexpr std::size_t kNameLength = 15;  // maximum length of a process name in the kernel
constexpr std::size_t kIdDigits = 4;

std::uint64_t base36(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 36); }

}  // namespace

const char* const kIntroduce = R"(import ctypes, mycojobs, time
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
  name.job.id = static_cast<std::uint32_t>(base36(comm.substr(2, kIdDigits)));
  name.epoch = base36(comm.substr(2 + kIdDigits));
  return true;
}

Witness::Witness(ProcessTree& tree) : tree_(tree) {
  thread_ = std::thread([this] {
    while (!stop_) {
      look();
      std::this_thread::sleep_for(kPause);
    }
  });
}

Witness::~Witness() {
  stop_ = true;
  thread_.join();
}

void Witness::look() {
  const std::int64_t now_us = boot_us();
  auto seen = tree_.walk();
  const std::lock_guard lock(mutex_);
  if (looked_us_ != 0) gaps_us_.push_back(now_us - looked_us_);
  looked_us_ = now_us;
  for (const auto& process : seen) {
    if (process.what == Component::launcher &&
        std::find(launchers_.begin(), launchers_.end(), process.pid) == launchers_.end()) {
      launchers_.push_back(process.pid);
    }
    ProcessName name;
    if (process.what != Component::job || !parse_process_name(process.comm, name)) continue;
    auto& lives = lives_[name.job];
    auto life = std::find_if(lives.begin(), lives.end(), [&](const Life& each) {
      return each.pid == process.pid && each.started == process.started && each.epoch == name.epoch;
    });
    if (life == lives.end()) {
      lives.push_back({name.epoch, process.pid, process.started, process.after_us, process.before_us, process.real_us});
    } else {
      life->last_us = process.before_us;
      life->last_real_us = process.real_us;
    }
  }
  latest_ = std::move(seen);
}

std::vector<ProcessSeen> Witness::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

std::map<JobName, std::vector<Life>> Witness::lives() const {
  const std::lock_guard lock(mutex_);
  return lives_;
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

std::vector<Overlap> overlaps(const std::map<JobName, std::vector<Life>>& lives) {
  std::vector<Overlap> found;
  for (const auto& [job, of_job] : lives) {
    for (std::size_t i = 0; i < of_job.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        const Life& one = of_job[k];
        const Life& other = of_job[i];
        const std::int64_t both_us = std::min(one.last_us, other.last_us) - std::max(one.first_us, other.first_us);
        if (one.epoch != other.epoch && both_us > 0) found.push_back({job, one, other, both_us});
      }
    }
  }
  return found;
}

}  // namespace mycojobs::test
