#include "executors/host_job.h"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>
#include <vector>

#include "executors/host_channel.h"

namespace mycojobs::host_job {
namespace {

// Written by begin(), begin_next(), cancelled() and the SIGTERM handler.
struct HostJobState {
  JobChannel channel;
  pid_t pid = 0;
  volatile std::sig_atomic_t term_seen = 0;
  volatile std::sig_atomic_t script_asks = 0;
};
HostJobState this_job;

// Process 1 of a PID namespace ignores a default-action signal from itself, so it exits with the code that a shell
// would show.
extern "C" void on_term(int signal) {
  this_job.term_seen = 1;
  if (this_job.script_asks != 0) return;
  if (::getpid() == 1) ::_exit(128 + signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void begin(JobChannel channel) {
  this_job.channel = channel;
  this_job.pid = ::getpid();
  struct sigaction action {};
  action.sa_handler = on_term;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

void begin_next(JobChannel channel) {
  this_job.channel = channel;
  this_job.term_seen = 0;
  this_job.script_asks = 0;
}

void renew_environment(const std::map<std::string, std::string>& variables) {
  static std::map<std::string, std::unique_ptr<std::string>> entries;
  static std::vector<char*> block;
  std::map<std::string, std::unique_ptr<std::string>> kept;
  std::vector<char*> now;
  for (const auto& [name, value] : variables) {
    std::string entry = name + '=' + value;
    const auto old = entries.find(entry);
    auto& place = kept[entry];
    place = old != entries.end() ? std::move(old->second) : std::make_unique<std::string>(std::move(entry));
    now.push_back(place->data());
  }
  now.push_back(nullptr);
  ::environ = now.data();
  block.swap(now);
  entries.swap(kept);
}

bool is_here() { return ::getpid() == this_job.pid; }
const JobChannel& channel() { return this_job.channel; }
bool send(FrameKind kind, std::string_view payload) {
  return is_here() && send_frame(this_job.channel.up, kind, payload);
}

bool cancelled() {
  this_job.script_asks = 1;
  return term_seen();
}
bool term_seen() { return this_job.term_seen != 0; }

}  // namespace mycojobs::host_job
