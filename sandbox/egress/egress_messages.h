// Messages between the launcher and mycojobs-egress; frames as in sandbox/frames.h.
//
//   launcher -> egress    Serve + {listener}, NextJob, Close
//   egress   -> launcher  Denied (at most kMaxDenied per job), Ended (the reply to Close), Trouble
//
// The listener is a TCP socket that listens on 127.0.0.1 in the job's network namespace; the proxy's copy is closed at
// Close. A run that cannot be served is reported by Trouble; its Close still has a reply.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sandbox/frames.h"

namespace mycojobs::egress {

inline constexpr int kLauncherSocket = 3;
inline constexpr const char* kEgressProgram = "mycojobs-egress";
inline constexpr std::uint32_t kMaxDenied = 20;

enum class Kind : std::uint8_t { serve = 1, close, next_job, denied = 16, ended, trouble };

struct Serve {
  static constexpr Kind kKind = Kind::serve;
  std::uint64_t run = 0;
  std::vector<std::string> allow;  // see net/allow_list.h
};
template <class A>
void fields(A& a, Serve& m) {
  a(m.run), a(m.allow);
}

struct Close {
  static constexpr Kind kKind = Kind::close;
  std::uint64_t run = 0;
};
template <class A>
void fields(A& a, Close& m) {
  a(m.run);
}

// The run's job has ended, and its process serves another job, whose denials are reported again.
struct NextJob {
  static constexpr Kind kKind = Kind::next_job;
  std::uint64_t run = 0;
};
template <class A>
void fields(A& a, NextJob& m) {
  a(m.run);
}

struct ConnectionDenied {
  static constexpr Kind kKind = Kind::denied;
  std::uint64_t run = 0;
  std::string text;  // one printable line for the job's author
};
template <class A>
void fields(A& a, ConnectionDenied& m) {
  a(m.run), a(m.text);
}

struct ProxyRunEnded {
  static constexpr Kind kKind = Kind::ended;
  std::uint64_t run = 0;
  std::uint64_t connections = 0;               // connections to servers
  std::uint64_t bytes_up = 0, bytes_down = 0;  // data sent by jobs and servers
  std::uint64_t denied = 0;                    // all denials, including those not reported by Denied
};
template <class A>
void fields(A& a, ProxyRunEnded& m) {
  a(m.run), a(m.connections), a(m.bytes_up), a(m.bytes_down), a(m.denied);
}

struct ProxyProblem {
  static constexpr Kind kKind = Kind::trouble;
  std::string text;  // for the operator's log
};
template <class A>
void fields(A& a, ProxyProblem& m) {
  a(m.text);
}

}  // namespace mycojobs::egress
