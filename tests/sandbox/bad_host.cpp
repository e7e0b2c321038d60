// Script hosts that break their promises, by the name they are started under.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "sandbox/messages.h"
#include "sandbox/zygote.h"

namespace {

using namespace mycojobs::sandbox;
constexpr int kControl = 3;

// Says Ready, then answers each request with a pidfd of a process that is not its child: itself.
void lie() {
  RawFrame frame;
  receive_raw(kControl, frame);
  send_message(kControl, Ready{});
  receive_raw(kControl, frame);
  Fork request;
  decode(frame, request);
  const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  send_message(kControl, Forked{request.run, 0}, {self});
  receive_raw(kControl, frame);
}

void babble() {
  RawFrame frame;
  receive_raw(kControl, frame);
  send_message(kControl, Ready{});
  for (int kind = 0; kind < 256; ++kind) {
    std::string bytes(1, static_cast<char>(kind));
    send_raw(kControl, bytes + "\xff\xff\xff\xff\xff\xff\xff\xff\xff", {});
  }
  receive_raw(kControl, frame);
}

int nothing(int) { return 0; }

}  // namespace

int main(int, char** argv) {
  const std::string name = argv[0];
  if (name == "lie") lie();
  if (name == "babble") babble();
  if (name == "die") return 1;
  if (name == "thread") std::thread([] { ::pause(); }).detach();
  if (name == "file") (void)::open("/dev/null", O_RDONLY);
  if (name == "thread" || name == "file") mycojobs::serve_zygote({"bad", nullptr, nullptr, nullptr, nothing});
  return 0;
}
