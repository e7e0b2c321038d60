#include "cli/delegated_scope.h"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/fd.h"
#include "base/spawn.h"
#include "sandbox/cgroup.h"
#include "text/shell_word.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSystemdRun = "/usr/bin/systemd-run";
constexpr const char* kCgroupMount = "/sys/fs/cgroup";
constexpr std::string_view kScopeName = "mycojobs-run-";  // prefix of the created scopes, followed by the process id

// A command that starts a sandbox, with the conditions: no configured Redis, a flag that must be set, and a flag that
// must not be set.
struct SandboxCommand {
  std::string_view name;
  bool without_redis = false;
  std::string_view with_flag = {}, without_flag = {};
};
constexpr SandboxCommand kSandboxCommands[] = {
    {"run", true},  {"job submit", true, "follow"}, {"flow start", true, "", "detach"},
    {"dev", false}, {"sandbox run", false},         {"policy learn", false}};

bool starts_sandbox(std::string_view command, const Invocation& call) {
  return std::any_of(std::begin(kSandboxCommands), std::end(kSandboxCommands), [&](const SandboxCommand& entry) {
    return entry.name == command && (!entry.without_redis || call.settings.redis.empty()) &&
           (entry.with_flag.empty() || call.has(entry.with_flag)) &&
           (entry.without_flag.empty() || !call.has(entry.without_flag));
  });
}

bool allows_missing_limits(const Settings& settings) {
  const auto is_allowed = [&allowed = settings.sandbox_allow_missing](std::string_view layer) {
    return std::find(allowed.begin(), allowed.end(), layer) != allowed.end();
  };
  return is_allowed("cgroup:memory") && is_allowed("cgroup:pids");
}

bool contains_item(std::string_view list, std::string_view item, char separator) {
  std::istringstream stream{std::string(list)};
  for (std::string entry; std::getline(stream, entry, separator);) {
    if (entry == item) return true;
  }
  return false;
}

std::string read_file(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_marked_as_delegated(const fs::path& group) {
  char value[4] = {};
  return ::getxattr(group.c_str(), "trusted.delegate", value, sizeof value) > 0 ||
         ::getxattr(group.c_str(), "user.delegate", value, sizeof value) > 0;
}

bool can_create_subgroups(const fs::path& group) {
  return ::access(group.c_str(), W_OK) == 0 && ::access((group / "cgroup.procs").c_str(), W_OK) == 0 &&
         ::access((group / "cgroup.subtree_control").c_str(), W_OK) == 0;
}

bool is_root_user() { return ::geteuid() == 0; }
bool booted_with_systemd() { return ::access("/run/systemd/system", F_OK) == 0; }

// Login shells of su(1) and sudo do not set the variable, but systemd-run needs it to connect to the user's manager.
void set_runtime_folder() {
  const std::string folder = "/run/user/" + std::to_string(::getuid());
  if (std::getenv("XDG_RUNTIME_DIR") == nullptr && ::access((folder + "/systemd").c_str(), F_OK) == 0)
    ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
}

// Tests whether systemd permits a scope for this user by creating one.
bool can_create_scope() {
  if (!booted_with_systemd() || ::access(kSystemdRun, X_OK) != 0) return false;
  const Fd null_device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  SpawnSpec spec;
  spec.program = kSystemdRun;
  const std::vector<std::string> arguments = prepend_scope_command({"/bin/true"}, is_root_user());
  spec.arguments.assign(arguments.begin() + 1, arguments.end());
  for (char** entry = environ; *entry != nullptr; ++entry) spec.environment.emplace_back(*entry);
  spec.inherited_descriptors = {
      {null_device.get(), STDIN_FILENO}, {null_device.get(), STDOUT_FILENO}, {null_device.get(), STDERR_FILENO}};
  auto child = spawn(spec);
  return child && wait_child(*child) == 0;
}

// Restores the signal state from before main(), since exec() keeps signal masks and SIG_IGN.
void reset_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // NOLINT(cert-err33-c): SIG_DFL is always accepted
}

}  // namespace

bool has_delegated_cgroup(std::string_view proc_self_cgroup, const fs::path& mount, bool is_root) {
  std::string group;
  std::istringstream lines{std::string(proc_self_cgroup)};
  for (std::string line; std::getline(lines, line);) {  // number:controllers:path
    const std::size_t first_colon = line.find(':');
    const std::size_t second_colon = line.find(':', first_colon + 1);
    if (first_colon == std::string::npos || second_colon == std::string::npos) continue;
    const std::string controllers = line.substr(first_colon + 1, second_colon - first_colon - 1);
    if (contains_item(controllers, "memory", ',') || contains_item(controllers, "pids", ',')) return true;
    if (controllers.empty()) group = line.substr(second_colon + 1);
  }
  if (group.ends_with(sandbox::kLauncherGroup)) group.resize(group.size() - sandbox::kLauncherGroup.size());
  if (group.empty() || group == "/") return true;
  const fs::path folder = mount / group.substr(1);
  std::string available = read_file(folder / "cgroup.controllers");
  while (available.ends_with('\n')) available.pop_back();
  if (!contains_item(available, "memory", ' ') || !contains_item(available, "pids", ' ')) return false;
  return is_root ? is_marked_as_delegated(folder) : can_create_subgroups(folder);
}

std::vector<std::string> prepend_scope_command(std::vector<std::string> arguments, bool is_root) {
  std::vector<std::string> out{"systemd-run"};
  if (!is_root) out.emplace_back("--user");
  out.insert(out.end(), {"--quiet", "--scope", "-p", "Delegate=yes"});
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

std::string format_scope_command(const std::vector<std::string>& arguments, bool is_root) {
  std::string out;
  for (const std::string& word : prepend_scope_command(arguments, is_root)) {
    if (word != "--quiet") out += (out.empty() ? "" : " ") + quote_for_shell(word);
  }
  return out;
}

void enter_delegated_scope(std::string_view command, const Invocation& call, char** argv) {
  if (!starts_sandbox(command, call) || allows_missing_limits(call.settings)) return;
  const std::string groups = read_file("/proc/self/cgroup");
  const std::string scope = std::string(kScopeName) + std::to_string(::getpid()) + ".scope";
  // The second check prevents a loop if the new scope does not have the expected effect.
  if (has_delegated_cgroup(groups, kCgroupMount, is_root_user()) || groups.find(scope) != std::string::npos) return;
  set_runtime_folder();
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
  if (unknown || !can_create_scope()) return;
  std::vector<std::string> arguments{"--unit=" + scope, program.string()};
  for (char** entry = argv + 1; *entry != nullptr; ++entry) arguments.emplace_back(*entry);
  arguments = prepend_scope_command(std::move(arguments), is_root_user());
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& word : arguments) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  reset_signals();
  ::execv(kSystemdRun, pointers.data());  // systemd-run creates the scope and then executes the program
}

std::string make_scope_remedy(const std::string& error, const std::vector<std::string>& arguments) {
  if (error.find("cgroup:") == std::string::npos || !booted_with_systemd()) return {};
  return "; type: " + format_scope_command(arguments, is_root_user());
}

}  // namespace mycojobs
