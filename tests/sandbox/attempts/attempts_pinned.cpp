// Kernel memory that a job can allocate with few resources of its own. `pin KIND [MAXIMUM]` allocates as much of one
// kind as possible and holds it until the process exits. pinned_bench measures it.
#include <fcntl.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>
#include <vector>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

std::string format_count(unsigned long count, bool has_succeeded) {
  return std::to_string(count) + (has_succeeded ? "" : " " + get_errno_name());
}

// Calls `allocate` until it fails, at most `max_count` times. Returns the number of successful calls, and the errno of
// the failed call.
template <class Allocate>
std::string repeat_until_failure(unsigned long max_count, Allocate allocate) {
  unsigned long count = 0;
  while (count < max_count && allocate(count)) ++count;
  return format_count(count, count == max_count);
}

int open_or_create(const std::string& path) { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); }

long set_lock(int fd, long type, long start, int command = F_SETLK) {
  struct flock lock {};
  lock.l_type = static_cast<short>(type);
  lock.l_start = start;
  lock.l_len = 1;
  return ::fcntl(fd, command, &lock);
}

// Adjacent locks would be merged, so the locks have gaps. The kernel searches a list per file, so each file has few
// locks. Every process uses its own files; otherwise the locks would conflict.
std::string allocate_record_locks(unsigned long max_count) {
  constexpr unsigned long kLocksPerFile = 500;
  int fd = -1;
  return repeat_until_failure(max_count, [&](unsigned long i) {
    if (i % kLocksPerFile == 0)
      fd = open_or_create("/tmp/locks" + std::to_string(::getpid()) + "." + std::to_string(i / kLocksPerFile % 150));
    return fd >= 0 && set_lock(fd, F_WRLCK, static_cast<long>(2 * (i + 1))) == 0;
  });
}

// Counts the locks of this process in /proc/self/fdinfo.
std::string count_held_locks(const Words&) {
  unsigned long count = 0;
  for (int fd = 0; fd < 256; ++fd) {
    std::ifstream file("/proc/self/fdinfo/" + std::to_string(fd));
    for (std::string line; std::getline(file, line);) count += line.rfind("lock:", 0) == 0 ? 1 : 0;
  }
  return std::to_string(count);
}

std::string lock_and_unlock(const Words& words) {
  const int fd = open_or_create("/tmp/lock");
  return repeat_until_failure(parse_number(words, 1), [&](unsigned long) {
    return set_lock(fd, F_WRLCK, 0) == 0 && set_lock(fd, F_UNLCK, 0) == 0;
  });
}

// Several children hold locks until all children have requested theirs.
std::string allocate_locks_in_children(const Words& words) {
  int counts_pipe[2], exit_pipe[2];
  if (::pipe(counts_pipe) != 0 || ::pipe(exit_pipe) != 0) return get_errno_name();
  for (unsigned long child = 0; child < parse_number(words, 1); ++child) {
    if (::fork() != 0) continue;
    ::close(exit_pipe[1]);
    const unsigned long count = std::stoul(allocate_record_locks(parse_number(words, 2)));
    (void)!::write(counts_pipe[1], &count, sizeof count);
    char byte = 0;
    (void)!::read(exit_pipe[0], &byte, 1);
    ::_exit(0);
  }
  unsigned long sum = 0, count = 0;
  for (unsigned long child = 0; child < parse_number(words, 1); ++child) {
    if (::read(counts_pipe[0], &count, sizeof count) == sizeof count) sum += count;
  }
  ::close(exit_pipe[1]);
  while (::wait(nullptr) > 0) continue;
  return std::to_string(sum);
}

std::string set_locks_under_signals(const Words& words) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGALRM, &action, nullptr);  // Without SA_RESTART, a signal interrupts the call.
  const itimerval every_200_us{{0, 200}, {0, 200}};
  ::setitimer(ITIMER_REAL, &every_200_us, nullptr);
  const int fd = open_or_create("/tmp/lock");
  std::string last_error = "ok";
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    if (set_lock(fd, i % 2 == 0 ? F_WRLCK : F_UNLCK, 0, F_SETLKW) != 0 && errno != EINTR) last_error = get_errno_name();
  }
  const itimerval off{};
  ::setitimer(ITIMER_REAL, &off, nullptr);
  return last_error;
}

