#include <fcntl.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "executors/host_channel.h"
#include "executors/lua/luahost/job.h"
#include "executors/lua/luahost/luahost.h"
#include "text/utf8_cut.h"

namespace mycojobs::lua {
namespace {

// Functions of the Lua modules for the channel, the environment and the clock of the job.
int lua_send(lua_State* state) {
  const auto kind = static_cast<FrameKind>(luaL_checkinteger(state, 1));
  lua_pushboolean(state, host_job::send(kind, text_at(state, 2)) ? 1 : 0);
  return 1;
}

// Returns the reply as JSON; or nil and the error.
int lua_call_agent(lua_State* state) {
  const std::string_view call = text_at(state, 1);
  if (call.size() > kMaxCallBytes) {
    lua_pushnil(state);
    lua_pushfstring(state, "too_large");
    return 2;
  }
  auto reply = host_job::is_job_process()
                   ? call_agent(host_job::channel(), call)
                   : Result<std::string>(fail(Code::unavailable, "this is not the job's process"));
  if (!reply) {
    lua_pushnil(state);
    lua_pushlstring(state, reply.error().message.data(), reply.error().message.size());
    return 2;
  }
  lua_pushlstring(state, reply->data(), reply->size());
  return 1;
}

int lua_query_cancelled(lua_State* state) {
  lua_pushboolean(state, host_job::query_cancelled() ? 1 : 0);
  return 1;
}

// Returns true after the time has passed. Returns false, possibly earlier, if the script has called cancelled() and
// SIGTERM was received.
int lua_sleep(lua_State* state) {
  const double seconds = std::min(luaL_checknumber(state, 1), 1e9);
  timespec remaining{};
  remaining.tv_sec = static_cast<time_t>(seconds);
  remaining.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  while (!host_job::has_received_term() && ::clock_nanosleep(CLOCK_MONOTONIC, 0, &remaining, &remaining) == EINTR) {
  }
  lua_pushboolean(state, host_job::has_received_term() ? 0 : 1);
  return 1;
}

// Returns seconds of the monotonic clock.
int lua_monotonic(lua_State* state) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  lua_pushnumber(state, static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9);
  return 1;
}

int lua_exit(lua_State* state) { ::_exit(end_job(state, static_cast<int>(luaL_checkinteger(state, 1)))); }

int lua_setenv(lua_State* state) {
  ::setenv(luaL_checkstring(state, 1), luaL_checkstring(state, 2), 1);  // NOLINT(concurrency-mt-unsafe)
  return 0;
}

// Warm scripts only. Argument: a table of texts.
int lua_renew_environment(lua_State* state) {
  std::map<std::string, std::string> variables;
  luaL_checktype(state, 1, LUA_TTABLE);
  for (lua_pushnil(state); lua_next(state, 1) != 0; lua_pop(state, 1)) {
    lua_pushvalue(state, -2);  // text_at() would convert a number in the table itself
    variables.emplace(text_at(state, -1), text_at(state, -2));
    lua_pop(state, 1);
  }
  host_job::replace_environment(variables);
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

// Limits Lua's heap to less than the job's memory, which also contains the stack, data of libraries and file buffers.
int lua_limit_memory(lua_State* state) {
  constexpr std::size_t kReservedBytes = 12U << 20;
  const auto bytes = static_cast<std::size_t>(std::max<lua_Integer>(luaL_checkinteger(state, 1), 0));
  limit_memory(bytes > 2 * kReservedBytes ? bytes - kReservedBytes : bytes / 2);
  return 0;
}

}  // namespace

void begin_job(JobChannel channel) {
  host_job::start_job(channel);
  for (const int fd : {channel.to_agent, channel.from_agent})
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // programs started by the script must not use the channel
  ::signal(SIGPIPE, SIG_IGN);
}

void send_last_frames(const std::string& artifacts, std::uint64_t max_bytes) {
  if (!host_job::is_job_process()) return;
  send_artifacts(host_job::channel().to_agent, artifacts, max_bytes);
  host_job::send(FrameKind::done, "");
}

void write_bytes(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void add_job_functions(lua_State* state) {
  const luaL_Reg functions[] = {{"send", lua_send},
                                {"ask", lua_call_agent},
                                {"cancelled", lua_query_cancelled},
                                {"sleep", lua_sleep},
                                {"monotonic", lua_monotonic},
                                {"exit", lua_exit},
                                {"setenv", lua_setenv},
                                {"renew_environment", lua_renew_environment},
                                {"getenv", lua_getenv},
                                {"write_error", lua_write_error},
                                {"limit_memory", lua_limit_memory},
                                {nullptr, nullptr}};
  add_functions(state, functions);
  lua_pushinteger(state, static_cast<int>(FrameKind::note));
  lua_setfield(state, -2, "NOTE");
}

}  // namespace mycojobs::lua

namespace mycojobs {
namespace lua {
namespace {

constexpr int kMaxTracebackFrames = 24;  // maximum number of frames at each end of the stack in a traceback

// State of the script: its text for tracebacks, its folder, and its error.
struct ScriptState {
  std::string name;  // Lua's chunk name, with '=' in front
  std::string text, folder;
  std::string trace;
  int line = 0;
  std::uint64_t max_artifact_bytes = 0;
  bool has_ended = false;
  bool is_warm = false, can_run_again = false;
};
ScriptState script;

std::string get_script_line(int number) {
  std::size_t begin = 0;
  for (int i = 1; i < number && begin != std::string::npos; ++i) {
    begin = script.text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (begin == std::string::npos) return "";
  const std::string_view line = std::string_view(script.text).substr(begin, script.text.find('\n', begin) - begin);
  std::string text(complete_characters(line.substr(0, 200)));
  text.erase(0, text.find_first_not_of(" \t"));
  return text;
}

void add_frame(const lua_Debug& frame) {
  if (frame.currentline <= 0 || script.name != frame.source) return;
  if (script.line == 0) script.line = frame.currentline;
  script.trace += "  " + script.name.substr(1) + ":" + std::to_string(frame.currentline) + ": in ";
  if (std::strcmp(frame.what, "main") == 0) {
    script.trace += "the script";
  } else {
    script.trace +=
        frame.name != nullptr ? std::string(frame.name) : "a function of line " + std::to_string(frame.linedefined);
  }
  script.trace += "\n    " + get_script_line(frame.currentline) + "\n";
}

// Message handler of lua_pcall: records the script's own frames, innermost first, while the stack still exists.
int read_stack(lua_State* state) {
  script.trace.clear();
  script.line = 0;
  int depth = 0;
  lua_Debug frame{};
  for (int step = 1 << 20; step > 0; step /= 2) {  // finds the depth without walking each frame
    if (lua_getstack(state, depth + step, &frame) != 0) depth += step;
  }
  for (int level = 0; level <= depth && lua_getstack(state, level, &frame) != 0; ++level) {
    if (level == kMaxTracebackFrames && depth > 2 * kMaxTracebackFrames) {
      script.trace += "  [" + std::to_string(depth - 2 * kMaxTracebackFrames) + " calls omitted]\n";
      level = depth - kMaxTracebackFrames;
    } else if (lua_getinfo(state, "Sln", &frame) != 0) {
      add_frame(frame);
    }
  }
  if (!script.trace.empty()) script.trace.insert(0, "traceback, the innermost call first:\n");
  return 1;  // returns the error unchanged
}

// Calls a function of job.lua. Returns false after an error, which is on the stack.
bool call(lua_State* state, const char* name, int arguments, int results) {
  lua_getfield(state, LUA_REGISTRYINDEX, name);
  lua_insert(state, -arguments - 1);
  return lua_pcall(state, arguments, results, 0) == LUA_OK;
}

std::string get_text(lua_State* state, int index) {
  std::size_t size = 0;
  const char* text = lua_tolstring(state, index, &size);
  return text == nullptr ? std::string() : std::string(text, size);
}

void report_simple_error(const char* type, const char* message) {
  const std::string text = std::string(type) + ": " + message + "\n";
  write_error(text);
  host_job::send(FrameKind::error, std::string(R"({"type":")") + type + R"(","message":")" + message +
                                       R"(","traceback":"","line":)" + std::to_string(script.line) + "}");
}

// Reports the error on top of the stack. status: from lua_pcall.
void report_failure(lua_State* state, int status) {
  limit_memory(0);  // reporting must not fail for lack of memory; the sandbox's limit still applies
  if (status == LUA_ERRMEM) {
    lua_settop(state, 0);
    lua_gc(state, LUA_GCCOLLECT);
    if (is_recursion_error())
      return report_simple_error("Error", "stack overflow: a recursion used all memory of the job");
    return report_simple_error("MemoryError", "not enough memory: the policy's field memory is the limit");
  }
  lua_gc(state, LUA_GCSTOP);  // no finalizer runs before close_state()
  if (status == LUA_ERRERR) return report_simple_error("Error", "error in error handling (stack overflow)");
  lua_pushlstring(state, script.trace.data(), script.trace.size());
  lua_pushinteger(state, script.line);
  if (status == LUA_ERRSYNTAX) lua_pushliteral(state, "SyntaxError");
  if (status != LUA_ERRSYNTAX) lua_pushnil(state);
  if (!call(state, kDescribe, 4, 2)) return report_simple_error("Error", "an error that cannot be shown");
  write_error(get_text(state, -1));
  host_job::send(FrameKind::error, get_text(state, -2));
}

void report_invalid_result(lua_State* state, const std::string& message) {
  lua_pushlstring(state, message.data(), message.size());
  lua_pushliteral(state, "");
  lua_pushinteger(state, 0);
  lua_pushliteral(state, "ResultError");
  if (!call(state, kDescribe, 4, 2)) return report_simple_error("ResultError", "the result cannot be returned");
  write_error("ResultError: " + message + "\n");
  host_job::send(FrameKind::error, get_text(state, -2));
}

// Returns false if the result is invalid, which has been reported. arguments: number of values on top of the stack that
// main of a warm script returned.
bool encode_result(lua_State* state, std::string& result, int arguments = 0) {
  if (!call(state, kEncodeResult, arguments, 2)) {
    lua_settop(state, 0);
    limit_memory(0);
    report_simple_error("MemoryError", "there is not enough memory to return the result");
    return false;
  }
  limit_memory(0);
  if (lua_isnil(state, -2)) {
    report_invalid_result(state, get_text(state, -1));
    return false;
  }
  result = get_text(state, -2);
  return true;
}

void push_request(lua_State* state, const HostRequest& request) {
  for (const std::string* part : {&request.facts, &request.environment, &request.inputs})
    lua_pushlstring(state, part->data(), part->size());
}

// Runs the script. Returns the exit code.
int run_script(lua_State* state, const HostRequest& request) {
  push_request(state, request);
  lua_pushlstring(state, script.folder.data(), script.folder.size());
  if (!call(state, kPrepare, 4, 3)) {
    report_failure(state, LUA_ERRRUN);
    return 1;
  }
  script.name = get_text(state, -3);
  script.max_artifact_bytes = static_cast<std::uint64_t>(lua_tointeger(state, -2));
  script.is_warm = lua_toboolean(state, -1) != 0;
  lua_settop(state, 0);
  lua_pushcfunction(state, read_stack);
  int status = luaL_loadbufferx(state, script.text.data(), script.text.size(), script.name.c_str(), "t");
  if (status == LUA_OK) status = lua_pcall(state, 0, 0, 1);
  if (status == LUA_OK) return 0;
  report_failure(state, status);
  return 1;
}

// Flushes the output and sends the last frames of a run.
void send_last_message(int& exit_code, const std::string& result) {
  const bool is_flushed = std::fflush(nullptr) == 0;
  if (!is_flushed && exit_code == 0) {
    exit_code = 120;
    report_simple_error("OSError", "stdout could not be written to the end");
  }
  if (exit_code == 0) host_job::send(FrameKind::result, result);
  send_last_frames(script.folder + "/artifacts", script.max_artifact_bytes);
}

// Runs main(job) of a warm script once, in the Lua state of the earlier runs.
int call_main(lua_State* state) {
  script.can_run_again = false;
  lua_settop(state, 0);
  lua_pushcfunction(state, read_stack);
  int exit_code = 1;
  std::string result;
  if (!call(state, kBeginRun, 0, 2)) {
    report_failure(state, LUA_ERRRUN);
  } else if (lua_isnil(state, -2)) {
    report_simple_error("WarmError",
                        "the policy has warm, and the script has no function main(job): define it, or remove warm from "
                        "the policy");
    return end_job(state, 1);
  } else if (const int status = lua_pcall(state, 1, 1, 1); status != LUA_OK) {
    report_failure(state, status);
  } else if (encode_result(state, result, 1)) {
    exit_code = 0;
  }
  lua_settop(state, 0);
  lua_gc(state, LUA_GCRESTART);
  if (!host_job::is_job_process()) return end_job(state, exit_code);
  send_last_message(exit_code, result);
  script.can_run_again = true;
  return exit_code;
}

int run_again(lua_State* state, JobChannel channel, const HostRequest& request) {
  script.can_run_again = false;
  host_job::start_next_job(channel);
  if (::chdir(script.folder.c_str()) != 0) return 1;
  lua_settop(state, 0);
  push_request(state, request);
  if (call(state, kRenew, 3, 0)) return call_main(state);
  report_failure(state, LUA_ERRRUN);
  return end_job(state, 1);
}

}  // namespace

// Closes the state first, so that finalizers run and files are written before the artifacts are sent.
int end_job(lua_State* state, int exit_code) {
  if (std::exchange(script.has_ended, true)) return exit_code;  // a finalizer called os.exit
  lua_gc(state, LUA_GCSTOP);
  std::string result;
  if (exit_code == 0 && !encode_result(state, result)) exit_code = 1;
  close_state();
  send_last_message(exit_code, result);
  return exit_code;
}

}  // namespace lua

Result<void> warm_lua() {
  ::clearenv();
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  return lua::open_state();
}

std::string lua_version() {
  return std::string(LUA_VERSION_MAJOR) + "." + LUA_VERSION_MINOR + "." + LUA_VERSION_RELEASE;
}

int run_lua_job(JobChannel channel, const std::string& folder) {
  auto request = read_request(channel.from_agent, folder);
  if (!request) return exit_before_start(channel.to_agent, request.error());
  if (request->has_replaced_stdin) {
    ::__fpurge(stdin);  // input of the previous run
    std::clearerr(stdin);
  }
  if (lua::script.is_warm) return lua::run_again(lua::state(), channel, *request);
  lua::begin_job(channel);
  lua::script.folder = folder;
  lua::script.text = without_byte_order_mark(request->script);              // as lua5.4 reads a file
  if (lua::script.text.starts_with('#')) lua::script.text.insert(0, "--");  // a #! line becomes a comment, as in lua5.4
  lua_State* const state = lua::state();
  const int exit_code = lua::run_script(state, *request);
  return lua::script.is_warm && exit_code == 0 ? lua::call_main(state) : lua::end_job(state, exit_code);
}

bool can_run_lua_job_again() { return lua::script.is_warm && lua::script.can_run_again; }

}  // namespace mycojobs
