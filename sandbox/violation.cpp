#include "sandbox/violation.h"

#include <fmt/core.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "sandbox/policy.h"

namespace mycojobs::sandbox {
namespace {

// The caller as its own namespace numbers it: the last of "NStgid: 3412 57 7".
std::int32_t pid_as_the_job_sees_it(std::uint32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("NStgid:", 0) == 0) return std::atoi(line.c_str() + line.find_last_of("\t ") + 1);
  }
  return 0;
}

// A job chooses its name: only what is plain text goes on.
std::string name_of(std::uint32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  for (char& c : name) {
    if (c < ' ' || c > '~') c = '?';
  }
  return name;
}

}  // namespace

std::optional<seccomp_notif> receive_call(int listener) {
  seccomp_notif call{};
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) return {};
  return call;
}

Violation describe_call(int listener, const std::optional<seccomp_notif>& call) {
  Violation violation;
  violation.syscall = "a forbidden call";
  if (!call) return violation;
  violation.syscall = syscall_name(call->data.arch, call->data.nr);
  for (std::size_t i = 0; i < violation.args.size(); ++i) violation.args[i] = call->data.args[i];
  violation.pid = pid_as_the_job_sees_it(call->pid);
  violation.comm = name_of(call->pid);
  // Still waiting: then the number was its own all the while, and not that of a later process.
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) != 0) violation.pid = 0, violation.comm.clear();
  return violation;
}

std::string describe(const Violation& violation) {
  std::string args;
  for (std::uint64_t arg : violation.args) args += fmt::format("{}{:#x}", args.empty() ? "" : ", ", arg);
  return fmt::format("denied: {}({}) by pid {} ({}): job killed", violation.syscall, args, violation.pid,
                     violation.comm);
}

}  // namespace mycojobs::sandbox