// Requests locks from eight threads for the given number of milliseconds.
std::string request_locks_from_threads(const Words& words) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto to_ms = [](const timespec& time) {
    return static_cast<unsigned long>(time.tv_sec) * 1000 + static_cast<unsigned long>(time.tv_nsec) / 1000000;
  };
  const unsigned long deadline_ms = to_ms(now) + parse_number(words, 1);
  const int fd = open_or_create("/tmp/lock");
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (timespec current{}; to_ms(current) < deadline_ms; ::clock_gettime(CLOCK_MONOTONIC, &current))
        set_lock(fd, F_WRLCK, 0);
    });
  }
  for (auto& thread : threads) thread.join();
  return "ok";
}

std::string lock_path(const Words& words) {
  const int fd = open_or_create(words[1]);
  return fd < 0 ? get_errno_name()
                : describe_result(set_lock(fd, F_WRLCK, 0, static_cast<int>(parse_number(words, 2))));
}

sockaddr_in make_loopback_address(unsigned port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int listen_on(unsigned port, int backlog) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = make_loopback_address(port);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool ok = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                  ::listen(fd, backlog) == 0;
  const int error = errno;
  if (!ok && fd >= 0) ::close(fd);
  errno = error;
  return ok ? fd : -1;
}

std::string allocate_listeners(unsigned long max_count) {
  return repeat_until_failure(max_count,
                              [](unsigned long i) { return listen_on(9000 + static_cast<unsigned>(i), 4096) >= 0; });
}

std::string listen_and_close(const Words& words) {
  return repeat_until_failure(parse_number(words, 1), [](unsigned long) {
    const int fd = listen_on(9000, 5);
    return fd >= 0 && ::close(fd) == 0;
  });
}

// Connects to the own loopback address. The last close of the socket waits for the peer to read the unsent data, and
// the peer does not read.
struct LingeringConnection {
  int socket = -1, peer = -1;
};
LingeringConnection connect_lingering(int listener, unsigned port) {
  LingeringConnection connection;
  const sockaddr_in address = make_loopback_address(port);
  connection.socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(connection.socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return connection;
  connection.peer = ::accept(listener, nullptr, nullptr);
  const struct linger wait { 1, 100000 };
  ::setsockopt(connection.socket, SOL_SOCKET, SO_LINGER, &wait, sizeof wait);
  const std::vector<char> block(65536, 'l');
  while (::send(connection.socket, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) continue;
  return connection;
}

// Reports whether close would wait: "on" or "off".
std::string get_linger_state(const Words&) {
  const int listener = listen_on(9000, 16);
  const LingeringConnection connection = connect_lingering(listener, 9000);
  struct linger state {};
  socklen_t size = sizeof state;
  if (::getsockopt(connection.socket, SOL_SOCKET, SO_LINGER, &state, &size) != 0) return get_errno_name();
  return state.l_onoff != 0 ? "on" : "off";
}

// Repeats the attack: one thread calls listen() on such a connection, and another thread closes it a moment later. The
// process that makes the call for the job may then hold the last reference.
std::string close_during_listen(const Words& words) {
  const int listener = listen_on(9000, 16);
  if (listener < 0) return get_errno_name();
  // With more listeners, listen() takes longer, because the supervisor counts the listeners.
  for (unsigned i = 0; i < 15; ++i) listen_on(9001 + i, 16);
  std::vector<int> peers;
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const LingeringConnection connection = connect_lingering(listener, 9000);
    if (connection.peer < 0) return get_errno_name();
    peers.push_back(connection.peer);
    std::thread listening([&] { ::listen(connection.socket, 5); });
    timespec delay{0, static_cast<long>(i % 20) * 50'000};
    ::nanosleep(&delay, nullptr);
    std::thread([socket = connection.socket] { ::close(socket); }).detach();  // Blocks if this is the last reference.
    listening.join();
    if (peers.size() < 32) continue;
    for (const int peer : peers) ::close(peer);
    peers.clear();
  }
  return "done";
}

// All threads wait in listen() for an answer of the launcher, for the given number of milliseconds.
std::string listen_from_threads(const Words& words) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto to_ms = [](const timespec& time) {
    return static_cast<unsigned long>(time.tv_sec) * 1000 + static_cast<unsigned long>(time.tv_nsec) / 1000000;
  };
  const unsigned long deadline_ms = to_ms(now) + parse_number(words, 1);
  const int listener = listen_on(9000, 5);
  if (listener < 0) return get_errno_name();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (timespec current{}; to_ms(current) < deadline_ms; ::clock_gettime(CLOCK_MONOTONIC, &current))
        ::listen(listener, 5);
    });
  }
  for (auto& thread : threads) thread.join();
  return "ok";
}

