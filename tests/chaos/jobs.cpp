#include "chaos/jobs.h"

#include <algorithm>
#include <stdexcept>

namespace mycojobs::test {
namespace {

constexpr int kContexts = 2;
constexpr unsigned kGroupWeight = 8;  // weight of groups, compared with the weights of the kinds

constexpr const char* kLeave = R"(
print('end', me.epoch, flush=True)
result['epoch'] = str(me.epoch)
)";

constexpr const char* kFork = R"(
import os, threading
def idle():
    time.sleep(30)
# Children, a session of its own, a grandchild that nobody waits for; threads where the sandbox grants no processes.
for number in range(3):
    try:
        if os.fork() == 0:
            os.setsid()
            if number == 2:
                os.fork()
            idle()
    except PermissionError:
        threading.Thread(target=idle, daemon=True).start()
os.setsid()
time.sleep(0.2)
)";

constexpr const char* kFlood = R"(
import sys
for number in range(4000):
    print(number, 'o' * 60)
    print(number, 'e' * 60, file=sys.stderr)
)";

}  // namespace

std::size_t pick(Random& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}
std::int64_t between(Random& random, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      {"short", 20, "", {}, "finished ok"},
      {"nap", 10, "time.sleep(0.4)", {}, "finished ok"},
      {"long", 6, "time.sleep(4.5)", {}, "finished ok"},
      {"failing", 5, "raise ValueError('as planned')", {}, "error exception"},
      {"flaky",
       6,
       "if me.attempt == 1: raise ValueError('the first time')",
       {{"retries", "3"}},
       "finished ok",
       false,
       false,
       "2"},
      {"hopeless", 4, "sys.exit(3)", {{"retries", "1"}}, "error exit", false, false, "2"},
      {"forking", 6, kFork, {}, "finished ok"},
      {"deaf", 4, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1.2)", {}, "finished ok"},
      {"flooding", 3, kFlood, {}, "finished ok"},
      {"hungry", 3, "food = []\nwhile True: food.append(b'x' * (1 << 20))", {}, "error oom"},
      {"late", 3, "time.sleep(60)", {{"timeout", "1"}}, "error timeout"},
      {"cancelled", 6, "time.sleep(60)", {{"timeout", "300"}}, "error cancelled", true},
      {"stubborn",
       4,
       "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)",
       {{"timeout", "300"}},
       "error cancelled",
       true},
      {"delayed", 6, "", {}, "finished ok", false, true},
      {"keyed", 5, "time.sleep(0.3)", {{"concurrency_key", "chaos"}, {"concurrency_limit", "2"}}, "finished ok"},
      {"urgent", 4, "", {{"priority", "5"}}, "finished ok"},
      {"dependent", 0, "", {}, "finished ok"},
  };
  return kKinds;
}

const Kind& kind(std::string_view name) {
  for (const Kind& each : kinds()) {
    if (name == each.name) return each;
  }
  throw std::logic_error("no kind " + std::string(name));
}

std::string make_script(const Kind& kind) { return std::string(kIntroduce) + "import sys\n" + kind.script + kLeave; }

std::string PlannedJob::key() const { return "job:" + std::to_string(caller) + ":" + std::to_string(name.id); }

PlannedJob Plan::one(const Kind& kind, int context, std::int64_t now_us) {
  constexpr Way kWays[] = {Way::transaction, Way::transaction, Way::record_first,
                           Way::key_first,   Way::redis_cli,   Way::job_submit};
  PlannedJob job;
  job.kind = &kind;
  job.name = {context, next_id_++};
  job.token = std::to_string(++serial_);
  job.way = kWays[pick(random_, std::size(kWays))];
  job.submit_us = now_us;
  if (job.way == Way::job_submit && (!kind.fields.empty() || kind.delayed)) job.way = Way::transaction;
  if (job.way == Way::job_submit) {
    job.caller = 13;
    job.name.id = 0;
  }
  if (kind.cancelled) job.cancel_us = now_us + between(random_, 0, 3'000'000);
  return job;
}

// A diamond: two jobs depend on the first, and one job on both. The first may fail, and all others fail with it.
std::vector<PlannedJob> Plan::group(std::int64_t now_us) {
  const int context = 1 + static_cast<int>(pick(random_, kContexts));
  const Kind& first = kind(pick(random_, 4) == 0 ? "failing" : "nap");
  std::vector<PlannedJob> jobs;
  for (int number = 0; number < 4; ++number) {
    jobs.push_back(one(number == 0 ? first : kind("dependent"), context, now_us + between(random_, 0, 300'000)));
    if (jobs.back().way != Way::job_submit) continue;  // the other ways need the id in advance
    jobs.back().way = Way::transaction;
    jobs.back().caller = 12;
    jobs.back().name.id = next_id_++;
  }
  jobs[1].dependends = jobs[2].dependends = {jobs[0].name.id};
  jobs[3].dependends = {jobs[1].name.id, jobs[2].name.id};
  std::shuffle(jobs.begin(), jobs.end(), random_);
  return jobs;
}

std::vector<PlannedJob> Plan::next(std::int64_t now_us) {
  std::size_t total = kGroupWeight;
  for (const Kind& each : kinds()) total += each.weight;
  std::size_t at = pick(random_, total);
  for (const Kind& each : kinds()) {
    if (at < each.weight) return {one(each, 1 + static_cast<int>(pick(random_, kContexts)), now_us)};
    at -= each.weight;
  }
  return group(now_us);
}

}  // namespace mycojobs::test
