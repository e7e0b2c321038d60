// Messages between the launcher and mycojobs-egress; frames as in sandbox/frames.h.
//
//   launcher -> egress    Serve + {listener}, NextJob, Close
//   egress   -> launcher  ConnectionDenied (at most kMaxDenied per job), ProxyRunEnded (the reply to Close),
//                         ProxyProblem
//
// The listener is a TCP socket that listens on 127.0.0.1 in the job's network namespace; the proxy's copy is closed at
// Close. A run that cannot be served is reported by ProxyProblem; its Close still has a reply.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sandbox/frames.h"

namespace mycojobs::egress {

inline constexpr int kLauncherSocket = 3;
inline constexpr const char* kEgressProgram = "mycojobs-egress";
inline constexpr std::uint32_t kMaxDenied = 20;

enum class Kind : std::uint8_t { serve = 1, close, next_job, connection_denied = 16, proxy_run_ended, proxy_problem };

struct Serve {
  static constexpr Kind kKind = Kind::serve;
  std::uint64_t run = 0;
  std::vector<std::string> allow;  // see net/allow_list.h
};
template <class Archive>
void fields(Archive& archive, Serve& message) {
  archive(message.run), archive(message.allow);
}

struct Close {
  static constexpr Kind kKind = Kind::close;
  std::uint64_t run = 0;
};
template <class Archive>
void fields(Archive& archive, Close& message) {
  archive(message.run);
}

// The run's job has ended, and its process serves another job, whose denials are reported again.
struct NextJob {
  static constexpr Kind kKind = Kind::next_job;
  std::uint64_t run = 0;
};
template <class Archive>
void fields(Archive& archive, NextJob& message) {
  archive(message.run);
}

struct ConnectionDenied {
  static constexpr Kind kKind = Kind::connection_denied;
  std::uint64_t run = 0;
  std::string text;  // one printable line for the job's author
};
template <class Archive>
void fields(Archive& archive, ConnectionDenied& message) {
  archive(message.run), archive(message.text);
}

struct ProxyRunEnded {
  static constexpr Kind kKind = Kind::proxy_run_ended;
  std::uint64_t run = 0;
  std::uint64_t connections = 0;               // connections to servers
  std::uint64_t bytes_up = 0, bytes_down = 0;  // data sent by jobs and servers
  std::uint64_t denied = 0;                    // all denials, including those without ConnectionDenied
};
template <class Archive>
void fields(Archive& archive, ProxyRunEnded& message) {
  archive(message.run), archive(message.connections), archive(message.bytes_up), archive(message.bytes_down),
      archive(message.denied);
}

struct ProxyProblem {
  static constexpr Kind kKind = Kind::proxy_problem;
  std::string text;  // for the operator's log
};
template <class Archive>
void fields(Archive& archive, ProxyProblem& message) {
  archive(message.text);
}

}  // namespace mycojobs::egress
