// The system calls that a job may use: tables (filter_tables.cpp) and their compilation to seccomp programs
// (filter.cpp).
//
//   allow            with argument checks where necessary
//   errno            the error with which libc falls back as on a kernel without the call. The default is EPERM;
//                    numbers newer than the table fail with ENOSYS
//   notify           calls that no benign program makes: the launcher records the call and kills the run
//   kill             only for a foreign architecture (i386, x32)
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "sandbox/sandbox.h"
#include "sandbox/seccomp/filter_programs.h"

namespace mycojobs::sandbox {

enum class SyscallAction { allow, refuse, notify };

// A comparison: (argument & mask) == value.
struct ArgumentTest {
  unsigned index = 0;
  std::uint64_t mask = 0, value = 0;
};
struct ArgumentRule {
  const char* syscall;
  ArgumentTest first;
  ArgumentTest second = {0, 0, 0};  // not tested if the mask is 0
  ArgumentTest third = {0, 0, 0};
  SyscallAction answer = SyscallAction::allow;
  int error = 0;  // for refuse
};
struct RefusedCall {
  const char* syscall;
  int error;
};

inline constexpr std::uint64_t kSetIds = S_ISUID | S_ISGID;
// With one of these flags, open() uses its mode. O_TMPFILE includes O_DIRECTORY, which does not create.
inline constexpr std::uint64_t kCreates = O_CREAT | (O_TMPFILE & ~O_DIRECTORY);

// The tables. Names that are unknown on this architecture or in libseccomp are skipped; the default applies to them.
std::span<const char* const> allowed_calls();            // for any arguments
std::span<const char* const> allowed_calls_with_exec();  // additionally, if the job may fork and exec
std::span<const char* const> forbidden_calls();
std::span<const RefusedCall> refused_calls();  // with an errno other than the default
std::span<const ArgumentRule> argument_rules();
// Calls that set the mode of a file, which must not contain S_ISUID or S_ISGID. A call is allowed if one of its rules
// matches. FilterRequest::extra_calls do not lift these rules.
std::span<const ArgumentRule> mode_rules();
bool sets_mode(std::string_view syscall);  // also mknod and mknodat
std::span<const ArgumentRule> argument_rules_without_exec();
std::span<const ArgumentRule> argument_rules_with_exec();
std::span<const char* const> allowed_calls_with_sockets();
std::span<const ArgumentRule> argument_rules_without_sockets();
std::span<const ArgumentRule> argument_rules_with_sockets();
std::span<const ArgumentRule> argument_rules_of_init();  // allowed by the first filter, refused by the last one

// A call that opens a file, with the indexes of its arguments `path`, `flags` and `mode`, where 6 means no flags.
struct FileOpenCall {
  const char* syscall;
  unsigned path, flags, mode;
};
const FileOpenCall* find_file_open_call(std::string_view syscall);  // returns null if the call opens no file

struct FilterRequest {
  bool exec = false;     // fork and exec
  bool sockets = false;  // internet sockets in a network of its own
  std::vector<std::string>
      extra_calls;            // allowed with any arguments; socket only for families that a namespace confines
  bool learn = false;         // all other calls and find_file_open_call() are notified
  bool shared_files = false;  // files are shared with other processes; always the case with exec
};

// Errors: unsupported, naming the rule that libseccomp refused; invalid, naming the call that cannot be added.
Result<FilterSet> compile_filters();
Result<std::vector<sock_filter>> compile_filter(const FilterRequest&);
std::string syscall_name(std::uint32_t arch, int number);  // "keyctl", or "syscall 999"

// Cache of the seccomp programs of runs with additional grants; each is compiled at its first use.
class FilterCache {
 public:
  // Returns -1 if the zygote's filter is sufficient; otherwise a file for read_filter(), valid until the next call.
  // Error: an unknown system call, or one that can never be granted.
  Result<int> get_filter(const RunSpec&);

 private:
  std::list<std::pair<std::string, Fd>> files_;  // most recently used first
};

}  // namespace mycojobs::sandbox
