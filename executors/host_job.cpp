#include "executors/host_job.h"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>
#include <vector>

#include "executors/host_channel.h"

namespace mycojobs::host_job {
namespace {

// Written by start_job(), start_next_job(), query_cancelled() and the SIGTERM handler.
struct HostJobState {
  JobChannel channel;
  pid_t pid = 0;
  volatile std::sig_atomic_t has_received_term = 0;
  volatile std::sig_atomic_t script_handles_term = 0;
};
HostJobState current_job;

// Process 1 of a PID namespace ignores a default-action signal from itself, so it exits with the code that a shell
// would show.
extern "C" void on_term(int signal) {
  current_job.has_received_term = 1;
  if (current_job.script_handles_term != 0) return;
  if (::getpid() == 1) ::_exit(128 + signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void start_job(JobChannel channel) {
  current_job.channel = channel;
  current_job.pid = ::getpid();
  struct sigaction action {};
  action.sa_handler = on_term;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

void start_next_job(JobChannel channel) {
  current_job.channel = channel;
  current_job.has_received_term = 0;
  current_job.script_handles_term = 0;
}

void replace_environment(const std::map<std::string, std::string>& variables) {
  static std::map<std::string, std::unique_ptr<std::string>> entries;
  static std::vector<char*> block;
  std::map<std::string, std::unique_ptr<std::string>> new_entries;
  std::vector<char*> new_block;
  for (const auto& [name, value] : variables) {
    std::string entry = name + '=' + value;
    const auto existing = entries.find(entry);
    auto& slot = new_entries[entry];
    slot = existing != entries.end() ? std::move(existing->second) : std::make_unique<std::string>(std::move(entry));
    new_block.push_back(slot->data());
  }
  new_block.push_back(nullptr);
  ::environ = new_block.data();
  block.swap(new_block);
  entries.swap(new_entries);
}

bool is_job_process() { return ::getpid() == current_job.pid; }
const JobChannel& channel() { return current_job.channel; }
bool send(FrameKind kind, std::string_view payload) {
  return is_job_process() && send_frame(current_job.channel.to_agent, kind, payload);
}

bool query_cancelled() {
  current_job.script_handles_term = 1;
  return has_received_term();
}
bool has_received_term() { return current_job.has_received_term != 0; }

}  // namespace mycojobs::host_job
