#include "executors/probe_program.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/spawn.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kProbeTimeoutMs = 30000;
constexpr std::size_t kMaxProbeBytes = 4096;

// Reads the program's output until it is closed or the deadline passes.
Result<std::string> read_output(int fd, std::uint64_t deadline_boot_ms) {
  std::string text;
  std::array<char, 1024> buffer;
  while (text.size() < kMaxProbeBytes) {
    const std::uint64_t now = SystemClock().boot_ms();
    if (now >= deadline_boot_ms) return fail(Code::unsupported, "no answer within 30 s");
    pollfd descriptor{fd, POLLIN, 0};
    if (::poll(&descriptor, 1, static_cast<int>(deadline_boot_ms - now)) <= 0) continue;
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR) return fail(Code::io, errno_text(errno));
    if (count == 0) break;
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

Result<std::string> probe_program(const std::string& program, const std::vector<std::string>& arguments) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return fail(Code::io, "pipe: " + errno_text(errno));
  Fd read_end(pipe_ends[0]);
  Fd write_end(pipe_ends[1]);
  const Fd dev_null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  SpawnSpec spec;
  spec.program = program;
  spec.arguments = arguments;
  spec.inherited_descriptors = {
      {dev_null.get(), STDIN_FILENO}, {write_end.get(), STDOUT_FILENO}, {write_end.get(), STDERR_FILENO}};
  auto child = spawn(spec);
  if (!child) return fail(Code::unsupported, child.error().message);
  write_end.reset();
  auto text = read_output(read_end.get(), SystemClock().boot_ms() + kProbeTimeoutMs);
  if (!text || text->size() >= kMaxProbeBytes) ::kill(child->pid, SIGKILL);
  const int code = wait_child(*child);
  if (!text) return fail(Code::unsupported, program + ": " + text.error().message);
  text->erase(0, std::min(text->find_first_not_of("\r\n "), text->size()));  // perl prints a blank line first
  const std::string line = text->substr(0, text->find('\n'));
  if (code != 0 && text->size() < kMaxProbeBytes) return fail(Code::unsupported, program + ": " + line);
  return line;
}

}  // namespace mycojobs
