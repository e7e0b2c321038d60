#include "attempts.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "attempt_table.h"

namespace mycojobs::test {

std::string errno_name() {
  const char* name = ::strerrorname_np(errno);
  return name != nullptr ? name : "errno " + std::to_string(errno);
}
std::string describe_result(long result) { return result >= 0 ? "ok" : errno_name(); }

unsigned long parse_number(const Words& words, std::size_t index) {
  return index < words.size() ? std::stoul(words[index], nullptr, 0) : 0;
}

std::string fork_once(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid < 0) return errno_name();
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  return "ok";
}

int in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string attempt(const std::string& line) {
  std::istringstream parts(line);
  Words words;
  for (std::string word; parts >> word;) words.push_back(word);
  if (words.empty()) return "no such attempt";
  for (const Attempts* section :
       {&attempts_on_files(), &attempts_on_processes(), &attempts_on_signals(), &attempts_on_network(),
        &attempts_on_memory(), &attempts_on_kernel(), &attempts_combined(), &attempts_to_escape(),
        &attempts_on_limits(), &attempts_at_random(), &attempts_on_reuse(), &attempts_to_pin()}) {
    if (const auto found = section->find(words[0]); found != section->end()) return found->second(words);
  }
  return "no such attempt";
}

std::string attempt_all(const std::string& lines) {
  std::istringstream remaining(lines);
  std::string answers;
  for (std::string line; std::getline(remaining, line);) answers += line + ": " + attempt(line) + "\n";
  return answers;
}

}  // namespace mycojobs::test
