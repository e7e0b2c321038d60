// Real processes for tests. A process is ended by its pid; its output is stored in files in the test's folder.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace mycojobs::test {

using Seconds = std::chrono::duration<double>;

// Polls `condition` until it returns true. Returns false after `limit`, which is long, because test machines can be
// heavily loaded; only a hang should reach it.
bool eventually(const std::function<bool()>& condition, Seconds limit = Seconds(60));

// A folder that the destructor removes. parent: by default the system's temporary folder.
class TempDir {
 public:
  explicit TempDir(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const;  // returns the path of the file

 private:
  std::filesystem::path path_;
};

// Policies can grant folders below this one to jobs.
inline constexpr const char* kGrantableParent = "/var/tmp";

// Moves this process to a mount namespace of its own, so that the mounts of the host do not change. Returns false if
// this is not permitted.
bool enter_mount_namespace();

std::string read_file(const std::string& path);

// Appends the available data of a non-blocking descriptor to `text`. Returns false if the pipe is closed.
bool read_available(int fd, std::string& text);

// Returns a field of the process's status file in KiB, for example VmRSS, or 0 if the process does not exist.
long read_status_kib(pid_t, const std::string& field);

// How a process ended, and its complete output.
struct ProcessResult {
  int code = -1;  // exit code, 128 + signal number, or -1 if the process did not end in time and was killed
  std::string out, err;
};

// A child process. Not thread-safe.
class Process {
 public:
  // argv[0] is looked up in PATH. `extra_environment` ("NAME=value") is put before the environment of the test.
  Process(const TempDir&, std::vector<std::string> argv, std::vector<std::string> extra_environment = {},
          std::string input = "");
  ~Process();  // sends KILL if the process is still running
  Process(Process&&) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  bool is_running();
  // Waits for the end of the process; kills the process after `limit`.
  ProcessResult wait(Seconds limit = Seconds(120));
  std::string out() const { return read_file(out_path_); }
  std::string err() const { return read_file(err_path_); }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  std::string out_path_, err_path_;
};

// Returns the name of a process as printed by ps, or an empty text if the process does not exist.
std::string read_process_name(pid_t);

// Returns all visible descendants of the process; a parent precedes its children.
std::vector<pid_t> descendants(pid_t root_pid);

// Returns the host's mount table, one mount per entry, without /run/netns: concurrent tests create named network
// namespaces there.
std::set<std::string> host_mounts();

// Runs a program to its end and returns its exit code and output.
ProcessResult run(const TempDir&, std::vector<std::string> argv, std::vector<std::string> extra_environment = {},
                  std::string input = "");

}  // namespace mycojobs::test
