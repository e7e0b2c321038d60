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

// Commands that start a sandbox: only without a Redis, only with a flag, and not with another flag.
struct ConfiningCommand {
  std::string_view name;
  bool without_redis = false;
  std::string_view with_flag = {}, without_flag = {};
};
constexpr ConfiningCommand kConfining[] = {
    {"run", true},  {"job submit", true, "follow"}, {"flow start", true, "", "detach"},
    {"dev", false}, {"sandbox run", false},         {"policy learn", false}};

bool starts_sandbox(std::string_view command, const Invocation& call) {
  return std::any_of(std::begin(kConfining), std::end(kConfining), [&](const ConfiningCommand& each) {
    return each.name == command && (!each.without_redis || call.settings.redis.empty()) &&
           (each.with_flag.empty() || call.has(each.with_flag)) &&
           (each.without_flag.empty() || !call.has(each.without_flag));
  });
}

bool may_be_unlimited(const Settings& settings) {
  const auto is_allowed = [&allowed = settings.sandbox_allow_missing](std::string_view layer) {
    return std::find(allowed.begin(), allowed.end(), layer) != allowed.end();
  };
  return is_allowed("cgroup:memory") && is_allowed("cgroup:pids");
}

bool has_word(std::string_view list, std::string_view word, char between) {
  std::istringstream words{std::string(list)};
  for (std::string each; std::getline(words, each, between);) {
    if (each == word) return true;
  }
  return false;
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_marked_as_delegated(const fs::path& group) {
  char value[4] = {};
  return ::getxattr(group.c_str(), "trusted.delegate", value, sizeof value) > 0 ||
         ::getxattr(group.c_str(), "user.delegate", value, sizeof value) > 0;
}

bool may_write_below(const fs::path& group) {
  return ::access(group.c_str(), W_OK) == 0 && ::access((group / "cgroup.procs").c_str(), W_OK) == 0 &&
         ::access((group / "cgroup.subtree_control").c_str(), W_OK) == 0;
}

bool is_root_user() { return ::geteuid() == 0; }
bool booted_with_systemd() { return ::access("/run/systemd/system", F_OK) == 0; }

// Login shells of su(1) and sudo do not set the variable, but systemd-run needs it to connect to the user's manager.
void name_runtime_folder() {
  const std::string folder = "/run/user/" + std::to_string(::getuid());
  if (std::getenv("XDG_RUNTIME_DIR") == nullptr && ::access((folder + "/systemd").c_str(), F_OK) == 0)
    ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
}

// Tests whether systemd permits a scope for this user by creating one.
bool can_make_scope() {
  if (!booted_with_systemd() || ::access(kSystemdRun, X_OK) != 0) return false;
  const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  SpawnSpec spec;
  spec.program = kSystemdRun;
  const std::vector<std::string> words = in_delegated_scope({"/bin/true"}, is_root_user());
  spec.arguments.assign(words.begin() + 1, words.end());
  for (char** each = environ; *each != nullptr; ++each) spec.environment.emplace_back(*each);
  spec.descriptors = {{nothing.get(), STDIN_FILENO}, {nothing.get(), STDOUT_FILENO}, {nothing.get(), STDERR_FILENO}};
  auto child = spawn(spec);
  return child && wait_child(*child) == 0;
}

// Restores the signal state from before main(), since exec() keeps signal masks and SIG_IGN.
void reset_signals() {
  sigset_t all;
  sigemptyset(&all);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&all, number);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // NOLINT(cert-err33-c): SIG_DFL is always accepted
}

}  // namespace

bool has_delegated_cgroup(std::string_view proc_self_cgroup, const fs::path& mount, bool is_root) {
  std::string group;
  std::istringstream lines{std::string(proc_self_cgroup)};
  for (std::string line; std::getline(lines, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (has_word(controllers, "memory", ',') || has_word(controllers, "pids", ',')) return true;
    if (controllers.empty()) group = line.substr(second + 1);
  }
  if (group.ends_with(sandbox::kLauncherGroup)) group.resize(group.size() - sandbox::kLauncherGroup.size());
  if (group.empty() || group == "/") return true;
  const fs::path folder = mount / group.substr(1);
  std::string available = content_of(folder / "cgroup.controllers");
  while (available.ends_with('\n')) available.pop_back();
  if (!has_word(available, "memory", ' ') || !has_word(available, "pids", ' ')) return false;
  return is_root ? is_marked_as_delegated(folder) : may_write_below(folder);
}

std::vector<std::string> in_delegated_scope(std::vector<std::string> words, bool is_root) {
  std::vector<std::string> out{"systemd-run"};
  if (!is_root) out.emplace_back("--user");
  out.insert(out.end(), {"--quiet", "--scope", "-p", "Delegate=yes"});
  out.insert(out.end(), words.begin(), words.end());
  return out;
}

std::string typed_in_delegated_scope(const std::vector<std::string>& words, bool is_root) {
  std::string out;
  for (const std::string& word : in_delegated_scope(words, is_root)) {
    if (word != "--quiet") out += (out.empty() ? "" : " ") + quote_for_shell(word);
  }
  return out;
}

void enter_delegated_scope(std::string_view command, const Invocation& call, char** argv) {
  if (!starts_sandbox(command, call) || may_be_unlimited(call.settings)) return;
  const std::string groups = content_of("/proc/self/cgroup");
  const std::string scope = std::string(kScopeName) + std::to_string(::getpid()) + ".scope";
  // The second check prevents a loop if the new scope does not have the expected effect.
  if (has_delegated_cgroup(groups, kCgroupMount, is_root_user()) || groups.find(scope) != std::string::npos) return;
  name_runtime_folder();
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
  if (unknown || !can_make_scope()) return;
  std::vector<std::string> words{"--unit=" + scope, program.string()};
  for (char** each = argv + 1; *each != nullptr; ++each) words.emplace_back(*each);
  words = in_delegated_scope(std::move(words), is_root_user());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  reset_signals();
  ::execv(kSystemdRun, pointers.data());  // systemd-run creates the scope and then executes the program
}

std::string scope_remedy(const std::string& error, const std::vector<std::string>& words) {
  if (error.find("cgroup:") == std::string::npos || !booted_with_systemd()) return {};
  return "; type: " + typed_in_delegated_scope(words, is_root_user());
}

}  // namespace mycojobs
