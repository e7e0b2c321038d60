#include "support/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/process/args.hpp>
#include <boost/process/child.hpp>
#include <boost/process/env.hpp>
#include <boost/process/environment.hpp>
#include <boost/process/exe.hpp>
#include <boost/process/io.hpp>
#include <boost/process/posix.hpp>
#include <boost/process/search_path.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fd.h"

namespace bp = boost::process;

namespace mycojobs::test {

bool eventually(const std::function<bool()>& condition, Seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

TempDir::TempDir(const std::filesystem::path& parent) {
  std::string name = (parent / "mycojobs-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::write(const std::string& name, const std::string& content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
  return (path_ / name).string();
}

bool enter_mount_namespace() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

bool read_available(int fd, std::string& text) {
  char buffer[65536];
  for (;;) {
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
    if (size == 0) return false;
    if (size < 0) return errno == EAGAIN || errno == EINTR;
  }
}

long read_status_kib(pid_t pid, const std::string& field) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stol(line.substr(field.size() + 1));
  }
  return 0;
}

namespace {

// The file is opened to append, so that a process which opens its standard output again continues the file.
Fd create_output_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) throw std::system_error(errno, std::generic_category(), path);
  return file;
}

bp::environment make_environment(const std::vector<std::string>& extra_environment) {
  bp::environment environment = boost::this_process::environment();
  for (const std::string& pair : extra_environment) {
    const auto equals_sign = pair.find('=');
    environment[pair.substr(0, equals_sign)] = pair.substr(equals_sign + 1);
  }
  return environment;
}

}  // namespace

Process::Process(const TempDir& folder, std::vector<std::string> argv, std::vector<std::string> extra_environment,
                 std::string input) {
  static int number = 0;
  const std::string stem = folder / ("process" + std::to_string(++number));
  out_path_ = stem + ".out";
  err_path_ = stem + ".err";
  std::string in_path = "/dev/null";
  if (!input.empty()) {
    in_path = stem + ".in";
    std::ofstream(in_path, std::ios::binary) << input;
  }
  const Fd out = create_output_file(out_path_), err = create_output_file(err_path_);
  const std::string program = argv[0].find('/') == std::string::npos ? bp::search_path(argv[0]).string() : argv[0];
  argv.erase(argv.begin());
  bp::child child(bp::exe = program, bp::args = argv, make_environment(extra_environment), bp::std_in < in_path,
                  bp::posix::fd.bind(STDOUT_FILENO, out.get()), bp::posix::fd.bind(STDERR_FILENO, err.get()));
  pid_ = child.id();
  child.detach();  // The destructor of this class ends the process and waits for it, which that of bp::child does not.
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      status_(other.status_),
      out_path_(other.out_path_),
      err_path_(other.err_path_) {}

Process::~Process() {
  if (!is_running()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
}

void Process::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

bool Process::is_running() {
  if (pid_ <= 0) return false;
  if (::waitpid(pid_, &status_, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

ProcessResult Process::wait(Seconds limit) {
  const bool ended = eventually([this] { return !is_running(); }, limit);
  if (!ended) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
    pid_ = -1;
  }
  const int code = !ended ? -1 : WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {code, out(), err()};
}

std::string read_process_name(pid_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return name;
}

std::vector<pid_t> descendants(pid_t root_pid) {
  std::vector<pid_t> pids;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(root_pid) + "/task", ignored)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      pids.push_back(child);
      const auto grandchildren = descendants(child);
      pids.insert(pids.end(), grandchildren.begin(), grandchildren.end());
    }
  }
  return pids;
}

std::set<std::string> host_mounts() {
  std::set<std::string> lines;
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.find(" /run/netns") == std::string::npos) lines.insert(line);
  }
  return lines;
}

ProcessResult run(const TempDir& folder, std::vector<std::string> argv, std::vector<std::string> extra_environment,
                  std::string input) {
  return Process(folder, std::move(argv), std::move(extra_environment), std::move(input)).wait();
}

}  // namespace mycojobs::test
