#include "fuzz/watched.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

// Sanitizer errors then end the process with SIGABRT, which keep_input() handles, and not with an exit.
extern "C" const char* __asan_default_options();   // NOLINT: names of the sanitizers
extern "C" const char* __ubsan_default_options();  // NOLINT
extern "C" const char* __asan_default_options() { return "abort_on_error=1:detect_leaks=1"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

namespace mycojobs::fuzz {
namespace {

constexpr unsigned kMaxSeconds = 30;

const std::string* now_running = nullptr;
std::string found_file, found_line;

// Async-signal-safe.
void keep_input(int signal) {
  if (now_running != nullptr) {
    const int file = ::open(found_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0 && ::write(file, now_running->data(), now_running->size()) >= 0 &&
        ::write(STDERR_FILENO, found_line.data(), found_line.size()) >= 0)
      ::close(file);
  }
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

bool listen() {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(signal, keep_input);
  return true;
}

}  // namespace

int run_watched(const Target& target, const std::string& input) {
  static const bool listens = listen();
  (void)listens;
  found_file = "found-" + std::string(target.name);
  found_line = "the input is in " + found_file + "; again: fuzz " + std::string(target.name) + ' ' + found_file + '\n';
  now_running = &input;
  ::alarm(kMaxSeconds);
  const int taken = target.run(input);
  ::alarm(0);
  now_running = nullptr;
  return taken;
}

}  // namespace mycojobs::fuzz
