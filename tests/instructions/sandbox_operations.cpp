// The launcher's frames: writing, reading, and a whole transfer with the descriptors of a run.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/fd.h"
#include "instructions/examples.h"
#include "instructions/operation.h"
#include "sandbox/frames.h"
#include "sandbox/messages.h"

namespace mycojobs::instructions {
namespace {

using sandbox::RawFrame;

template <class Message>
RawFrame encode_frame(const Message& message) {
  const std::string bytes = sandbox::encode(message);
  RawFrame frame;
  frame.kind = static_cast<std::uint8_t>(bytes[0]);
  frame.payload = bytes.substr(1);
  return frame;
}

template <class Message>
Operation writing(const std::string& name, const Message& message) {
  return {"launcher." + name + ".encode", [message] { return sandbox::encode(message).size(); }};
}
template <class Message>
Operation reading(const std::string& name, const Message& message) {
  return {"launcher." + name + ".decode", [frame = std::make_shared<RawFrame>(encode_frame(message))] {
            Message out;
            require(sandbox::decode(*frame, out), "a frame is not read");
            return frame->payload.size();
          }};
}

// The descriptors are copies of one end of the socket; the reader closes them.
Operation passing(const std::string& bytes) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "no socket");
  struct Pair {
    Fd out, in;
  };
  const auto pair = std::make_shared<Pair>(Pair{Fd(ends[0]), Fd(ends[1])});
  return {"launcher.launch.pass", [pair, bytes] {
            const int fd = pair->out.get();
            require(sandbox::send_raw(fd, bytes, {fd, fd, fd}) == 0, "a frame is not sent");
            RawFrame frame;
            require(
                sandbox::receive_raw(pair->in.get(), frame) == sandbox::ReceiveResult::frame && frame.fds.size() == 3,
                "a frame does not arrive with its descriptors");
            return frame.payload.size();
          }};
}

}  // namespace

std::vector<Operation> sandbox_operations() {
  const sandbox::Launch launch{example_run()};
  const sandbox::LauncherRunEnded ended{example_run().run, example_outcome()};
  sandbox::ForkRequest fork;
  fork.run = example_run().run, fork.uid = 1001, fork.limits = example_run().limits;
  sandbox::RunConfined confined;
  confined.landlock_abi = 7, confined.setup = example_outcome().setup;
  return {writing("launch", launch),     reading("launch", launch), passing(sandbox::encode(launch)),
          writing("fork", fork),         reading("fork", fork),     writing("confined", confined),
          reading("confined", confined), writing("ended", ended),   reading("ended", ended)};
}

}  // namespace mycojobs::instructions
