// What modules ask of the job itself: its channel, its environment, its time.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "executors/host_channel.h"
#include "executors/lua/luahost/job.h"

namespace mycojobs::lua {
namespace {

struct ThisJob {
  int channel = -1;
  pid_t pid = 0;
  volatile std::sig_atomic_t term_seen = 0;
  volatile std::sig_atomic_t script_asks = 0;
};
ThisJob this_job;

// Process 1 of a namespace is not ended by a signal of its own: it leaves with the code that a shell would show.
extern "C" void on_term(int signal) {
  this_job.term_seen = 1;
  if (this_job.script_asks != 0) return;
  if (::getpid() == 1) ::_exit(128 + signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

std::string_view text_at(lua_State* state, int index) {
  std::size_t size = 0;
  const char* text = luaL_checklstring(state, index, &size);
  return {text, size};
}

int lua_send(lua_State* state) {
  const auto kind = static_cast<FrameKind>(luaL_checkinteger(state, 1));
  lua_pushboolean(state, send(kind, text_at(state, 2)) ? 1 : 0);
  return 1;
}

// The reply as JSON; or nil and why there is none.
int lua_ask(lua_State* state) {
  const std::string_view call = text_at(state, 1);
  if (call.size() > kMaxCallBytes) {
    lua_pushnil(state);
    lua_pushfstring(state, "too_large");
    return 2;
  }
  auto reply = ::getpid() == this_job.pid
                   ? ask(this_job.channel, call)
                   : Result<std::string>(fail(Code::unavailable, "this is not the job's process"));
  if (!reply) {
    lua_pushnil(state);
    lua_pushlstring(state, reply.error().message.data(), reply.error().message.size());
    return 2;
  }
  lua_pushlstring(state, reply->data(), reply->size());
  return 1;
}

int lua_cancelled(lua_State* state) {
  lua_pushboolean(state, cancelled() ? 1 : 0);
  return 1;
}

// Ends early once the job has been asked to end and its script has said that it looks.
int lua_sleep(lua_State* state) {
  const double seconds = std::min(luaL_checknumber(state, 1), 1e9);
  timespec rest{};
  rest.tv_sec = static_cast<time_t>(seconds);
  rest.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  while (!term_seen() && ::clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) == EINTR) {
  }
  return 0;
}

int lua_exit(lua_State* state) { ::_exit(end_job(state, static_cast<int>(luaL_checkinteger(state, 1)))); }

int lua_setenv(lua_State* state) {
  ::setenv(luaL_checkstring(state, 1), luaL_checkstring(state, 2), 1);  // NOLINT(concurrency-mt-unsafe)
  return 0;
}

int lua_getenv(lua_State* state) {
  lua_pushstring(state, ::getenv(luaL_checkstring(state, 1)));  // NOLINT(concurrency-mt-unsafe)
  return 1;
}

int lua_write_error(lua_State* state) {
  write_error(text_at(state, 1));
  return 0;
}

// Lua's heap is not all that the process has: its stack, its libraries' data, what it holds of files.
int lua_limit_memory(lua_State* state) {
  constexpr std::size_t kBeside = 12U << 20;
  const auto bytes = static_cast<std::size_t>(std::max<lua_Integer>(luaL_checkinteger(state, 1), 0));
  limit_memory(bytes > 2 * kBeside ? bytes - kBeside : bytes / 2);
  return 0;
}

}  // namespace

void begin_job(int channel) {
  this_job.channel = channel;
  this_job.pid = ::getpid();
  ::fcntl(channel, F_SETFD, FD_CLOEXEC);  // no program that the script runs speaks for it
  struct sigaction action {};
  action.sa_handler = on_term;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

bool send(FrameKind kind, std::string_view payload) {
  return ::getpid() == this_job.pid && send_frame(this_job.channel, kind, payload);
}

void finish(const std::string& artifacts, std::uint64_t max_bytes) {
  if (::getpid() != this_job.pid) return;
  send_artifacts(this_job.channel, artifacts, max_bytes);
  send(FrameKind::done, "");
}

bool cancelled() {
  this_job.script_asks = 1;
  return term_seen();
}
bool term_seen() { return this_job.term_seen != 0; }

void write_to(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void add_job_functions(lua_State* state) {
  const luaL_Reg functions[] = {{"send", lua_send},
                                {"ask", lua_ask},
                                {"cancelled", lua_cancelled},
                                {"sleep", lua_sleep},
                                {"exit", lua_exit},
                                {"setenv", lua_setenv},
                                {"getenv", lua_getenv},
                                {"write_error", lua_write_error},
                                {"limit_memory", lua_limit_memory},
                                {nullptr, nullptr}};
  add_functions(state, functions);
  lua_pushinteger(state, static_cast<int>(FrameKind::note));
  lua_setfield(state, -2, "NOTE");
}

}  // namespace mycojobs::lua
