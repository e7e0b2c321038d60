#include "attempts.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "attempt_calls.h"

namespace mycojobs::test {
namespace {

using Words = std::vector<std::string>;

std::string verdict(long result) { return result >= 0 ? "ok" : ::strerrorname_np(errno); }
unsigned long number(const Words& words, std::size_t at) {
  return at < words.size() ? std::stoul(words[at], nullptr, 0) : 0;
}

std::string open_with(const Words& words, int flags) {
  const int fd = ::open(words[1].c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600);
  const std::string result = verdict(fd);
  if (fd >= 0) ::close(fd);
  return result;
}

std::string list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return ::strerrorname_np(errno);
  Words names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name != std::to_string(::dirfd(folder))) names.push_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : " ") + name;
  return all;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return ::strerrorname_np(errno);
  std::stringstream text;
  text << file.rdbuf();
  std::string flat = text.str();
  std::replace(flat.begin(), flat.end(), '\n', '|');
  std::replace(flat.begin(), flat.end(), '\0', ' ');
  return flat;
}

std::string connect_to(int domain, const sockaddr* address, socklen_t size) {
  const int fd = ::socket(domain, SOCK_STREAM, 0);
  if (fd < 0) return ::strerrorname_np(errno);
  const std::string result = verdict(::connect(fd, address, size));
  ::close(fd);
  return result;
}

std::string connect_tcp(const Words& words) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(number(words, 2)));
  ::inet_pton(AF_INET, words[1].c_str(), &address.sin_addr);
  return connect_to(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof address);
}

std::string connect_unix(const Words& words) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  words[1].copy(address.sun_path, sizeof address.sun_path - 1);
  return connect_to(AF_UNIX, reinterpret_cast<sockaddr*>(&address), sizeof address);
}

// The child leaves at once, or runs `then`.
std::string fork_once(const std::function<void()>& then = [] {}) {
  const pid_t pid = ::fork();
  if (pid < 0) return ::strerrorname_np(errno);
  if (pid == 0) {
    then();
    ::_exit(0);
  }
  return "ok";
}

std::string run_program(const Words& words) {
  const pid_t pid = ::vfork();
  if (pid < 0) return ::strerrorname_np(errno);
  if (pid == 0) {
    ::execl(words[1].c_str(), words[1].c_str(), static_cast<char*>(nullptr));
    ::_exit(errno);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  const int code = WEXITSTATUS(status);
  return code == 0 ? "ok" : ::strerrorname_np(code);
}

std::string exec_here(const Words& words) {
  ::execl(words[1].c_str(), words[1].c_str(), static_cast<char*>(nullptr));
  return ::strerrorname_np(errno);
}

std::string exec_memfd(const Words&) {
  const int fd = ::memfd_create("program", 0);
  const std::string text = "#!/bin/true\n";
  (void)!::write(fd, text.data(), text.size());
  char* none[] = {nullptr};
  ::syscall(SYS_execveat, fd, "", none, none, AT_EMPTY_PATH);
  return ::strerrorname_np(errno);
}

std::string copy_and_exec(const Words& words) {
  std::ifstream from("/bin/true", std::ios::binary);
  std::ofstream(words[1], std::ios::binary) << from.rdbuf();
  ::chmod(words[1].c_str(), 0755);
  return exec_here(words);
}

std::string fork_bomb(const Words&) {
  for (int made = 0; made < 4096; ++made) {
    const std::string result = fork_once([] {
      for (;;) ::pause();
    });
    if (result != "ok") return result + " after " + std::to_string(made);
  }
  return "ok";
}

std::string thread_bomb(const Words&) {
  for (int made = 0; made < 4096; ++made) {
    try {
      std::thread([] {
        for (;;) ::pause();
      }).detach();
    } catch (const std::system_error& error) {
      return std::string(::strerrorname_np(error.code().value())) + " after " + std::to_string(made);
    }
  }
  return "ok";
}

std::string one_thread(const Words&) {
  int seen = 0;
  std::thread([&] { seen = 1; }).join();
  return seen == 1 ? "ok" : "did not run";
}

std::string touch_memory(const Words& words) {
  const std::size_t size = number(words, 1) << 20;
  auto* memory = static_cast<char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) return ::strerrorname_np(errno);
  for (std::size_t at = 0; at < size; at += 4096) memory[at] = 1;
  return "ok";
}

