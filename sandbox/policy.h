// What a job may ask of the kernel: data (policy_tables.cpp) and its compilation to seccomp programs (policy.cpp).
//
//   allow            with argument checks where the arguments matter
//   errno            what libc expects of a kernel that lacks the call, so that programs fall back. The default is
//                    EPERM; a number newer than our table is ENOSYS
//   notify           never innocent: the launcher records the call and kills the run
//   kill             only for a foreign architecture (i386, x32)
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "mycojobs/result.h"
#include "mycojobs/sandbox.h"
#include "sandbox/programs.h"

namespace mycojobs::sandbox {

enum class Answer { allow, refuse, notify };

// One comparison: (argument & mask) == value.
struct ArgumentTest {
  unsigned index = 0;
  std::uint64_t mask = 0, value = 0;
};
struct ArgumentRule {
  const char* syscall;
  ArgumentTest first;
  ArgumentTest second = {0, 0, 0};  // mask 0: none
  ArgumentTest third = {0, 0, 0};
  Answer answer = Answer::allow;
  int error = 0;  // of refuse
};
struct RefusedCall {
  const char* syscall;
  int error;
};

// The tables. A name that this architecture or libseccomp does not know is left out: the default answers.
std::span<const char* const> allowed_calls();            // whatever the arguments
std::span<const char* const> allowed_calls_with_exec();  // these too, when the job may fork and exec
std::span<const char* const> never_innocent_calls();
std::span<const RefusedCall> refused_calls();  // with an errno other than the default
std::span<const ArgumentRule> argument_rules();
std::span<const ArgumentRule> argument_rules_without_exec();
std::span<const ArgumentRule> argument_rules_with_exec();
std::span<const char* const> allowed_calls_with_sockets();
std::span<const ArgumentRule> argument_rules_without_sockets();
std::span<const ArgumentRule> argument_rules_with_sockets();
std::span<const ArgumentRule> argument_rules_of_init();  // allowed by the first filter, refused by the last one

struct FilterRequest {
  bool exec = false;               // fork and exec
  bool sockets = false;            // internet sockets, of a network of its own
  std::vector<std::string> added;  // allowed whatever the arguments; of socket, only families that a namespace confines
  bool learn = false;              // everything else, and what reported_calls.h observes, is notified
  bool shared_files = false;       // with processes that are not its own; with exec they are
};

// Error: unsupported, naming the rule that libseccomp refused; invalid, naming what was to be added.
Result<FilterSet> compile_filters();
Result<std::vector<sock_filter>> compile_filter(const FilterRequest&);
std::string syscall_name(std::uint32_t arch, int number);  // "keyctl", or "syscall 999"

// The seccomp programs of runs that are granted more than their profile: compiled when first asked for, then kept.

class FilterCache {
 public:
  // -1: the zygote's own will do. Else a file for read_filter(), which stays open until the next call.
  // Error: a name that is no system call, or one that can never be granted.
  Result<int> filter_for(const RunSpec&);

 private:
  std::list<std::pair<std::string, Fd>> files_;  // the last used first
};

}  // namespace mycojobs::sandbox
