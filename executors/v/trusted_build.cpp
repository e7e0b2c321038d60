#include "executors/v/trusted_build.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/spawn.h"
#include "executors/channel.h"
#include "executors/v/binary_cache.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTrialTimeoutMs = 60000, kBuildTimeoutMs = 300000;
constexpr const char* kExpectedOutput = "it works\n";
constexpr std::size_t kMaxOutputBytes = 32U << 10;

class WorkFolder {
 public:
  static Result<WorkFolder> create() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "mycojobs-v-XXXXXX").string();
    if (error || ::mkdtemp(path.data()) == nullptr) return fail(Code::io, path + ": " + errno_text(errno));
    return WorkFolder(std::move(path));
  }
  WorkFolder(WorkFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  std::string operator/(const char* name) const { return path_ + '/' + name; }

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

struct HostRun {
  int code = 0;
  std::string text;  // the beginning of its output
};

struct RunLimits {
  std::uint64_t timeout_ms;
  const std::atomic<bool>& stop;
};

// Reads until all writers have closed the pipe. Returns false on an error, after the time-out, or when `stop` is set.
bool read_to_end(int fd, std::string& text, const RunLimits& limits) {
  constexpr int kCheckStopMs = 100;
  const std::uint64_t deadline = SystemClock().boot_ms() + limits.timeout_ms;
  std::array<char, 4096> buffer;  // NOLINT(*-member-init): filled by read
  while (!limits.stop && SystemClock().boot_ms() < deadline) {
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, kCheckStopMs) <= 0) continue;
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR) return false;
    if (count == 0) return true;
    if (count > 0) text.append(buffer.data(), std::min(static_cast<std::size_t>(count), kMaxOutputBytes - text.size()));
  }
  return false;
}

Result<HostRun> run_on_host(SpawnSpec spec, const RunLimits& limits) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return fail(Code::io, "pipe: " + errno_text(errno));
  const Fd read_end(pipe_ends[0]);
  Fd write_end(pipe_ends[1]);
  const Fd dev_null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  spec.inherited_descriptors = {
      {dev_null.get(), STDIN_FILENO}, {write_end.get(), STDOUT_FILENO}, {write_end.get(), STDERR_FILENO}};
  MJ_TRY(child, spawn(spec));
  write_end.reset();
  HostRun run;
  const bool has_ended = read_to_end(read_end.get(), run.text, limits);
  if (!has_ended) ::kill(-child.pid, SIGKILL);  // also kills the C compiler: the child leads a session of its own
  run.code = wait_child(child);
  if (!has_ended)
    return fail(Code::unsupported,
                spec.program + ": did not end within " + std::to_string(limits.timeout_ms / 1000) + " s");
  return run;
}

// Compiles `source` to `folder`/program, with `folder`/cache as VCACHE.
Result<void> compile(const VCompiler& compiler, const std::vector<std::string>& flags, const char* source,
                     const WorkFolder& folder, const RunLimits& limits) {
  const std::string file = folder / "main.v";
  if (!(std::ofstream(file) << source).flush()) return fail(Code::io, file + ": " + errno_text(errno));
  SpawnSpec spec;
  spec.program = compiler.path;
  spec.arguments = flags;
  spec.arguments.insert(spec.arguments.end(), {"-o", folder / "program", file});
  TextMap environment = compile_environment();
  environment["VCACHE"] = folder / "cache";
  for (const char* name : {"HOME", "TMPDIR", "VTMP"}) environment[name] = folder / "";
  for (const auto& [name, value] : environment) spec.environment.push_back(name + '=' + value);
  MJ_TRY(run, run_on_host(std::move(spec), limits));
  if (run.code == 0) return {};
  return fail(Code::unsupported, compiler.path + " cannot compile: " + parse_compile_error(run.text, "main.v").message);
}

}  // namespace

const TextMap& compile_environment() {
  static const TextMap kEnvironment = {{"HOME", "/job"},
                                       {"LANG", "C.UTF-8"},
                                       {"LOGNAME", "job"},
                                       {"USER", "job"},
                                       {"TMPDIR", "/tmp"},
                                       {"PATH", "/usr/bin:/bin"},
                                       {"VTMP", "/tmp"},  // V before 0.4.5 does not create a missing folder
                                       {"VCOLORS", "never"},
                                       {"VMODULES", "/job/.vmodules"},
                                       {"VCACHE", std::string("/job/") + kModuleCacheFolder},
                                       {"GC_NPROCS", "1"}};
  return kEnvironment;
}

Result<void> try_compiler(const VCompiler& compiler, const std::string& version, const std::vector<std::string>& flags,
                          const std::string& state_dir) {
  struct stat c_compiler {};
  (void)::stat("/usr/bin/cc", &c_compiler);
  std::vector<std::string> parts{"try", version, compiler.identity, std::to_string(c_compiler.st_ino),
                                 std::to_string(c_compiler.st_mtim.tv_sec)};
  parts.insert(parts.end(), flags.begin(), flags.end());
  const std::string key = hash_parts(parts);
  const BinaryCache successes(trusted_folder(state_dir));
  if (!state_dir.empty() && successes.find(key)) return {};
  const std::atomic<bool> no_stop{false};
  const RunLimits limits{kTrialTimeoutMs, no_stop};
  MJ_TRY(folder, WorkFolder::create());
  MJ_CHECK(compile(compiler, flags, "fn main() {\n\tprintln('it works')\n}\n", folder, limits));
  SpawnSpec spec;
  spec.program = folder / "program";
  spec.environment = {"GC_NPROCS=1"};
  MJ_TRY(run, run_on_host(std::move(spec), limits));
  if (run.code != 0 || run.text != kExpectedOutput) {
    return fail(Code::unsupported, compiler.path + ": a program compiled by it does not run: exit code " +
                                       std::to_string(run.code) + ": " + run.text.substr(0, run.text.find('\n')));
  }
  if (!state_dir.empty())
    (void)successes.store(key, kExpectedOutput);  // without a cache entry the next probe compiles again
  return {};
}

Result<std::string> build_network_modules(const VCompiler& compiler, const std::vector<std::string>& flags,
                                          const std::atomic<bool>& stop) {
  MJ_TRY(folder, WorkFolder::create());
  MJ_CHECK(compile(compiler, flags, "import net.http\n\nfn main() {\n\tprintln(http.Method.get)\n}\n", folder,
                   {kBuildTimeoutMs, stop}));
  const fs::path cache = folder / "cache";
  std::string frames;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(cache, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->is_regular_file(error)) continue;
    std::ifstream file(entry->path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const std::string name = kModuleCacheFolder + ('/' + fs::relative(entry->path(), cache, error).string());
    if (!file.is_open() || error) break;
    append_file(frames, name, 0444, bytes);
    if (frames.size() > kMaxBinaryBytes) return fail(Code::too_large, "the objects of net.http are over 64 MiB");
  }
  if (error) return fail(Code::io, cache.string() + ": " + errno_text(error.value()));
  if (frames.empty()) return fail(Code::unsupported, compiler.path + ": stores no objects in VCACHE");
  return frames;
}

}  // namespace mycojobs