std::string fill_folder(const Words& words) {
  std::vector<char> block(1 << 20, 'x');
  std::size_t written = 0;
  for (int file = 0; file < 64; ++file) {
    const int fd = ::open((words[1] + "/fill" + std::to_string(file)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return ::strerrorname_np(errno);
    ::signal(SIGXFSZ, SIG_IGN);
    for (ssize_t got = 0; (got = ::write(fd, block.data(), block.size())) > 0;)
      written += static_cast<std::size_t>(got);
    const int error = errno;
    ::close(fd);
    if (error != EFBIG)
      return std::string(::strerrorname_np(error)) + " after " + std::to_string(written >> 20) + " MiB";
  }
  return "ok";
}

std::string many_files(const Words& words) {
  for (unsigned long made = 0; made < 1000000; ++made) {
    const int fd = ::open((words[1] + "/f" + std::to_string(made)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return ::strerrorname_np(errno);
    ::close(fd);
  }
  return "ok";
}

std::string open_without_end(const Words&) {
  for (int made = 0; made < 100000; ++made) {
    if (::epoll_create1(0) < 0) return ::strerrorname_np(errno);
  }
  return "ok";
}

std::string raise_limit(const Words& words) {
  const auto which = static_cast<__rlimit_resource>(number(words, 1));
  rlimit limit{};
  ::getrlimit(which, &limit);
  limit.rlim_cur = limit.rlim_max = limit.rlim_max + 1;
  return verdict(::setrlimit(which, &limit));
}

std::string map_memory(int protection) {
  void* memory = ::mmap(nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? ::strerrorname_np(errno) : "ok";
}

std::string make_executable(const Words&) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return verdict(::mprotect(memory, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
}

// Leaves its session and its parent, and stays.
std::string daemonize(const Words&) {
  const std::string result = fork_once([] {
    ::setsid();
    fork_once([] {
      for (;;) ::pause();
    });
  });
  while (::waitpid(-1, nullptr, 0) > 0) continue;
  return result;
}

std::string leave_zombies(const Words& words) {
  for (unsigned long i = 0; i < number(words, 1); ++i) {
    if (const std::string result = fork_once(); result != "ok") return result + " after " + std::to_string(i);
  }
  return "ok";
}

std::string ignore_signals(const Words&) {
  for (int each = 1; each < NSIG; ++each) ::signal(each, SIG_IGN);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  return "ok";
}

std::string spin(const Words&) {
  volatile unsigned long counter = 0;
  for (;;) counter = counter + 1;
}

std::string sleep_ms(const Words& words) {
  ::usleep(static_cast<useconds_t>(number(words, 1) * 1000));
  return "ok";
}

std::string inherited_state(const Words&) {
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  int blocked = 0, ignored = 0;
  for (int each = 1; each < NSIG; ++each) {
    struct sigaction action {};
    if (::sigismember(&mask, each) == 1) ++blocked;
    if (::sigaction(each, nullptr, &action) == 0 && action.sa_handler != SIG_DFL) ++ignored;
  }
  char cwd[256] = {};
  (void)!::getcwd(cwd, sizeof cwd);
  const mode_t mask_of_files = ::umask(0);
  return "cwd=" + std::string(cwd) + " umask=" + std::to_string(mask_of_files) + " blocked=" + std::to_string(blocked) +
         " handled=" + std::to_string(ignored) + " nice=" + std::to_string(::getpriority(PRIO_PROCESS, 0));
}

std::string write_text(const Words& words) {
  std::ofstream file(words[1]);
  file << (words.size() > 2 ? words[2] : "x");
  file.flush();
  return file ? "ok" : ::strerrorname_np(errno);
}

const std::map<std::string, std::function<std::string(const Words&)>>& table() {
  static const std::map<std::string, std::function<std::string(const Words&)>> kTable = {
      {"open_read", [](const Words& w) { return open_with(w, O_RDONLY); }},
      {"open_write", [](const Words& w) { return open_with(w, O_WRONLY); }},
      {"open_create", [](const Words& w) { return open_with(w, O_WRONLY | O_CREAT); }},
      {"open_truncate", [](const Words& w) { return open_with(w, O_RDONLY | O_TRUNC); }},
      {"write", write_text},
      {"read", [](const Words& w) { return read_file(w[1]); }},
      {"list", [](const Words& w) { return list_folder(w[1]); }},
      {"mkdir", [](const Words& w) { return verdict(::mkdir(w[1].c_str(), 0700)); }},
      {"unlink", [](const Words& w) { return verdict(::unlink(w[1].c_str())); }},
      {"rename", [](const Words& w) { return verdict(::rename(w[1].c_str(), w[2].c_str())); }},
      {"hardlink", [](const Words& w) { return verdict(::link(w[1].c_str(), w[2].c_str())); }},
      {"symlink", [](const Words& w) { return verdict(::symlink(w[1].c_str(), w[2].c_str())); }},
      {"mknod",
       [](const Words& w) {
         return verdict(::mknod(w[1].c_str(), static_cast<mode_t>(number(w, 2)) | 0600, ::makedev(1, 3)));
       }},
      {"socket",
       [](const Words& w) {
         return verdict(::socket(static_cast<int>(number(w, 1)), static_cast<int>(number(w, 2)), 0));
       }},
      {"socketpair",
       [](const Words& w) {
         int pair[2];
         return verdict(::socketpair(static_cast<int>(number(w, 1)), static_cast<int>(number(w, 2)), 0, pair));
       }},
      {"connect_tcp", connect_tcp},
      {"connect_unix", connect_unix},
      {"kill", [](const Words& w) { return verdict(::kill(std::stoi(w[1]), static_cast<int>(number(w, 2)))); }},
      {"fork", [](const Words&) { return fork_once(); }},
      {"thread", one_thread},
      {"fork_spin",
       [](const Words&) {
         return fork_once([] {
           volatile unsigned long counter = 0;
           for (;;) counter = counter + 1;
         });
       }},
      {"environ",
       [](const Words&) {
         std::string all;
         for (char** each = environ; each != nullptr && *each != nullptr; ++each) all += std::string(*each) + " ";
         return all;
       }},
      {"fork_bomb", fork_bomb},
      {"thread_bomb", thread_bomb},
      {"exec", exec_here},
      {"run", run_program},
      {"exec_memfd", exec_memfd},
      {"exec_copy", copy_and_exec},
      {"touch", touch_memory},
      {"fill", fill_folder},
      {"files", many_files},
      {"descriptors", open_without_end},
      {"raise_limit", raise_limit},
      {"mlockall", [](const Words&) { return verdict(::syscall(SYS_mlockall, MCL_CURRENT)); }},
      {"map_wx", [](const Words&) { return map_memory(PROT_READ | PROT_WRITE | PROT_EXEC); }},
      {"map_rx", [](const Words&) { return map_memory(PROT_READ | PROT_EXEC); }},
      {"mprotect_wx", make_executable},
      {"daemonize", daemonize},
      {"zombies", leave_zombies},
      {"ignore_signals", ignore_signals},
      {"spin", spin},
      {"sleep", sleep_ms},
      {"inherited", inherited_state},
      {"call", [](const Words& w) { return call_by_name(w); }},
      {"prctl", [](const Words& w) { return verdict(::syscall(SYS_prctl, number(w, 1), number(w, 2), 0, 0, 0)); }},
      {"ioctl", [](const Words& w) { return verdict(::syscall(call_number("ioctl"), 0, number(w, 1), nullptr)); }},
      {"getpid", [](const Words&) { return std::to_string(::getpid()) + " of " + std::to_string(::getppid()); }},
      {"getuid", [](const Words&) { return std::to_string(::getuid()); }},
      {"print",
       [](const Words& w) {
         (void)!::write(1, w[1].data(), w[1].size());
         return std::string("ok");
       }},
      {"exit", [](const Words& w) -> std::string { ::_exit(static_cast<int>(number(w, 1))); }},
      {"bad_pointer",
       [](const Words&) -> std::string {
         void* none = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
         return std::to_string(*static_cast<volatile char*>(none));
       }},
  };
  return kTable;
}

}  // namespace

std::string attempt(const std::string& line) {
  std::istringstream parts(line);
  Words words;
  for (std::string word; parts >> word;) words.push_back(word);
  if (words.empty()) return "no such attempt";
  const auto found = table().find(words[0]);
  return found == table().end() ? "no such attempt" : found->second(words);
}

std::string attempt_all(const std::string& lines) {
  std::istringstream each(lines);
  std::string answers;
  for (std::string line; std::getline(each, line);) answers += line + ": " + attempt(line) + "\n";
  return answers;
}

}  // namespace mycojobs::test
