// Measures the process of a small Python job from fork to exit, without a sandbox: CPU time, page faults, memory.
//   ninja -C build zygote_bench && build/bin/zygote_bench [--jobs N] [--warm-only | --small-pages] [--script TEXT]
// This process warms up and freezes like mycojobs-pyhost. A child process in the role of the slot's init forks one job
// after another and sends each job its request, like the agent. --warm-only: no freezing. --small-pages: freezes as on
// a kernel without huge pages.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executors/channel.h"
#include "executors/python/pyhost/pyhost.h"
#include "sandbox/zygote/freeze.h"

using namespace mycojobs;

namespace {

constexpr std::pair<const char*, const char*> kScripts[] = {
    {"no-op", "pass"},
    {"small json", "import json\nresult['n'] = json.dumps([{'id': i, 'name': 'n%d' % i} for i in range(20)])\n"},
    {"imports",
     "import random, datetime\nresult['n'] = random.random()\nresult['t'] = datetime.datetime.now()"
     ".isoformat()\n"},
};

std::string request_of(std::string_view script) {
  std::string out;
  append_frame(out, FrameKind::facts,
               R"({"executor":"python","id":12345,"caller_id":12,"context_id":1,"name":"","attempt":1,"deliveries":1,)"
               R"("epoch":1,"deadline_unix_ms":1760000000000,"runner_id":7,"max_result_bytes":1048576,)"
               R"("max_artifact_bytes":16777216,"granted":{"exec":false,"net":"none","memory":268435456,)"
               R"("fs.read":[],"fs.write":[],"secrets":[]}})");
  append_frame(out, FrameKind::environment,
               R"({"HOME":"/job","LANG":"C.UTF-8","LOGNAME":"job","PATH":"/usr/bin:/bin","USER":"job"})");
  append_frame(out, FrameKind::script, script);
  return out;
}

double milliseconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
}

struct Usage {
  double user_ms = 0, system_ms = 0;
  long faults = 0;
};

Usage usage_of(int who) {
  rusage now{};
  ::getrusage(who, &now);
  return {milliseconds(now.ru_utime), milliseconds(now.ru_stime), now.ru_minflt};
}

[[noreturn]] void fail_bench(const char* what) {
  std::perror(what);
  ::_exit(1);
}

struct Forked {
  pid_t pid;
  int channel;
};

Forked fork_job() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail_bench("socketpair");
  const pid_t pid = ::fork();
  if (pid < 0) fail_bench("fork");
  if (pid == 0) {
    ::close(ends[0]);
    ::_exit(run_job({ends[1], ends[1]}));
  }
  ::close(ends[1]);
  return {pid, ends[0]};
}

void finish_job(const Forked& job, const std::string& request) {
  if (::send(job.channel, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    fail_bench("send");
  char answer[4096];
  while (::read(job.channel, answer, sizeof answer) > 0) {
  }
  ::close(job.channel);
  int status = 0;
  if (::waitpid(job.pid, &status, 0) != job.pid || status != 0) {
    std::fprintf(stderr, "the job ended with status %d\n", status);
    ::_exit(1);
  }
}

// Returns the private dirty memory of a process in KiB. Called by another process while the job waits for its request.
long private_dirty_of(pid_t pid) {
  std::ifstream rollup("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string word;
  while (rollup >> word) {
    long amount = 0;
    if (word == "Private_Dirty:" && rollup >> amount) return amount;
  }
  return -1;
}

// Runs in the process of the slot. The cost of the fork is attributed to the slot, the rest to the job.
void measure(const char* name, std::string_view script, int jobs) {
  const std::string request = request_of(script);
  for (int i = 0; i < 20; ++i) finish_job(fork_job(), request);
  const Forked waiting = fork_job();
  ::usleep(20000);
  const long dirty = private_dirty_of(waiting.pid);
  finish_job(waiting, request);
  const Usage own = usage_of(RUSAGE_SELF), theirs = usage_of(RUSAGE_CHILDREN);
  for (int i = 0; i < jobs; ++i) finish_job(fork_job(), request);
  const Usage own_end = usage_of(RUSAGE_SELF), theirs_end = usage_of(RUSAGE_CHILDREN);
  const auto each = [jobs](double before, double after) { return (after - before) * 1e3 / jobs; };
  const double user = each(theirs.user_ms, theirs_end.user_ms), system = each(theirs.system_ms, theirs_end.system_ms);
  const double slot = each(own.user_ms + own.system_ms, own_end.user_ms + own_end.system_ms);
  std::printf("| %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f | %ld |\n", name, user, system, slot,
              user + system + slot, static_cast<double>(theirs_end.faults - theirs.faults) / jobs,
              static_cast<double>(own_end.faults - own.faults) / jobs, dirty);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int jobs = 1000;
  bool freeze = true, huge_pages = true;
  std::vector<std::pair<const char*, const char*>> scripts(std::begin(kScripts), std::end(kScripts));
  for (int i = 1; i < argc; ++i) {
    const std::string_view option(argv[i]);
    if (option == "--warm-only") freeze = false;
    if (option == "--small-pages") huge_pages = false;
    if (option == "--jobs" && i + 1 < argc) jobs = std::atoi(argv[++i]);
    if (option == "--script" && i + 1 < argc) scripts = {{"script", argv[++i]}};
  }
  if (const auto warm = warm_up(); !warm) {
    std::fprintf(stderr, "%s\n", warm.error().message.c_str());
    return 1;
  }
  const sandbox::FreezeResult frozen =
      freeze ? sandbox::freeze_memory(get_job_written_memory(), huge_pages) : sandbox::FreezeResult{};
  std::printf("frozen: %lu KiB in huge pages, %lu KiB in a file\n\n", frozen.huge_page_bytes / 1024,
              frozen.file_bytes / 1024);
  std::printf(
      "| job | user, us | system, us | its slot, us | together, us | faults | its slot's | ready child, KiB |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  const pid_t slot = ::fork();
  if (slot < 0) fail_bench("fork");
  if (slot == 0) {
    for (const auto& [name, script] : scripts) measure(name, script, jobs);
    ::_exit(0);
  }
  int status = 0;
  return ::waitpid(slot, &status, 0) == slot && status == 0 ? 0 : 1;
}
