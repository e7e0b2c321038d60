// Functions of the Lua modules that run programs and query processes and the machine.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "base/fd.h"
#include "executors/lua/luahost/job.h"

namespace mycojobs::lua {
namespace {

constexpr std::size_t kMaxOutputBytes = 4U << 20;  // per stream; further output is read and discarded

struct ProgramRequest {
  std::vector<std::string> arguments;
  std::string input, folder;
  bool echo = false;  // whether output is also copied to stdout and stderr of the host
};

struct RunningProgram {
  pid_t pid = -1;
  Fd input, out, err;
};

struct PipePair {
  Fd read, write;
  bool open() {
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return false;
    read.reset(pipe_ends[0]);
    write.reset(pipe_ends[1]);
    return true;
  }
};

std::string get_field_text(lua_State* state, const char* name) {
  lua_getfield(state, 1, name);
  std::size_t size = 0;
  const char* text = lua_tolstring(state, -1, &size);
  std::string value = text == nullptr ? std::string() : std::string(text, size);
  lua_pop(state, 1);
  return value;
}

ProgramRequest read_program_request(lua_State* state) {
  ProgramRequest program;
  luaL_checktype(state, 1, LUA_TTABLE);
  for (lua_Integer i = 1, count = luaL_len(state, 1); i <= count; ++i) {
    lua_rawgeti(state, 1, i);
    program.arguments.emplace_back(luaL_checkstring(state, -1));
    lua_pop(state, 1);
  }
  program.input = get_field_text(state, "input");
  program.folder = get_field_text(state, "folder");
  lua_getfield(state, 1, "echo");
  program.echo = lua_toboolean(state, -1) != 0;
  lua_pop(state, 1);
  return program;
}

// Starts the program with default signal handling. Returns 0 or an errno.
int spawn_program(const ProgramRequest& program, RunningProgram& running) {
  PipePair input, out, err;
  if (!input.open() || !out.open() || !err.open()) return errno;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.read.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.write.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, err.write.get(), 2);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  if (!program.folder.empty()) ::posix_spawn_file_actions_addchdir_np(&actions, program.folder.c_str());
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t default_signals;
  ::sigemptyset(&default_signals);
  ::sigaddset(&default_signals, SIGPIPE);
  ::sigaddset(&default_signals, SIGTERM);
  ::posix_spawnattr_setsigdefault(&attributes, &default_signals);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> arguments;
  for (const std::string& argument : program.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int error = ::posix_spawnp(&running.pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  running.input = std::move(input.write);
  running.out = std::move(out.read);
  running.err = std::move(err.read);
  ::fcntl(running.input.get(), F_SETFL, O_NONBLOCK);
  return error;
}

void read_output(Fd& source, std::string& output, int echo_fd) {
  std::array<char, 65536> part;  // NOLINT(*-member-init): filled by read
  const ssize_t count = ::read(source.get(), part.data(), part.size());
  if (count < 0 && errno == EINTR) return;
  if (count <= 0) return source.reset();
  const std::string_view bytes(part.data(), static_cast<std::size_t>(count));
  output.append(bytes.substr(0, kMaxOutputBytes - std::min(kMaxOutputBytes, output.size())));
  if (echo_fd >= 0) write_bytes(echo_fd, bytes);
}

// Writes the program's input and reads its output until it has closed stdout and stderr.
void transfer_streams(RunningProgram& running, const ProgramRequest& program, std::string& out, std::string& err) {
  std::string_view remaining = program.input;
  if (remaining.empty()) running.input.reset();
  while (running.out || running.err) {
    pollfd sources[] = {
        {running.out.get(), POLLIN, 0}, {running.err.get(), POLLIN, 0}, {running.input.get(), POLLOUT, 0}};
    if (::poll(sources, 3, -1) < 0) continue;  // interrupted
    if (sources[0].revents != 0) read_output(running.out, out, program.echo ? STDOUT_FILENO : -1);
    if (sources[1].revents != 0) read_output(running.err, err, program.echo ? STDERR_FILENO : -1);
    if (sources[2].revents == 0) continue;
    const ssize_t sent = ::write(running.input.get(), remaining.data(), remaining.size());
    if (sent > 0) remaining.remove_prefix(static_cast<std::size_t>(sent));
    const bool is_closed = sent < 0 && errno != EAGAIN && errno != EINTR;
    if (is_closed || remaining.empty()) running.input.reset();
  }
}

// Argument: a table of the arguments of the command, input, folder and echo. Returns stdout, stderr and the exit code
// (128 + signal number); or nil, the error text and the name of errno.
int lua_run(lua_State* state) {
  const ProgramRequest program = read_program_request(state);
  if (program.arguments.empty()) return push_errno(state, EINVAL);
  std::fflush(stdout);  // earlier output of the script must precede the program's output
  RunningProgram running;
  if (const int error = spawn_program(program, running); error != 0) return push_errno(state, error);
  std::string out, err;
  transfer_streams(running, program, out, err);
  int status = 0;
  while (::waitpid(running.pid, &status, 0) < 0 && errno == EINTR) {
  }
  lua_pushlstring(state, out.data(), out.size());
  lua_pushlstring(state, err.data(), err.size());
  lua_pushinteger(state, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  return 3;
}

int lua_kill(lua_State* state) {
  const auto pid = static_cast<pid_t>(luaL_checkinteger(state, 1));
  const auto signal = static_cast<int>(luaL_checkinteger(state, 2));
  if (::kill(pid, signal) != 0) return push_errno(state, errno);
  lua_pushboolean(state, 1);
  return 1;
}

int lua_pid(lua_State* state) {
  lua_pushinteger(state, ::getpid());
  return 1;
}

int lua_machine(lua_State* state) {
  utsname names{};
  ::uname(&names);
  lua_pushstring(state, names.sysname);
  lua_pushstring(state, names.machine);
  return 2;
}

}  // namespace

void add_process_functions(lua_State* state) {
  const luaL_Reg functions[] = {
      {"run", lua_run}, {"kill", lua_kill}, {"pid", lua_pid}, {"machine", lua_machine}, {nullptr, nullptr}};
  add_functions(state, functions);
}

}  // namespace mycojobs::lua
