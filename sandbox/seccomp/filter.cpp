#include "sandbox/seccomp/filter.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/shortage.h"
#include "sandbox/withheld_calls.h"

namespace mycojobs::sandbox {
namespace {

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;

Error make_rule_error(const char* name, int code) {
  return {Code::unsupported,
          std::string("seccomp: libseccomp refuses the rule for ") + name + ": " + errno_text(-code)};
}

Result<void> add_rule(const Filter& filter, std::uint32_t action, const char* name,
                      std::initializer_list<ArgumentTest> tests) {
  const int number = seccomp_syscall_resolve_name(name);
  if (number < 0) return {};  // not on this architecture, or newer than the library
  scmp_arg_cmp comparisons[3];
  unsigned count = 0;
  for (const auto& test : tests) {
    if (test.mask != 0) comparisons[count++] = scmp_arg_cmp{test.index, SCMP_CMP_MASKED_EQ, test.mask, test.value};
  }
  if (int code = seccomp_rule_add_array(filter.get(), action, number, count, comparisons); code != 0) {
    return tl::unexpected(make_rule_error(name, code));
  }
  return {};
}

std::uint32_t to_seccomp_action(const ArgumentRule& rule) {
  switch (rule.answer) {
    case SyscallAction::allow:
      return SCMP_ACT_ALLOW;
    case SyscallAction::notify:
      return SCMP_ACT_NOTIFY;
    case SyscallAction::refuse:
      break;
  }
  return SCMP_ACT_ERRNO(static_cast<std::uint32_t>(rule.error));
}

Result<Filter> create_filter(std::uint32_t default_action = SCMP_ACT_ERRNO(EPERM)) {
  Filter filter(seccomp_init(default_action), &seccomp_release);
  if (!filter) return fail(Code::unsupported, "seccomp: libseccomp cannot start a filter");
  // A foreign architecture has other numbers, so the rules would be meaningless.
  if (int code = seccomp_attr_set(filter.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS); code != 0) {
    return tl::unexpected(make_rule_error("other architectures", code));
  }
  if (int code = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2); code != 0) {
    return tl::unexpected(make_rule_error("the binary tree", code));
  }
  return filter;
}

int find_newest_call() {
  int newest = 0;
  for (int number = 0; number < 2000; ++number) {
    if (char* name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number); name != nullptr) {
      newest = number;
      std::free(name);
    }
  }
  return newest;
}

// libseccomp has one default action for unlisted calls, but a call that is newer than the table must fail like on a
// kernel without it, or libc does not fall back. As in runc, a few instructions are prepended: numbers above the newest
// known call (and below those of x32, which the main part kills) fail with ENOSYS.
constexpr std::uint32_t kX32Bit = 0x40000000;
void refuse_newer_calls(std::vector<sock_filter>& program) {
  const auto newest = static_cast<std::uint32_t>(find_newest_call());
  const sock_filter prefix[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, seccomp_arch_native(), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32Bit, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, newest, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
  };
  program.insert(program.begin(), std::begin(prefix), std::end(prefix));
}

Result<std::vector<sock_filter>> export_program(const Filter& filter) {
  const Fd file(::memfd_create("filter", MFD_CLOEXEC));
  if (!file) return fail(Code::io, "seccomp: memfd_create: " + errno_text(errno));
  if (int code = seccomp_export_bpf(filter.get(), file.get()); code != 0) {
    return tl::unexpected(make_rule_error("the whole program", code));
  }
  struct stat info {};
  ::fstat(file.get(), &info);
  std::vector<sock_filter> program(static_cast<std::size_t>(info.st_size) / sizeof(sock_filter));
  if (::pread(file.get(), program.data(), static_cast<std::size_t>(info.st_size), 0) != info.st_size) {
    return fail(Code::io, "seccomp: cannot read the program back");
  }
  return program;
}

Result<std::vector<sock_filter>> build_program(const Filter& filter) {
  MJ_TRY(program, export_program(filter));
  refuse_newer_calls(program);
  if (program.size() > BPF_MAXINSNS) return fail(Code::unsupported, "seccomp: the program is too long for the kernel");
  return program;
}

