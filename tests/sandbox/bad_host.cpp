// A script host that violates the protocol of zygotes. The name of the program selects the violation.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "mutate.h"
#include "sandbox/messages.h"
#include "sandbox/zygote/zygote.h"

namespace {

using namespace mycojobs::sandbox;
constexpr int kControlFd = 3;

// Sends Ready, then answers the first request with a pidfd of a process that is not a child of the host: the host.
void answer_with_own_pidfd() {
  RawFrame frame;
  receive_raw(kControlFd, frame);
  send_message(kControlFd, Ready{});
  receive_raw(kControlFd, frame);
  ForkRequest request;
  decode(frame, request);
  const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  send_message(kControlFd, RunForked{request.run, 0}, {self});
  receive_raw(kControlFd, frame);
}

// Sends one frame of each kind with an invalid body.
void send_all_kinds() {
  RawFrame frame;
  receive_raw(kControlFd, frame);
  send_message(kControlFd, Ready{});
  for (int kind = 0; kind < 256; ++kind) {
    std::string bytes(1, static_cast<char>(kind));
    send_raw(kControlFd, bytes + "\xff\xff\xff\xff\xff\xff\xff\xff\xff", {});
  }
  receive_raw(kControlFd, frame);
}

mycojobs::test::Random& get_random_generator() {
  static mycojobs::test::Random kRandom;
  return kRandom;
}

// Sends mutated frames of the protocol, with descriptors that may not match the frame.
void send_mutated_frames(int socket, const std::vector<std::string>& frames) {
  mycojobs::test::Random& random = get_random_generator();
  for (std::uint64_t remaining = random() % 12; remaining > 0; --remaining) {
    std::vector<int> fds;
    while (fds.size() < kMaxFrameFds && random() % 2 == 0) {
      const int kind = static_cast<int>(random() % 3);
      // A regular file cannot be polled for events; the host "listener" tests that case.
      fds.push_back(kind == 0   ? static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))
                    : kind == 1 ? ::eventfd(1, EFD_CLOEXEC)
                                : ::dup(2));
    }
    const std::string frame = mycojobs::test::mutate(frames[random() % frames.size()], random);
    if (!frame.empty()) send_raw(socket, frame, fds, MSG_DONTWAIT);
    for (int fd : fds) ::close(fd);
  }
}

std::vector<std::string> make_zygote_frames() {
  return {encode(Ready{}),
          encode(RequestRefused{"no"}),
          encode(SetupStepFailed{"zygote_root", 1}),
          encode(RunForked{1, 0}),
          encode(RunForked{1ULL << 63, 0}),
          encode(RunForked{2, 11}),
          encode(InitReaped{1, 0, 5, 5}),
          encode(InitReaped{1ULL << 63, 9, 0, 0})};
}
std::vector<std::string> make_init_frames() {
  return {encode(SetupStepFailed{"rights", 1}), encode(RunConfined{7, {{"proc", 1}, {"cwd", 2}}}),
          encode(JobEnded{0, 1, false}), encode(JobEnded{9, 0, true})};
}

void send_frames_before_serving() {
  RawFrame frame;
  receive_raw(kControlFd, frame);
  if (get_random_generator()() % 2 == 0) send_message(kControlFd, Ready{});
  send_mutated_frames(kControlFd, make_zygote_frames());
  send_mutated_frames(kControlFd, make_zygote_frames());
}

// The first fork is the canary job, which decides whether the host may serve.
int fork_count = 0;
void count_forks() { ++fork_count; }
void send_frames_after_fork() {
  if (++fork_count > 1) send_mutated_frames(kControlFd, make_zygote_frames());
}
void stop_answering() {
  while (++fork_count > 1) ::pause();
}
void send_frames_as_init() {
  constexpr int kStatusFd = 4;
  if (fork_count > 1) send_mutated_frames(kStatusFd, make_init_frames());
}

void send_file_as_listener() {
  constexpr int kStatusFd = 4;
  if (fork_count > 1) send_message(kStatusFd, RunConfined{7, {}}, {::open("/dev/null", O_RDONLY)});
}

// Nests epoll sets deeper than the kernel permits for waiting.
void send_nested_epoll_sets() {
  constexpr int kStatusFd = 4;
  if (fork_count <= 1) return;
  int inner = ::epoll_create1(EPOLL_CLOEXEC);
  for (int depth = 0; depth < 8; ++depth) {
    const int outer = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) != 0) break;
    inner = outer;
  }
  send_message(kStatusFd, RunConfined{7, {}}, {inner});
}

// The message is too long to fit in the frame that reports the end of the run.
void send_long_message() {
  constexpr int kStatusFd = 4;
  if (fork_count > 1) send_message(kStatusFd, SetupStepFailed{std::string(kMaxFrameBytes - 64, 'x'), 1});
}

int run_nothing(mycojobs::JobChannel) { return 0; }

}  // namespace

int main(int, char** argv) {
  const std::string name = argv[0];
  if (const std::size_t dash = name.find('-'); dash != std::string::npos) {
    get_random_generator().seed(std::strtoull(name.c_str() + dash + 1, nullptr, 10));
    if (name[0] == 'g') send_frames_before_serving();
    if (name[0] == 'r') mycojobs::serve_zygote({"rogue", send_frames_after_fork, nullptr, nullptr, run_nothing});
    if (name[0] == 's') mycojobs::serve_zygote({"status", count_forks, nullptr, send_frames_as_init, run_nothing});
    return 0;
  }
  if (name == "listener")
    mycojobs::serve_zygote({"listener", count_forks, nullptr, send_file_as_listener, run_nothing});
  if (name == "nested") mycojobs::serve_zygote({"nested", count_forks, nullptr, send_nested_epoll_sets, run_nothing});
  if (name == "wordy") mycojobs::serve_zygote({"wordy", count_forks, nullptr, send_long_message, run_nothing});
  if (name == "silent") mycojobs::serve_zygote({"silent", stop_answering, nullptr, nullptr, run_nothing});
  if (name == "lie") answer_with_own_pidfd();
  if (name == "babble") send_all_kinds();
  if (name == "die") return 1;
  if (name == "thread") std::thread([] { ::pause(); }).detach();
  if (name == "file") (void)::open("/dev/null", O_RDONLY);
  if (name == "thread" || name == "file") mycojobs::serve_zygote({"bad", nullptr, nullptr, nullptr, run_nothing});
  return 0;
}
