#include "denied.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "sandbox/attempts/attempts.h"

namespace mycojobs::test {
namespace {

bool write_file(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return ok;
}

// Enters new namespaces in which only `folder` is writable and signals cannot leave. Returns "" on success.
std::string enter_namespaces(const std::string& folder) {
  const std::string uid = std::to_string(::geteuid()), gid = std::to_string(::getegid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID) != 0)
    return "unshare";
  write_file("/proc/self/setgroups", "deny");
  if (!write_file("/proc/self/uid_map", "0 " + uid + " 1") || !write_file("/proc/self/gid_map", "0 " + gid + " 1"))
    return "maps";
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "private";
  struct {
    std::uint64_t set, clear, propagation, userns;
  } attr{MS_RDONLY, 0, 0, 0};
  if (::syscall(SYS_mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &attr, sizeof attr) != 0) return "read-only";
  if (::mount("control", folder.c_str(), "tmpfs", 0, "size=64m,mode=700") != 0) return "folder";
  return ::chdir(folder.c_str()) == 0 ? "" : "chdir";
}

// Replaces each "~" by the folder.
std::string replace_folder(std::string line, const std::string& folder) {
  for (std::size_t position = 0; (position = line.find('~', position)) != std::string::npos;)
    line.replace(position, 1, folder);
  return line;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream words(text);
  for (std::string part; std::getline(words, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::string join(const std::vector<std::string>& list) {
  std::string all;
  for (const auto& part : list) all += (all.empty() ? "" : "|") + part;
  return all;
}

}  // namespace

std::string run_attempt_outside(const std::string& line) {
  char folder[] = "/tmp/mycojobs-control-XXXXXX";
  EXPECT_NE(::mkdtemp(folder), nullptr);
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t outer = ::fork();
  if (outer == 0) {
    ::close(pipe[0]);
    std::string result = enter_namespaces(folder);
    if (!result.empty()) result = "cannot enter namespaces: " + result;
    // Forks twice, so that the attempt is not pid 1, which ignores signals.
    if (result.empty() && ::fork() == 0) {
      if (::fork() == 0) {
        [&]() noexcept {
          result = run_attempt(replace_folder(line, folder));
        }();  // An exception must not leave the child.
        (void)!::write(pipe[1], result.data(), result.size());
        ::_exit(0);
      }
      ::close(pipe[1]);
      while (::wait(nullptr) > 0) continue;
      ::_exit(0);
    }
    (void)!::write(pipe[1], result.data(), result.size());
    ::close(pipe[1]);
    while (::wait(nullptr) > 0) continue;
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string result;
  char part[4096];
  for (ssize_t size = 0; (size = ::read(pipe[0], part, sizeof part)) > 0;)
    result.append(part, static_cast<std::size_t>(size));
  ::close(pipe[0]);
  ::waitpid(outer, nullptr, 0);
  ::rmdir(folder);
  return result;
}

std::vector<std::string> find_unexpected_results(Sandbox& sandbox, const std::vector<DeniedRow>& rows, bool can_exec) {
  std::string lines;
  for (const auto& row : rows) lines += row.attempt + "\n";
  RunSpec spec = make_spec();
  spec.limits.exec = can_exec;
  const RunResult run_result = run_attempts(sandbox, spec, lines);
  std::vector<std::string> unexpected_results;
  if (run_result.outcome.status != RunStatus::ok)
    unexpected_results.push_back("the job ended: " + run_result.outcome.reason);
  for (const auto& row : rows) {
    const std::string result = run_result.get_result(row.attempt);
    if (!contains(row.accepted_results, result))
      unexpected_results.push_back(std::string(row.id) + ": " + row.attempt + " -> " + result + ", expected " +
                                   join(row.accepted_results));
  }
  return unexpected_results;
}

std::vector<std::string> find_unexpected_control_results(const std::vector<DeniedRow>& rows) {
  std::vector<std::string> unexpected_results;
  for (const auto& row : rows) {
    if (contains(row.accepted_results, "ok")) continue;
    const std::size_t arrow = row.control.find("=> ");
    std::string line = row.control.substr(0, arrow == std::string::npos ? arrow : arrow - (arrow > 0 ? 1 : 0));
    if (line.empty()) line = row.attempt;
    auto expected = split(arrow == std::string::npos ? "ok" : row.control.substr(arrow + 3), '|');
    if (expected.empty()) expected.emplace_back();
    const std::string result = run_attempt_outside(line);
    if (!contains(expected, result))
      unexpected_results.push_back(std::string("control of ") + row.id + ": " + line + " -> " + result + ", expected " +
                                   join(expected));
  }
  return unexpected_results;
}

void expect_denied(const std::vector<DeniedRow>& rows, bool can_exec) {
  for (const auto& text : find_unexpected_results(shared_sandbox(), rows, can_exec)) ADD_FAILURE() << text;
  for (const auto& text : find_unexpected_control_results(rows)) ADD_FAILURE() << text;
}

}  // namespace mycojobs::test
