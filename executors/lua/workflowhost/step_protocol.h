// Protocol between the engine (agent/workflows/engine) and mycojobs-workflowhost on a socket. There is one call at a
// time:
//
//   frame = length of the payload, u32 little-endian | kind, u8 | number of the call, u32 little-endian | payload
//
//   host     ready (payload: the name of the engine) or refused (the reason), once, with call 0, after the host has
//            dropped its rights
//   engine   program: hash, 32 bytes | entrypoint, NUL | name, NUL | source. It has no answer; an error of loading the
//            program is the answer to its steps
//            step: hash of the program, 32 bytes | request, CBOR
//   host     answer (CBOR), or unknown_program: the program is not loaded, or was evicted
//
// Requests and answers are encoded as in step_codec.h. The host runs untrusted code, so the engine validates every
// frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "executors/lua/workflowhost/step_codec.h"

namespace mycojobs::workflow {

enum class StepFrameKind : std::uint8_t {
  ready = 1,
  refused = 2,
  program = 3,
  step = 4,
  answer = 5,
  unknown_program = 6
};

inline constexpr int kSocketFd = 3;  // descriptor of the socket in the host
inline constexpr std::size_t kHeaderBytes = 9, kHashBytes = 32;
inline constexpr std::uint32_t kMaxFrameBytes = 16U << 20;
// The host exits if a step takes longer. The engine has stopped waiting for the answer long before.
inline constexpr unsigned kStepTimeoutSeconds = 900;

inline constexpr std::size_t kMaxSourceBytes = 1U << 20;
static_assert(kMaxStepRequestBytes + kHashBytes <= kMaxFrameBytes);

struct StepFrameHeader {
  std::uint32_t size = 0;
  std::uint8_t kind = 0;
  std::uint32_t call = 0;
};

inline void append_u32(std::string& out, std::uint32_t value) {
  for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}
inline std::uint32_t parse_u32(const char* bytes) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}
inline void append_header(std::string& out, StepFrameKind kind, std::uint32_t call, std::size_t size) {
  append_u32(out, static_cast<std::uint32_t>(size));
  out.push_back(static_cast<char>(kind));
  append_u32(out, call);
}
// REQUIRES: `bytes` has at least kHeaderBytes bytes.
inline StepFrameHeader parse_header(const char* bytes) {
  return {parse_u32(bytes), static_cast<std::uint8_t>(bytes[4]), parse_u32(bytes + 5)};
}

}  // namespace mycojobs::workflow