// Sends one incomplete (corked) datagram on each socket. `call` is the system call that sends it.
std::string allocate_corked_datagrams(unsigned long max_count, const std::string& call) {
  const std::vector<char> bytes(64000, 'c');
  return repeat_until_failure(max_count, [&](unsigned long) {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = make_loopback_address(9000);
    if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    if (call == "sendmsg") return ::sendmsg(fd, &message.msg_hdr, MSG_MORE) > 0;
    if (call == "sendmmsg") return ::sendmmsg(fd, &message, 1, MSG_MORE) > 0;
    return ::send(fd, bytes.data(), bytes.size(), MSG_MORE) > 0;
  });
}

// Sets the socket option UDP_CORK of IPPROTO_UDP.
std::string set_cork_option(const Words&) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
  return fd < 0 ? get_errno_name() : describe_result(::setsockopt(fd, IPPROTO_UDP, 1, &on, sizeof on));
}

// Connects to a port where connections are not accepted. Returns the number of established connections and the amount
// of data that was sent: "33 of 40, 1056 KiB".
std::string leave_pending_connections(unsigned port, unsigned long max_count) {
  const int listener = listen_on(port, 4096);
  if (listener < 0) return get_errno_name();
  const int buffer_bytes = 64 << 20;
  ::setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  const sockaddr_in address = make_loopback_address(port);
  const std::vector<char> bytes(65536, 'x');
  unsigned long established_count = 0, sent_bytes = 0;
  for (unsigned long i = 0; i < max_count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    ::usleep(500);
    for (int failures = 0; failures < 4;) {
      const ssize_t size = ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (size > 0) {
        sent_bytes += static_cast<unsigned long>(size);
      } else {
        ++failures;
        ::usleep(200);
      }
    }
    char state[256] = {};
    socklen_t size = sizeof state;
    // 11 is TCP_INFO, and state 1 is TCP_ESTABLISHED.
    if (::getsockopt(fd, IPPROTO_TCP, 11, state, &size) == 0 && state[0] == 1) ++established_count;
    ::close(fd);  // The sent data stays in the queue of the connection that was not accepted.
  }
  return std::to_string(established_count) + " of " + std::to_string(max_count) + ", " +
         std::to_string(sent_bytes >> 10) + " KiB";
}

std::string allocate_pending_connections(unsigned long max_count) {
  return repeat_until_failure(max_count, [](unsigned long i) {
    return leave_pending_connections(9000 + static_cast<unsigned>(i), 64).find(" of ") != std::string::npos;
  });
}

// Counts closed connections in TIME_WAIT, from the job's /proc.
std::string allocate_time_waits(unsigned long max_count) {
  std::string last_error = "ok";
  for (unsigned long i = 0; i < max_count; ++i) {
    static int listener = -1;
    const auto port = static_cast<unsigned>(9000 + i / 20000);
    if (i % 20000 == 0) listener = (::close(listener), listen_on(port, 16));
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = make_loopback_address(port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) last_error = get_errno_name();
    const int peer = ::accept(listener, nullptr, nullptr);
    ::close(fd);
    ::close(peer);
  }
  unsigned long count = 0;
  std::ifstream file("/proc/self/net/tcp");
  for (std::string line; std::getline(file, line);) count += line.find(" 06 ") != std::string::npos ? 1 : 0;
  return std::to_string(count) + (last_error == "ok" ? "" : " " + last_error);
}