// Families that are confined by the network namespace or the file system. Others are not (AF_VSOCK reaches the
// hypervisor).
constexpr int kConfinedFamilies[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET};

Result<void> check_extra_call(const std::string& name) {
  if (const std::string_view reason = never_granted_reason(name); !reason.empty())
    return fail(Code::invalid, "syscalls.add: " + name + ' ' + std::string(reason));
  const int number = seccomp_syscall_resolve_name(name.c_str());
  if (number == __NR_SCMP_ERROR) return fail(Code::invalid, "syscalls.add: unknown system call " + name);
  return {};
}

bool is_extra_call(const FilterRequest& request, const char* name) {
  return std::find(request.extra_calls.begin(), request.extra_calls.end(), name) != request.extra_calls.end();
}

Result<void> add_socket_rules(const Filter& filter, bool learn) {
  for (int family = 0; family < 64; ++family) {
    const bool is_confined =
        std::find(std::begin(kConfinedFamilies), std::end(kConfinedFamilies), family) != std::end(kConfinedFamilies);
    if (!is_confined && learn) continue;
    const std::uint32_t action = is_confined ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EAFNOSUPPORT);
    MJ_CHECK(add_rule(filter, action, "socket", {{0, 0xffffffff, static_cast<std::uint64_t>(family)}}));
  }
  return {};
}

// Adds rules for calls that the launcher counts (reported_calls.h), and for record locks that need no counting. Runs
// with `learn` may use all of them.
Result<void> add_counted_calls(const Filter& filter, const FilterRequest& request) {
  const auto allow_if_learning = [&](std::uint32_t action) { return request.learn ? SCMP_ACT_ALLOW : action; };
  if (request.sockets && !is_extra_call(request, "listen"))
    MJ_CHECK(add_rule(filter, allow_if_learning(SCMP_ACT_NOTIFY), "listen", {}));
  if (is_extra_call(request, "fcntl")) return {};
  // A process never conflicts with its own record locks. If no other process can reach its files, a lock has no effect
  // except for kernel memory, so the call pretends success.
  const bool can_conflict = request.exec || request.shared_files;
  const std::uint32_t lock_action = can_conflict ? SCMP_ACT_NOTIFY : SCMP_ACT_ERRNO(0);
  for (const int command : {F_SETLK, F_SETLKW})
    MJ_CHECK(add_rule(filter, allow_if_learning(lock_action), "fcntl",
                      {{1, 0xffffffff, static_cast<std::uint64_t>(command)}}));
  // Locks of open file descriptions do conflict within a process, and their owner is unknown: fail as on kernels before
  // 3.15.
  for (const int command : {F_OFD_SETLK, F_OFD_SETLKW})
    MJ_CHECK(add_rule(filter, allow_if_learning(SCMP_ACT_ERRNO(EINVAL)), "fcntl",
                      {{1, 0xffffffff, static_cast<std::uint64_t>(command)}}));
  return {};
}

struct IdCall {
  const char* name;
  unsigned arguments;
};
constexpr IdCall kIdCalls[] = {{"setuid", 1},   {"setgid", 1},    {"setreuid", 2},
                               {"setregid", 2}, {"setresuid", 3}, {"setresgid", 3}};

// Adds rules with which calls that set ids pretend success if they change nothing: each argument is the job's own id
// or, if a call has several arguments, -1. All ids of a job are its own id, and no job can change them, so the result
// is exact. The kernel does not see these calls. A rule has no "or", so each combination is a rule.
Result<void> add_unchanged_ids(const Filter& filter, const FilterRequest& request) {
  for (const IdCall& call : kIdCalls) {
    if (is_extra_call(request, call.name)) continue;
    const unsigned combinations = call.arguments == 1 ? 1 : 1U << call.arguments;  // setuid(-1) is an error
    for (unsigned unchanged_mask = 0; unchanged_mask < combinations; ++unchanged_mask) {
      ArgumentTest tests[3];
      for (unsigned i = 0; i < call.arguments; ++i)
        tests[i] = {i, 0xffffffff, (unchanged_mask >> i & 1) != 0 ? 0xffffffff : std::uint64_t{kOwnIdPlaceholder}};
      MJ_CHECK(add_rule(filter, SCMP_ACT_ERRNO(0), call.name, {tests[0], tests[1], tests[2]}));
    }
  }
  return {};
}

