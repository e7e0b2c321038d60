#include "sandbox/zygote_start.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "sandbox/granted_tree.h"
#include "sandbox/job.h"
#include "sandbox/messages.h"
#include "sandbox/pidfd.h"
#include "sandbox/root.h"
#include "sandbox/trust.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kNamespaceFlags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;

struct ChildSide {
  const ZygoteStart& start;
  int program, control, err;
  const std::vector<HostFolder>& folders;
};

int die_with_launcher(ChildSide&) { return error_if(::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0); }

// Also the proof that the launcher still lives: it may have died before the signal was set.
int wait_for_id_maps(ChildSide& side) {
  RawFrame frame;
  MapsWritten written;
  if (receive_raw(side.control, frame) != Received::frame || !decode(frame, written)) ::_exit(0);
  return 0;
}

int become_namespace_root(ChildSide& side) {
  if (side.start.ids.wide() && ::syscall(SYS_setgroups, 0, nullptr) != 0) return errno;
  if (::syscall(SYS_setresgid, 0, 0, 0) != 0) return errno;
  return error_if(::syscall(SYS_setresuid, 0, 0, 0) != 0);
}

// The launcher ignores what a terminal sends; ignored signals would outlive the exec.
int own_session(ChildSide&) {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  return error_if(::setsid() < 0);
}
int name_host(ChildSide&) { return error_if(::sethostname("mycojobs", 8) != 0); }
int root(ChildSide& side) { return build_root({side.start.host.program, side.program}, side.folders); }
int pivot(ChildSide&) { return enter_root(); }
int seal(ChildSide&) { return seal_root(); }

// A second user namespace would give a job every capability again, inside. Forbidden for our namespace and all below,
// and then tried: this must hold without seccomp.
int forbid_user_namespaces(ChildSide&) {
  {
    const Fd limit(::open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC));
    if (!limit || ::write(limit.get(), "0", 1) != 1) return errno;
  }
  if (::unshare(CLONE_NEWUSER) == 0) return ENOTRECOVERABLE;
  return errno == ENOSPC || errno == EPERM || errno == EUSERS ? 0 : errno;
}

int arrange_descriptors(ChildSide& side) {
  const int null = ::open("/dev/null", O_RDWR);
  const int sources[] = {null, null, side.err, side.control};
  int moved[4];
  for (int i = 0; i < 4; ++i) {
    moved[i] = ::fcntl(sources[i], F_DUPFD, 16);
    if (moved[i] < 0) return errno;
  }
  for (int i = 0; i < 4; ++i) {
    if (::dup2(moved[i], i) < 0) return errno;
  }
  side.control = 3;
  return error_if(::close_range(4, ~0U, 0) != 0);
}

int run_program(ChildSide& side) {
  const std::string& program = side.start.host.program;
  std::string name = program.substr(program.rfind('/') + 1);  // npos + 1 is 0
  std::vector<std::string> arguments = side.start.host.arguments;
  std::vector<char*> argv{name.data()};
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  char* environment[] = {nullptr};
  ::fcntl(side.control, F_SETFL, 0);
  ::execve(kProgram, argv.data(), environment);
  return errno;
}

struct StartStep {
  const char* name;
  int (*run)(ChildSide&);
};
constexpr StartStep kSteps[] = {
    {"zygote_parent", die_with_launcher},
    {"zygote_maps", wait_for_id_maps},
    {"zygote_ids", become_namespace_root},
    {"zygote_session", own_session},
    {"zygote_hostname", name_host},
    {"zygote_root", root},
    {"zygote_pivot", pivot},
    {"zygote_seal", seal},
    {"zygote_userns_limit", forbid_user_namespaces},
    {"zygote_descriptors", arrange_descriptors},
    {"zygote_exec", run_program},
};

[[noreturn]] void run_child(ChildSide side) {
  for (const StartStep& step : kSteps) {
    if (left_out(side.start.leave_out, step.name)) continue;
    int error = step.run(side);
    if (side.start.fail_step == step.name) error = EIO;
    if (error == 0) continue;
    send_message(side.control, StepFailed{step.name, error});
    ::_exit(1);
  }
  ::_exit(1);
}

