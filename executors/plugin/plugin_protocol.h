// Protocol between the agent and mycojobs-pluginhost on a socket, one call at a time:
//
//   frame = length of the payload, u32 little-endian | kind, u8 | number of the call, u32 little-endian | payload
//
//   host    loaded (call 0: a description) or refused (reason), once, after loading
//   agent   probe, prepare or interpret, numbered from 1
//   host    answer, nothing, threw or too_large, with the number of the call
//
// The plugin shares the host's process, so data from the host is untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mycojobs/plugin.h"

namespace mycojobs::plugin {

using Plugin = struct ::mycojobs_plugin;  // C++ needs the tag, since the symbol has the same name

enum class PluginFrameKind : std::uint8_t {
  probe = 1,
  prepare = 2,
  interpret = 3,
  loaded = 16,     // texts, each terminated by NUL: ABI, "1" if it interprets, name, version, profile, script types
  refused = 17,    // one line
  answer = 18,     // return value of the function
  nothing = 19,    // the function returned NULL
  threw = 20,      // the function threw a C++ exception
  too_large = 21,  // the return value exceeds kMaxReplyBytes
};

inline constexpr std::size_t kHeaderBytes = 9;
inline constexpr std::uint32_t kMaxReplyBytes = MYCOJOBS_PLUGIN_MAX_REPLY;
inline constexpr std::uint32_t kMaxRequestBytes = 128U << 20;
inline constexpr int kSocketFd = 3, kPluginFd = 4;  // descriptors of the host at its start
inline constexpr int kSocketEndedExit = 70;         // exit code of the host if the socket cannot be written
inline constexpr const char* kHostProgram = "mycojobs-pluginhost";
// The host exits after this duration of a call. The time-outs of the agent are much shorter.
inline constexpr unsigned kMaxCallSeconds = 30;

struct PluginFrameHeader {
  std::uint32_t size = 0;
  std::uint8_t kind = 0;
  std::uint32_t call = 0;
};

inline void append_u32(std::string& out, std::uint32_t value) {
  for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}
inline std::uint32_t read_u32(const char* bytes) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}
inline std::string header_bytes(PluginFrameKind kind, std::uint32_t call, std::size_t size) {
  std::string out;
  append_u32(out, static_cast<std::uint32_t>(size));
  out.push_back(static_cast<char>(kind));
  append_u32(out, call);
  return out;
}
// REQUIRES: `bytes` has kHeaderBytes bytes.
inline PluginFrameHeader read_header(const char* bytes) {
  return {read_u32(bytes), static_cast<std::uint8_t>(bytes[4]), read_u32(bytes + 5)};
}

}  // namespace mycojobs::plugin
