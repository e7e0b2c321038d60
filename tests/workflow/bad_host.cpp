// Replaces mycojobs-workflowhost with a faulty program. The name of the program selects the fault: "bad-<fault>".
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/fd.h"
#include "executors/lua/workflowhost/step_protocol.h"

using namespace mycojobs;
using namespace mycojobs::workflow;

namespace {

std::string framed(StepFrameKind kind, std::uint32_t call, const std::string& payload) {
  std::string frame;
  append_header(frame, kind, call, payload.size());
  return frame + payload;
}

void send_reply(StepFrameKind kind, std::uint32_t call, const std::string& payload) {
  if (!write_all(kSocketFd, framed(kind, call, payload))) ::_exit(1);
}

bool read_exactly(char* buffer, std::size_t size) {
  for (ssize_t count = 0; size > 0; buffer += count, size -= static_cast<std::size_t>(count)) {
    count = ::read(kSocketFd, buffer, size);
    if (count <= 0) return false;
  }
  return true;
}

// Returns the number of the next step; other messages are ignored.
std::uint32_t next_step() {
  for (std::string payload;;) {
    char bytes[kHeaderBytes];
    if (!read_exactly(bytes, sizeof bytes)) ::_exit(0);
    const StepFrameHeader header = parse_header(bytes);
    payload.resize(header.size);
    if (!read_exactly(payload.data(), payload.size())) ::_exit(0);
    if (header.kind == static_cast<std::uint8_t>(StepFrameKind::step)) return header.call;
  }
}

std::string in_bytes(const std::string& value) {
  std::string out = "\x5a";
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value.size() >> shift);
  return out + value;
}
// Returns a CBOR byte string whose encoding has `size` bytes.
std::string long_bytes(std::size_t size) { return in_bytes(std::string(size - 5, 'x')); }

const std::string kFine = std::string("\xa3\x65state\xf6\x67") + "effects\x80\x6d" + "domain_events\x80";

}  // namespace

int main(int, char** argv) {
  const std::string path = argv[0], fault = path.substr(path.rfind("bad-") + 4);
  if (fault == "exits") return 3;
  if (fault == "silent") ::pause();
  if (fault == "refuses") send_reply(StepFrameKind::refused, 0, "cannot drop rights: seccomp_load: EINVAL");
  if (fault == "nonsense") (void)write_all(kSocketFd, std::string(4096, 'x'));
  std::string greeting = framed(StepFrameKind::ready, 0, fault == "wordy" ? std::string(5000, 'n') : "lua-0/0");
  // The answer arrives with the greeting, before the step is sent.
  if (fault == "early") greeting += framed(StepFrameKind::answer, 1, kFine);
  if (!write_all(kSocketFd, greeting)) ::_exit(1);
  for (;;) {
    const std::uint32_t call = next_step();
    if (fault == "fine") send_reply(StepFrameKind::answer, call, kFine);
    if (fault == "hangs") ::pause();
    if (fault == "dies") ::_exit(9);
    if (fault == "closes") ::close(kSocketFd), ::pause();
    if (fault == "other_call") send_reply(StepFrameKind::answer, call + 1, kFine);
    if (fault == "other_kind") send_reply(StepFrameKind::program, call, kFine);
    if (fault == "never_knows") send_reply(StepFrameKind::unknown_program, call, "");
    if (fault == "no_cbor") send_reply(StepFrameKind::answer, call, "no CBOR");
    if (fault == "no_map") send_reply(StepFrameKind::answer, call, "\x80");
    if (fault == "long_form") send_reply(StepFrameKind::answer, call, std::string("\xb8\x03", 2) + kFine.substr(1));
    if (fault == "bad_state") send_reply(StepFrameKind::answer, call, "\xa3\x65state\x41\xff" + kFine.substr(8));
    if (fault == "long_state")
      send_reply(StepFrameKind::answer, call,
                 "\xa3\x65state" + in_bytes(long_bytes(kMaxStateBytes + 1)) + kFine.substr(8));
    if (fault == "long_rest")
      send_reply(StepFrameKind::answer, call,
                 "\xa4\x63"
                 "ann" +
                     in_bytes(long_bytes(kMaxStepBytes)) + kFine.substr(1));
    if (fault == "more_fields")
      send_reply(StepFrameKind::answer, call, std::string("\xa4\x61z\x01", 4) + kFine.substr(1));
    if (fault == "bad_kind")
      send_reply(StepFrameKind::answer, call,
                 "\xa1\x65"
                 "error\xa2\x64kind\x63odd\x67message\x60");
    if (fault == "half") (void)write_all(kSocketFd, std::string("\xff\x00\x00\x00\x05", 5)), ::_exit(0);
    if (fault == "huge") {
      std::string frame;
      append_header(frame, StepFrameKind::answer, call, 0xf0000000);
      (void)write_all(kSocketFd, frame);
    }
  }
}
