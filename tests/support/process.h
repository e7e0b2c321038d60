// Real processes for tests: started by us, ended by pid, their output kept in files of the test's own folder.
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

// True as soon as `done` is; false after `limit`, which only what hangs should reach: machines are busy.
bool eventually(const std::function<bool()>& done, Seconds limit = Seconds(60));

// A folder below the system's temporary one, gone with this.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const;  // returns the path

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::string& path);

struct Finished {
  int code = -1;  // exit code, 128 + signal, or -1 if it did not end in time (it is killed then)
  std::string out, err;
};

class Process {
 public:
  // argv[0] is looked for in PATH. The environment is the test's own, with `extra` ("NAME=value") in front.
  Process(const TempDir&, std::vector<std::string> argv, std::vector<std::string> extra = {}, std::string input = "");
  ~Process();  // KILL, if it still runs
  Process(Process&&) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  bool running();
  Finished wait(Seconds limit = Seconds(120));
  std::string out() const { return read_file(out_); }
  std::string err() const { return read_file(err_); }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  std::string out_, err_;
};

// All processes below it that can be seen now, a parent before its children.
std::vector<pid_t> descendants(pid_t of);

// The host's mount table, a mount a line; without /run/netns, where tests beside this one name network namespaces.
std::set<std::string> host_mounts();

Finished run(const TempDir&, std::vector<std::string> argv, std::vector<std::string> extra = {},
             std::string input = "");

}  // namespace mycojobs::test
