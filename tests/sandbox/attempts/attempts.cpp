// Runs attempts, and returns the result of each attempt as text: "ok", the name of an errno, or text of the attempt.
#include "attempts.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "attempt_table.h"

namespace mycojobs::test {

std::string get_errno_name() {
  const char* name = ::strerrorname_np(errno);
  return name != nullptr ? name : "errno " + std::to_string(errno);
}
std::string describe_result(long result) { return result >= 0 ? "ok" : get_errno_name(); }

unsigned long parse_number(const Words& words, std::size_t index) {
  return index < words.size() ? std::stoul(words[index], nullptr, 0) : 0;
}

std::string fork_without_waiting(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid < 0) return get_errno_name();
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  return "ok";
}

int run_in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string run_attempt(const std::string& line) {
  std::istringstream parts(line);
  Words words;
  for (std::string word; parts >> word;) words.push_back(word);
  if (words.empty()) return "no such attempt";
  for (const Attempts* attempt_table :
       {&file_attempts(), &process_attempts(), &signal_attempts(), &network_attempts(), &memory_attempts(),
        &kernel_attempts(), &combined_attempts(), &escape_attempts(), &limit_attempts(), &random_attempts(),
        &reuse_attempts(), &kernel_memory_attempts()}) {
    if (const auto position = attempt_table->find(words[0]); position != attempt_table->end())
      return position->second(words);
  }
  return "no such attempt";
}

std::string run_all_attempts(const std::string& lines) {
  std::istringstream remaining(lines);
  std::string results;
  for (std::string line; std::getline(remaining, line);) results += line + ": " + run_attempt(line) + "\n";
  return results;
}

}  // namespace mycojobs::test