[[noreturn]] void run_check(const ScriptHost& host, int err) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  if (::dup2(err, STDERR_FILENO) < 0 || ::close_range(STDERR_FILENO + 1, ~0U, 0) != 0) ::_exit(1);
  for (const auto& folder : host.folders) {
    const std::string problem = mistrust_tree(folder.path);
    if (problem.empty()) continue;
    (void)!::write(STDERR_FILENO, problem.data(), problem.size());
    ::_exit(1);
  }
  ::_exit(0);
}

// The id maps, and what a zygote reads first. 0 or errno.
int hand_over(const StartedZygote& zygote, const ZygoteStart& start) {
  int error = write_id_maps(zygote.pid, start.ids);
  if (start.fail_step == "zygote_write_maps") error = EIO;
  if (error == 0) error = send_message(zygote.control.get(), MapsWritten{});
  if (error != 0) return error;
  std::vector<int> handed_down{start.filters};
  if (start.alive >= 0) handed_down.push_back(start.alive);
  return send_raw(zygote.control.get(), encode(Programs{start.fail_step, start.leave_out, start.rank}), handed_down);
}

// Ends the child. It may have failed before: then that is the reason.
StartFailure end_failed(const StartedZygote& zygote, int error) {
  ::kill(zygote.pid, SIGKILL);
  ::waitpid(zygote.pid, nullptr, 0);
  RawFrame frame;
  StepFailed own;
  if (receive_raw(zygote.control.get(), frame) == Received::frame && decode(frame, own)) return {own.step, own.error};
  return {"zygote_write_maps", error};
}

}  // namespace

tl::expected<StartedZygote, StartFailure> start_check(const ScriptHost& host) {
  const auto failed = [] { return tl::unexpected(StartFailure{"zygote_folder", errno}); };
  int err[2];
  if (::pipe2(err, O_CLOEXEC | O_NONBLOCK) != 0) return failed();
  StartedZygote check;
  check.err.reset(err[0]);
  const Fd theirs(err[1]);
  check.pid = ::fork();
  if (check.pid < 0) return failed();
  if (check.pid == 0) run_check(host, theirs.get());
  check.pidfd.reset(::pidfd_open(check.pid, 0));
  return check;
}

tl::expected<StartedZygote, StartFailure> start_zygote(const ZygoteStart& start) {
  const auto failed = [](const char* step) { return tl::unexpected(StartFailure{step, errno}); };
  const std::string& path = start.host.program;
  if (::access(path.c_str(), X_OK) != 0) return failed("zygote_program");
  const Fd program(::open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  std::vector<Fd> trees;
  std::vector<HostFolder> folders;
  for (const auto& folder : start.host.folders) {
    auto tree = open_trusted(folder.path);
    if (!tree) return tl::unexpected(StartFailure{"zygote_folder", EINVAL, tree.error().message});
    folders.push_back({folder.place, tree->get()});
    trees.push_back(std::move(*tree));
  }
  int control[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) return failed("zygote_socket");
  StartedZygote zygote;
  zygote.control.reset(control[0]);
  const Fd theirs(control[1]);
  int err[2];
  if (::pipe2(err, O_CLOEXEC) != 0) return failed("zygote_socket");
  zygote.err.reset(err[0]);
  const Fd their_err(err[1]);
  ::fcntl(zygote.control.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(zygote.err.get(), F_SETFL, O_NONBLOCK);

  const int flags = kNamespaceFlags & ~(left_out(start.leave_out, "netns") ? CLONE_NEWNET : 0);
  const long pid = ::syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid < 0) return failed("zygote_namespaces");
  if (pid == 0) run_child({start, program.get(), theirs.get(), their_err.get(), folders});
  zygote.pid = static_cast<pid_t>(pid);
  zygote.pidfd.reset(::pidfd_open(zygote.pid, 0));
  if (int error = hand_over(zygote, start); error != 0) return tl::unexpected(end_failed(zygote, error));
  return zygote;
}

}  // namespace mycojobs::sandbox
