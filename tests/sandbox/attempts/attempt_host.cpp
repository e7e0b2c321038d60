// A script host for tests: the "script" is a list of attempts, and the result is the list of their results.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "attempts.h"
#include "sandbox/zygote/zygote.h"

namespace {

int run(mycojobs::JobChannel channel) {
  std::string lines;
  char part[4096];
  for (ssize_t size = 0; (size = ::read(channel.from_agent, part, sizeof part)) > 0;)
    lines.append(part, static_cast<std::size_t>(size));
  const std::string answers = mycojobs::test::attempt_all(lines);
  (void)!::write(channel.to_agent, answers.data(), answers.size());
  return 0;
}

// The files that the host claims to consist of, from its arguments.
std::vector<std::string> claimed_files;

}  // namespace

int main(int argc, char** argv) {
  claimed_files.assign(argv + 1, argv + argc);
  mycojobs::serve_zygote({"attempt", nullptr, nullptr, nullptr, run, "kept", nullptr, [] { return claimed_files; }});
}
