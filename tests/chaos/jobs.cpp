#include "chaos/jobs.h"

#include <algorithm>
#include <stdexcept>

namespace mycojobs::test {
namespace {

constexpr int kContexts = 2;
constexpr unsigned kGroupWeight = 8;  // weight of groups, compared with the weights of the kinds

constexpr const char* kReportEnd = R"(
print('end', me.epoch, flush=True)
result['epoch'] = str(me.epoch)
)";

constexpr const char* kForkScript = R"(
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

constexpr const char* kFloodScript = R"(
import sys
for number in range(4000):
    print(number, 'o' * 60)
    print(number, 'e' * 60, file=sys.stderr)
)";

}  // namespace

std::size_t pick_index(Random& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}
std::int64_t pick_between(Random& random, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}

const std::vector<JobKind>& job_kinds() {
  static const std::vector<JobKind> kKinds = {
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
      {"forking", 6, kForkScript, {}, "finished ok"},
      {"deaf", 4, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1.2)", {}, "finished ok"},
      {"flooding", 3, kFloodScript, {}, "finished ok"},
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

const JobKind& find_job_kind(std::string_view name) {
  for (const JobKind& kind_row : job_kinds()) {
    if (name == kind_row.name) return kind_row;
  }
  throw std::logic_error("no kind " + std::string(name));
}

std::string make_script(const JobKind& kind) {
  return std::string(kReportStart) + "import sys\n" + kind.script + kReportEnd;
}

std::string PlannedJob::key() const { return "job:" + std::to_string(caller) + ":" + std::to_string(name.id); }

PlannedJob Plan::make_job(const JobKind& kind, int context, std::int64_t now_us) {
  constexpr SubmitMethod kMethods[] = {SubmitMethod::transaction, SubmitMethod::transaction, SubmitMethod::record_first,
                                       SubmitMethod::key_first,   SubmitMethod::redis_cli,   SubmitMethod::job_submit};
  PlannedJob job;
  job.kind = &kind;
  job.name = {context, next_id_++};
  job.token = std::to_string(++last_token_);
  job.method = kMethods[pick_index(random_, std::size(kMethods))];
  job.submit_us = now_us;
  if (job.method == SubmitMethod::job_submit && (!kind.fields.empty() || kind.delayed))
    job.method = SubmitMethod::transaction;
  if (job.method == SubmitMethod::job_submit) {
    job.caller = 13;
    job.name.id = 0;
  }
  if (kind.cancelled) job.cancel_us = now_us + pick_between(random_, 0, 3'000'000);
  return job;
}

// A diamond: two jobs depend on the first, and one job on both. The first may fail, and all others fail with it.
std::vector<PlannedJob> Plan::make_diamond(std::int64_t now_us) {
  const int context = 1 + static_cast<int>(pick_index(random_, kContexts));
  const JobKind& first = find_job_kind(pick_index(random_, 4) == 0 ? "failing" : "nap");
  std::vector<PlannedJob> jobs;
  for (int number = 0; number < 4; ++number) {
    jobs.push_back(make_job(number == 0 ? first : find_job_kind("dependent"), context,
                            now_us + pick_between(random_, 0, 300'000)));
    if (jobs.back().method != SubmitMethod::job_submit) continue;  // the other ways need the id in advance
    jobs.back().method = SubmitMethod::transaction;
    jobs.back().caller = 12;
    jobs.back().name.id = next_id_++;
  }
  jobs[1].dependends = jobs[2].dependends = {jobs[0].name.id};
  jobs[3].dependends = {jobs[1].name.id, jobs[2].name.id};
  std::shuffle(jobs.begin(), jobs.end(), random_);
  return jobs;
}

std::vector<PlannedJob> Plan::plan_next(std::int64_t now_us) {
  std::size_t total = kGroupWeight;
  for (const JobKind& kind_row : job_kinds()) total += kind_row.weight;
  std::size_t remaining_weight = pick_index(random_, total);
  for (const JobKind& kind_row : job_kinds()) {
    if (remaining_weight < kind_row.weight)
      return {make_job(kind_row, 1 + static_cast<int>(pick_index(random_, kContexts)), now_us)};
    remaining_weight -= kind_row.weight;
  }
  return make_diamond(now_us);
}

}  // namespace mycojobs::test
