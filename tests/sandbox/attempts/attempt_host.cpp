// A script host for tests: the "script" is a list of attempts, and the result is the list of their results.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "attempts.h"
#include "sandbox/zygote/zygote.h"

namespace {

int run_job(mycojobs::JobChannel channel) {
  std::string lines;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::read(channel.from_agent, buffer, sizeof buffer)) > 0;)
    lines.append(buffer, static_cast<std::size_t>(size));
  const std::string results = mycojobs::test::run_all_attempts(lines);
  (void)!::write(channel.to_agent, results.data(), results.size());
  return 0;
}

// The arguments of the host: paths of files that the host reports as its own files.
std::vector<std::string> claimed_files;

}  // namespace

int main(int argc, char** argv) {
  claimed_files.assign(argv + 1, argv + argc);
  mycojobs::serve_zygote(
      {"attempt", nullptr, nullptr, nullptr, run_job, "kept", nullptr, [] { return claimed_files; }});
}
