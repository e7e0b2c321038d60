#include "store/redis_errors.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace mycojobs {
namespace {

struct Meaning {
  std::string_view begin;  // of the server's text
  Code code;
  std::string_view remedy;
};

constexpr std::array kMeanings{
    Meaning{"WRONGPASS", Code::denied, "wrong user or password in the redis url"},
    Meaning{"NOAUTH", Code::denied, "the server wants a password: redis://:password@host"},
    Meaning{"ERR AUTH <password> called without", Code::denied,
            "the server has no password: take it out of the redis url"},
    Meaning{"ERR Client sent AUTH, but no password", Code::denied,
            "the server has no password: take it out of the redis url"},
    Meaning{"NOPERM", Code::denied, "this Redis user may not: see ACL SETUSER"},
    Meaning{"DENIED", Code::denied, "the server's protected mode refuses us: set a password or bind address"},
    Meaning{"LOADING", Code::unavailable, "the server is still reading its data"},
    Meaning{"OOM", Code::unavailable, "raise the server's maxmemory or free some"},
    Meaning{"MISCONF", Code::unavailable, "the server cannot write its data: look at its log and its disk"},
    Meaning{"READONLY", Code::unavailable, "this is a replica: name the primary in the redis url"},
    Meaning{"MASTERDOWN", Code::unavailable, "this replica has lost its primary"},
    Meaning{"BUSY", Code::unavailable, "a script of another client runs too long: SCRIPT KILL ends it"},
    Meaning{"NOREPLICAS", Code::unavailable, "too few replicas: see min-replicas-to-write"},
    Meaning{"ERR max number of clients", Code::unavailable, "raise the server's maxclients"},
    Meaning{"CLUSTERDOWN", Code::unsupported, "Redis Cluster is not supported"},
    Meaning{"MOVED", Code::unsupported, "Redis Cluster is not supported"},
    Meaning{"MJTYPE", Code::invalid, "another client wrote it: delete or rename it"},
    Meaning{"WRONGTYPE", Code::invalid, "the key holds something else: delete or rename it"},
    Meaning{"MJCONFLICT", Code::conflict, ""},
    Meaning{"MJFULL", Code::too_large, ""},
    Meaning{"MJDENIED", Code::denied, ""},
};

std::string one_line(std::string_view text) {
  // Errors inside a script end with its digest and line, which say nothing to an operator.
  std::string out(text.substr(0, std::min<std::size_t>(text.find(" script: "), 400)));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return out;
}

}  // namespace

Error redis_error(std::string_view server_text) {
  const std::string shown = one_line(server_text);
  for (const Meaning& meaning : kMeanings) {
    if (!server_text.starts_with(meaning.begin)) continue;
    // Our own scripts begin with MJ...: that word is for the table only.
    const std::string text = shown.starts_with("MJ") ? shown.substr(shown.find(' ') + 1) : shown;
    return {meaning.code, "redis: " + text + (meaning.remedy.empty() ? "" : " (" + std::string(meaning.remedy) + ")")};
  }
  return {Code::internal, "redis: " + shown};
}

}  // namespace mycojobs