// Runs with `learn` report calls that open a file; PolicyRecorder then checks the mode. The set-id bits of an added
// mknod are still refused, while any type of file is allowed.
Result<void> add_mode_rules(const Filter& filter, const FilterRequest& request) {
  for (const auto& rule : mode_rules()) {
    if (request.learn && find_file_open_call(rule.syscall) != nullptr) continue;
    MJ_CHECK(add_rule(filter, SCMP_ACT_ALLOW, rule.syscall, {rule.first}));
  }
  for (const auto& [name, index] : {std::pair{"mknod", 1U}, std::pair{"mknodat", 2U}}) {
    if (is_extra_call(request, name)) MJ_CHECK(add_rule(filter, SCMP_ACT_ALLOW, name, {{index, kSetIds, 0}}));
  }
  return {};
}

// Rules of `extra_calls` are skipped, since libseccomp does not accept two actions for one call.
Result<void> add_job_rules(const Filter& filter, const FilterRequest& request) {
  const auto add_calls = [&](std::uint32_t action, std::span<const char* const> names) -> Result<void> {
    for (const char* name : names) {
      const bool is_call_notified = request.learn && (action != SCMP_ACT_ALLOW || find_file_open_call(name) != nullptr);
      if (!is_extra_call(request, name) && !is_call_notified) MJ_CHECK(add_rule(filter, action, name, {}));
    }
    return {};
  };
  // Runs with `learn` keep refusals that depend on arguments: programs have a fallback, so no grant is missing.
  const auto is_notified = [&](const ArgumentRule& rule) {
    return request.learn &&
           (rule.answer == SyscallAction::notify || (rule.answer == SyscallAction::refuse && rule.first.mask == 0));
  };
  const auto add_rules = [&](std::span<const ArgumentRule> list) -> Result<void> {
    for (const auto& rule : list) {
      if (is_extra_call(request, rule.syscall) || is_notified(rule)) continue;
      MJ_CHECK(add_rule(filter, to_seccomp_action(rule), rule.syscall, {rule.first, rule.second, rule.third}));
    }
    return {};
  };
  for (const auto& name : request.extra_calls) {
    MJ_CHECK(check_extra_call(name));
    if (sets_mode(name)) continue;
    MJ_CHECK(name == "socket" ? add_socket_rules(filter, request.learn)
                              : add_rule(filter, SCMP_ACT_ALLOW, name.c_str(), {}));
  }
  MJ_CHECK(add_calls(SCMP_ACT_ALLOW, allowed_calls()));
  MJ_CHECK(add_calls(SCMP_ACT_NOTIFY, forbidden_calls()));
  for (const auto& call : refused_calls()) {
    if (is_extra_call(request, call.syscall) || request.learn) continue;
    MJ_CHECK(add_rule(filter, SCMP_ACT_ERRNO(static_cast<std::uint32_t>(call.error)), call.syscall, {}));
  }
  MJ_CHECK(add_rules(argument_rules()));
  MJ_CHECK(add_mode_rules(filter, request));
  for (const auto& rule : argument_rules_of_init()) {
    // With `learn`, forks are notified; a run that may fork already has this rule.
    if (std::strcmp(rule.syscall, "clone") == 0 && (request.learn || request.exec)) continue;
    if (is_extra_call(request, rule.syscall) || (request.sockets && std::strcmp(rule.syscall, "sendmsg") == 0))
      continue;
    MJ_CHECK(add_rule(filter, SCMP_ACT_ALLOW, rule.syscall, {rule.first, rule.second, rule.third}));
  }
  MJ_CHECK(add_rules(request.exec ? argument_rules_with_exec() : argument_rules_without_exec()));
  MJ_CHECK(add_rules(request.sockets ? argument_rules_with_sockets() : argument_rules_without_sockets()));
  MJ_CHECK(add_counted_calls(filter, request));
  MJ_CHECK(add_unchanged_ids(filter, request));
  if (request.exec) MJ_CHECK(add_calls(SCMP_ACT_ALLOW, allowed_calls_with_exec()));
  if (!request.sockets) return {};
  // Other families fail as on a kernel without them.
  for (std::uint64_t family = 0; family < 64 && !is_extra_call(request, "socket") && !request.learn; ++family) {
    if (family == AF_INET || family == AF_INET6) continue;
    MJ_CHECK(add_rule(filter, SCMP_ACT_ERRNO(EAFNOSUPPORT), "socket", {{0, 0xffffffff, family}}));
  }
  return add_calls(SCMP_ACT_ALLOW, allowed_calls_with_sockets());
}

