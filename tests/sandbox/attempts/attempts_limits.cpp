// Attempts to exceed a limit without being counted.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>
#include <vector>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

unsigned long read_clock_ms(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<unsigned long>(now.tv_sec) * 1000 + static_cast<unsigned long>(now.tv_nsec) / 1000000;
}

// Children that are never waited for: the kernel does not add their CPU time to the parent. Each child uses `words[1]`
// ms of CPU; children run one after another for `words[2]` ms.
std::string spin_in_unwaited_children(const Words& words) {
  ::signal(SIGCHLD, SIG_IGN);
  const unsigned long deadline_ms = read_clock_ms(CLOCK_MONOTONIC) + parse_number(words, 2);
  while (read_clock_ms(CLOCK_MONOTONIC) < deadline_ms) {
    const pid_t pid = ::fork();
    if (pid < 0) return get_errno_name();
    if (pid == 0) {
      while (read_clock_ms(CLOCK_PROCESS_CPUTIME_ID) < parse_number(words, 1)) {
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);  // Waits for the end of the child. While SIGCHLD is ignored, there is no status.
  }
  return "ok";
}

// Sends `words[1]` MiB over connections in the own network namespace and never reads them. The data is kernel memory.
std::string hold_connections(const Words& words) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 8) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return get_errno_name();
  }
  static char block[1 << 20];
  std::vector<int> sockets;
  std::size_t sent_bytes = 0;
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    if (client < 0 || ::connect(client, reinterpret_cast<sockaddr*>(&address), size) != 0) break;
    const int server = ::accept(listener, nullptr, nullptr);
    if (server < 0) break;
    sockets.insert(sockets.end(), {client, server});
    ::fcntl(client, F_SETFL, O_NONBLOCK);
    for (int failures = 0; failures < 20;) {
      const ssize_t sent = ::send(client, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) {
        sent_bytes += static_cast<std::size_t>(sent);
      } else {
        ++failures;
        ::usleep(200);
      }
    }
  }
  for (const int fd : sockets) ::close(fd);
  ::close(listener);
  return std::to_string(sent_bytes >> 20);
}

// Opens files from eight threads for `words[1]` ms.
std::string open_files_from_threads(const Words& words) {
  const unsigned long deadline_ms = read_clock_ms(CLOCK_MONOTONIC) + parse_number(words, 1);
  std::atomic<unsigned> opened_count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      while (read_clock_ms(CLOCK_MONOTONIC) < deadline_ms)
        ::close(::open("/srv/none", O_RDONLY | O_CLOEXEC)), ++opened_count;
    });
  }
  for (auto& thread : threads) thread.join();
  return std::to_string(opened_count);
}

// Uses CPU for at least `words[1]` ms. Returns the elapsed time in microseconds.
std::string use_cpu_for(const Words& words) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const std::chrono::milliseconds duration(parse_number(words, 1));
  auto now = start;
  while (now - start < duration) now = Clock::now();
  return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(now - start).count());
}

// Returns the soft and hard value of every limit by number: "1=67108864:67108864 ...".
std::string list_limits(const Words&) {
  std::string limits;
  for (int resource = 0; resource < RLIM_NLIMITS; ++resource) {
    rlimit limit{};
    if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return get_errno_name();
    limits += (limits.empty() ? "" : " ") + std::to_string(resource) + "=" + std::to_string(limit.rlim_cur) + ":" +
              std::to_string(limit.rlim_max);
  }
  return limits;
}

}  // namespace

const Attempts& limit_attempts() {
  static const Attempts kTable = {{"spin_unwaited", spin_in_unwaited_children},
                                  {"hold_connections", hold_connections},
                                  {"open_storm", open_files_from_threads},
                                  {"all_limits", list_limits},
                                  {"busy_for", use_cpu_for}};
  return kTable;
}

}  // namespace mycojobs::test