std::string allocate_datagrams(unsigned long max_count) {
  const std::vector<char> bytes(1024, 'x');
  return repeat_until_failure(max_count, [&](unsigned long i) {
    const int receiver = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), sender = ::socket(AF_INET, SOCK_DGRAM, 0);
    const sockaddr_in address = make_loopback_address(9000 + static_cast<unsigned>(i));
    if (receiver < 0 || sender < 0 ||
        ::bind(receiver, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return false;
    for (int k = 0; k < 400; ++k)
      ::sendto(sender, bytes.data(), bytes.size(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&address),
               sizeof address);
    ::close(sender);
    return true;
  });
}

// An epoll item is identified by its file and descriptor number, so each file is added under many numbers.
std::string allocate_epoll_items(unsigned long max_count) {
  std::vector<int> files;
  for (int fd = 0; files.size() < 60 && (fd = ::eventfd(0, EFD_CLOEXEC)) >= 0;) files.push_back(fd);
  int epoll_fd = -1;
  return repeat_until_failure(max_count, [&](unsigned long i) {
    const unsigned long items_per_set = files.size() * 100;
    if (i % items_per_set == 0) epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
    const int number = 150 + static_cast<int>(i % items_per_set / files.size());
    epoll_event no_events{};
    const bool ok = epoll_fd >= 0 && ::dup2(files[i % files.size()], number) >= 0 &&
                    ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, number, &no_events) == 0;
    const int error = errno;
    ::close(number);
    errno = error;
    return ok;
  });
}

std::string allocate_mappings(unsigned long max_count) {
  auto* memory = static_cast<char*>(
      ::mmap(nullptr, 8192 * max_count, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) return get_errno_name();
  return repeat_until_failure(max_count,
                              [&](unsigned long i) { return ::mprotect(memory + 8192 * i, 4096, PROT_NONE) == 0; });
}

std::string allocate_page_tables(unsigned long max_count) {
  return repeat_until_failure(max_count, [](unsigned long i) {
    void* const hint = reinterpret_cast<void*>((16UL << 40) + i * (1UL << 30));  // NOLINT(performance-no-int-to-ptr)
    void* const page =
        ::mmap(hint, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    return page != MAP_FAILED && *static_cast<volatile char*>(page) == 0;
  });
}

std::string make_files(unsigned long max_count, bool are_links) {
  const std::string target(126, 't');
  return repeat_until_failure(max_count, [&](unsigned long i) {
    const std::string path = "/dev/shm/" + std::to_string(i) + std::string(200, 'n');
    if (are_links) return ::symlink(target.c_str(), path.c_str()) == 0;
    const int fd = open_or_create(path);
    if (fd >= 0) ::close(fd);
    return fd >= 0;
  });
}

std::string allocate_landlock_rules(unsigned long max_count) {
  landlock_ruleset_attr attr{};
  attr.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE;
  const int ruleset = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0));
  if (ruleset < 0) return get_errno_name();
  return repeat_until_failure(max_count, [&](unsigned long i) {
    const int file = open_or_create("/tmp/rule" + std::to_string(i));
    landlock_path_beneath_attr rule{};
    rule.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE;
    rule.parent_fd = file;
    const bool ok = ::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    const int error = errno;
    ::close(file);
    errno = error;
    return ok;
  });
}

std::string queue_signals(unsigned long max_count) {
  sigset_t all_signals;
  ::sigfillset(&all_signals);
  ::sigprocmask(SIG_BLOCK, &all_signals, nullptr);
  return repeat_until_failure(max_count, [](unsigned long) { return ::sigqueue(::getpid(), SIGRTMIN, {}) == 0; });
}

std::string create_timers(unsigned long max_count) {
  return repeat_until_failure(max_count, [](unsigned long) {
    timer_t timer;
    sigevent event{};
    event.sigev_notify = SIGEV_NONE;
    return ::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
  });
}

std::string fill_socket_pairs_with_small_writes(unsigned long max_count) {
  return repeat_until_failure(max_count, [](unsigned long) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return false;
    while (::write(pair[0], "x", 1) > 0) continue;
    return true;
  });
}

std::string fill_pipes(unsigned long max_count) {
  const std::vector<char> block(65536, 'p');
  return repeat_until_failure(max_count, [&](unsigned long) {
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC) != 0) return false;
    while (::write(pipe_ends[1], block.data(), block.size()) > 0) continue;
    return true;
  });
}

std::string allocate_flocks(unsigned long max_count) {
  return repeat_until_failure(max_count, [](unsigned long) {
    const int fd = open_or_create("/tmp/flock");
    return fd >= 0 && ::flock(fd, LOCK_SH) == 0;
  });
}

std::string cache_missing_names(unsigned long max_count) {
  return repeat_until_failure(max_count, [](unsigned long i) {
    return ::access(("/dev/shm/" + std::to_string(i) + std::string(200, 'm')).c_str(), F_OK) != 0;
  });
}