// The last filter is loaded on top of the first, which decides all other calls. It therefore allows unknown calls, and
// is short, since each job loads it.
Result<std::vector<sock_filter>> compile_last_filter(bool exec, bool sockets) {
  MJ_TRY(filter, create_filter(SCMP_ACT_ALLOW));
  for (const auto& rule : argument_rules_of_init()) {
    if (exec && std::strcmp(rule.syscall, "clone") == 0) continue;
    if (sockets && std::strcmp(rule.syscall, "sendmsg") == 0) continue;
    MJ_CHECK(add_rule(filter, SCMP_ACT_ERRNO(EPERM), rule.syscall, {rule.first, rule.second, rule.third}));
  }
  return export_program(filter);
}

}  // namespace

Result<std::vector<sock_filter>> compile_filter(const FilterRequest& request) {
  MJ_TRY(filter, create_filter(request.learn ? SCMP_ACT_NOTIFY : SCMP_ACT_ERRNO(EPERM)));
  MJ_CHECK(add_job_rules(filter, request));
  return build_program(filter);
}

Result<FilterSet> compile_filters() {
  if (seccomp_api_get() < 5) {
    return fail(Code::unsupported, "seccomp: the kernel cannot notify a supervisor: Linux 5.0 or newer is needed");
  }
  MJ_TRY(job, compile_filter({}));
  MJ_TRY(job_exec, compile_filter({true, false, {}, false}));
  FilterSet set{{std::move(job), std::move(job_exec)}};
  for (const bool sockets : {false, true}) {
    for (const bool exec : {false, true}) {
      MJ_TRY(last, compile_last_filter(exec, sockets));
      set.programs[static_cast<std::size_t>(last_filter_kind(exec, sockets))] = std::move(last);
    }
  }
  return set;
}

std::string syscall_name(std::uint32_t arch, int number) {
  std::unique_ptr<char, decltype(&std::free)> name(nullptr, &std::free);
  if (arch == seccomp_arch_native()) name.reset(seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number));
  return name ? name.get() : "syscall " + std::to_string(number);
}

namespace {

constexpr std::size_t kMaxFiles = 64;

std::string build_key(const FilterRequest& request) {
  std::string key = request.exec ? "exec" : "";
  key += request.sockets ? " sockets" : "";
  key += request.learn ? " learn" : "";
  key += request.shared_files ? " files" : "";
  auto names = request.extra_calls;
  std::sort(names.begin(), names.end());
  for (const auto& name : names) key += " " + name;
  return key;
}

}  // namespace

Result<int> FilterCache::get_filter(const RunSpec& spec) {
  FilterRequest request{spec.limits.exec, spec.grants.network != Network::none, spec.grants.syscalls, spec.learn};
  request.shared_files = !request.exec && count_folders(spec.grants) > 0;
  if (!request.sockets && request.extra_calls.empty() && !request.learn && !request.shared_files) return -1;
  const std::string key = build_key(request);
  const auto cached = std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file.first == key; });
  if (cached != files_.end()) {
    files_.splice(files_.begin(), files_, cached);
    return files_.front().second.get();
  }
  MJ_TRY(program, compile_filter(request));
  Fd file(::memfd_create("filter", MFD_CLOEXEC));
  if (!file)
    return fail(find_shortage(errno) != nullptr ? Code::unavailable : Code::io,
                "seccomp: memfd_create: " + errno_text(errno));
  if (int error = write_filter(file.get(), program); error != 0) return fail(Code::io, "seccomp: " + errno_text(error));
  files_.emplace_front(key, std::move(file));
  if (files_.size() > kMaxFiles) files_.pop_back();
  return files_.front().second.get();
}

}  // namespace mycojobs::sandbox
