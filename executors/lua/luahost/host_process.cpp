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

constexpr std::size_t kMaxOutput = 4U << 20;  // per stream; further output is read and discarded

struct Program {
  std::vector<std::string> arguments;
  std::string input, folder;
  bool echo = false;  // output is also copied to the host's stdout and stderr
};

struct ApiServerImpl {
  pid_t pid = -1;
  Fd input, out, err;
};

struct Pipe {
  Fd read, write;
  bool open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    read.reset(ends[0]);
    write.reset(ends[1]);
    return true;
  }
};

std::string field_text(lua_State* state, const char* name) {
  lua_getfield(state, 1, name);
  std::size_t size = 0;
  const char* text = lua_tolstring(state, -1, &size);
  std::string value = text == nullptr ? std::string() : std::string(text, size);
  lua_pop(state, 1);
  return value;
}

Program program_at_1(lua_State* state) {
  Program program;
  luaL_checktype(state, 1, LUA_TTABLE);
  for (lua_Integer i = 1, count = luaL_len(state, 1); i <= count; ++i) {
    lua_rawgeti(state, 1, i);
    program.arguments.emplace_back(luaL_checkstring(state, -1));
    lua_pop(state, 1);
  }
  program.input = field_text(state, "input");
  program.folder = field_text(state, "folder");
  lua_getfield(state, 1, "echo");
  program.echo = lua_toboolean(state, -1) != 0;
  lua_pop(state, 1);
  return program;
}

// Starts the program with default signal handling. Returns 0 or an errno.
int start(const Program& program, ApiServerImpl& running) {
  Pipe input, out, err;
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
  sigset_t usual;
  ::sigemptyset(&usual);
  ::sigaddset(&usual, SIGPIPE);
  ::sigaddset(&usual, SIGTERM);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> words;
  for (const std::string& word : program.arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const int error = ::posix_spawnp(&running.pid, words[0], &actions, &attributes, words.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  running.input = std::move(input.write);
  running.out = std::move(out.read);
  running.err = std::move(err.read);
  ::fcntl(running.input.get(), F_SETFL, O_NONBLOCK);
  return error;
}

void take(Fd& from, std::string& kept, int echo) {
  std::array<char, 65536> part;  // NOLINT(*-member-init): filled by read
  const ssize_t got = ::read(from.get(), part.data(), part.size());
  if (got < 0 && errno == EINTR) return;
  if (got <= 0) return from.reset();
  const std::string_view bytes(part.data(), static_cast<std::size_t>(got));
  kept.append(bytes.substr(0, kMaxOutput - std::min(kMaxOutput, kept.size())));
  if (echo >= 0) write_to(echo, bytes);
}

// Writes the program's input and reads its output until it has closed stdout and stderr.
void serve(ApiServerImpl& running, const Program& program, std::string& out, std::string& err) {
  std::string_view left = program.input;
  if (left.empty()) running.input.reset();
  while (running.out || running.err) {
    pollfd sources[] = {
        {running.out.get(), POLLIN, 0}, {running.err.get(), POLLIN, 0}, {running.input.get(), POLLOUT, 0}};
    if (::poll(sources, 3, -1) < 0) continue;  // interrupted
    if (sources[0].revents != 0) take(running.out, out, program.echo ? STDOUT_FILENO : -1);
    if (sources[1].revents != 0) take(running.err, err, program.echo ? STDERR_FILENO : -1);
    if (sources[2].revents == 0) continue;
    const ssize_t sent = ::write(running.input.get(), left.data(), left.size());
    if (sent > 0) left.remove_prefix(static_cast<std::size_t>(sent));
    const bool broken = sent < 0 && errno != EAGAIN && errno != EINTR;
    if (broken || left.empty()) running.input.reset();
  }
}

// {words of the command, input, folder, echo} -> stdout, stderr, exit code (128 + signal number); or nil, text, errno
// name.
int lua_run(lua_State* state) {
  const Program program = program_at_1(state);
  if (program.arguments.empty()) return push_errno(state, EINVAL);
  std::fflush(stdout);  // earlier output of the script must precede the program's output
  ApiServerImpl running;
  if (const int error = start(program, running); error != 0) return push_errno(state, error);
  std::string out, err;
  serve(running, program, out, err);
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