std::string create_blocked_threads(unsigned long max_count) {
  return repeat_until_failure(max_count, [](unsigned long) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, 16384);
    pthread_t thread;
    const auto wait = [](void*) -> void* { return ::pause(), nullptr; };
    errno = ::pthread_create(&thread, &attributes, wait, nullptr);
    return errno == 0;
  });
}

std::string allocate_kernel_memory(const Words& words) {
  const std::string& kind = words.at(1);
  const unsigned long max_count = words.size() > 2 ? parse_number(words, 2) : 1'000'000;
  const std::map<std::string, std::function<std::string()>> functions_by_kind = {
      {"nothing", [] { return std::string("0"); }},
      {"record_locks", [&] { return allocate_record_locks(max_count); }},
      {"flocks", [&] { return allocate_flocks(max_count); }},
      {"epoll_items", [&] { return allocate_epoll_items(max_count); }},
      {"epolls",
       [&] { return repeat_until_failure(max_count, [](auto) { return ::epoll_create1(EPOLL_CLOEXEC) >= 0; }); }},
      {"eventfds",
       [&] { return repeat_until_failure(max_count, [](auto) { return ::eventfd(0, EFD_CLOEXEC) >= 0; }); }},
      {"timerfds",
       [&] { return repeat_until_failure(max_count, [](auto) { return ::timerfd_create(CLOCK_MONOTONIC, 0) >= 0; }); }},
      {"timers", [&] { return create_timers(max_count); }},
      {"signals", [&] { return queue_signals(max_count); }},
      {"pipes", [&] { return fill_pipes(max_count); }},
      {"pairs", [&] { return fill_socket_pairs_with_small_writes(max_count); }},
      {"vmas", [&] { return allocate_mappings(std::min(max_count, 60'000UL)); }},
      {"page_tables", [&] { return allocate_page_tables(std::min(max_count, 20'000UL)); }},
      {"files", [&] { return make_files(max_count, false); }},
      {"symlinks", [&] { return make_files(max_count, true); }},
      {"missing_names", [&] { return cache_missing_names(std::min(max_count, 200'000UL)); }},
      {"landlock_rules", [&] { return allocate_landlock_rules(max_count); }},
      {"threads", [&] { return create_blocked_threads(max_count); }},
      {"listeners", [&] { return allocate_listeners(max_count); }},
      {"pending", [&] { return allocate_pending_connections(std::min(max_count, 16UL)); }},
      {"time_waits", [&] { return allocate_time_waits(std::min(max_count, 20'000UL)); }},
      {"datagrams", [&] { return allocate_datagrams(std::min(max_count, 100UL)); }},
      {"corked", [&] { return allocate_corked_datagrams(max_count, "sendto"); }},
      {"corked_sendmsg", [&] { return allocate_corked_datagrams(max_count, "sendmsg"); }},
      {"corked_sendmmsg", [&] { return allocate_corked_datagrams(max_count, "sendmmsg"); }},
  };
  const auto position = functions_by_kind.find(kind);
  return position == functions_by_kind.end() ? "no such kind" : position->second();
}

// Prints the allocated amount on stdout and holds the memory.
std::string allocate_kernel_memory_and_wait(const Words& words) {
  const std::string line = allocate_kernel_memory(words) + "\n";
  (void)!::write(1, line.data(), line.size());
  for (;;) ::pause();
}

}  // namespace

const Attempts& kernel_memory_attempts() {
  static const Attempts kTable = {
      {"pin", allocate_kernel_memory},
      {"pin_and_hold", allocate_kernel_memory_and_wait},
      {"locks_held", count_held_locks},
      {"lock_and_unlock", lock_and_unlock},
      {"locks_of_children", allocate_locks_in_children},
      {"locks_under_signals", set_locks_under_signals},
      {"lock_storm", request_locks_from_threads},
      {"lock_path", lock_path},
      {"listen_and_close", listen_and_close},
      {"linger", get_linger_state},
      {"close_behind_listen", close_during_listen},
      {"listen_storm", listen_from_threads},
      {"cork_option", set_cork_option},
      {"pending", [](const Words& words) { return leave_pending_connections(9000, parse_number(words, 1)); }},
      {"child_touch",
       [](const Words& words) {
         const unsigned long size = parse_number(words, 1) << 20;
         const int status = run_in_child([size] {
           void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
           std::memset(memory, 1, size);
           return 0;
         });
         return std::string(status == 0 ? "ok" : "killed");
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
