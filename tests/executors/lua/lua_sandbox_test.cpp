// Hostile Lua scripts that take the whole path of a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "lua_driver.h"
#include "security/profiles.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// SY16: running programs, loading machine code and corrupting the interpreter are refused, under every name.
TEST(LuaConfined, ProgramsMachineCodeAndBytecodeAreDenied) {
  const LuaRunResult result = run_lua_confined(R"(
local function refused(name, ...)
  local got = table.pack(pcall(...))
  local fine, value, problem = got[1], got[2], got[3]
  print(name, fine and value and 'GOT THROUGH' or 'refused', fine and problem or value)
end
refused('execute', os.execute, 'true')
refused('popen', io.popen, 'ls')
refused('run', run_command, 'ls')
refused('loadlib', function() return package.loadlib('/lib/x86_64-linux-gnu/libc.so.6', 'system') end)
package.cpath = '/usr/lib/x86_64-linux-gnu/?.so'
refused('cpath', require, 'libc')
local code = string.dump(function() return 1 end)
refused('load', load, code)
refused('load b', load, code, 'x', 'b')
refused('load bt', load, code, 'x', 'bt')
local once = code
refused('load by pieces', load, function() local piece = once once = nil return piece end)
file_write('/tmp/code.luac', code)
refused('loadfile', loadfile, '/tmp/code.luac')
refused('loadfile b', loadfile, '/tmp/code.luac', 'b')
refused('dofile', dofile, '/tmp/code.luac')
package.path = '/tmp/?.luac'
refused('require', require, 'code')
refused('registry', function() return debug.getregistry() end)
refused('upvalues', function() return debug.getupvalue(print, 1) end)
refused('hooks', function() return debug.sethook(print, 'c') or true end)
refused('functions', function() return debug.getinfo(1, 'f').func end)
refused('memory', io.open, '/proc/self/mem', 'r+b')
refused('channel', io.open, '/proc/self/fd/3', 'r+b')
)");
  EXPECT_EQ(result.end.error, "") << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("GOT THROUGH")));
  EXPECT_THAT(result.out, HasSubstr("execute\trefused\tos.execute: running programs is not granted"));
  EXPECT_THAT(result.out, HasSubstr("load\trefused\tattempt to load a binary chunk"));
}

// The positive twins: with the grant, programs run, and source text loads.
TEST(LuaConfined, GrantAllowsPrograms) {
  Policy policy = profile("sal");
  policy.exec = true;
  const LuaRunResult result = run_lua_confined(LuaJob{
      .script = "print(os.execute('true'), io.popen('echo popen'):read('l'), run_silent('id -u').code)\n"
                "file_write('/tmp/m.lua', 'return {a = 1}')\npackage.path = '/tmp/?.lua'\n"
                "print(require('m').a, load('return 2')(), dofile('/tmp/m.lua').a, loadfile('/tmp/m.lua', 't') ~= nil)",
      .policy = policy});
  EXPECT_EQ(result.out, "true\tpopen\t0\n1\t2\t1\ttrue\n") << result.err;
}

TEST(LuaConfined, SystemIsReadOnlyAndHostIsHidden) {
  const LuaRunResult result = run_lua_confined(R"(
for _, path in ipairs{'/etc/x', '/usr/x', '/x', '/proc/x', '/dev/x'} do
  assert(not pcall(file_write, path, 'x'), path)
  assert(not io.open(path, 'w'), path)
end
for _, path in ipairs{'/etc/shadow', '/root', '/proc/1/environ', '/run', '/sys/kernel'} do
  assert(not pcall(file_read, path), path)
  assert(not io.open(path .. '/x'), path)
end
assert(not pcall(file_read, '/proc/self/environ'))
assert(#process_list() == 1)
print(table.concat(find_files('/job', '*')), table.concat(find_files('/tmp', '*')))
)");
  EXPECT_EQ(result.out, "\t\n") << result.err;
  EXPECT_EQ(result.end.error, "");
}

struct SandboxEndRow {
  const char* name;
  const char* script;
  RunStatus status;
  const char* error;  // part of the error
};
void PrintTo(const SandboxEndRow& row, std::ostream* out) { *out << row.name; }

class LuaConfinedEnd : public ::testing::TestWithParam<SandboxEndRow> {};

TEST_P(LuaConfinedEnd, IsReported) {
  const SandboxEndRow& row = GetParam();
  const LuaRunResult result = run_lua_confined(LuaJob{.script = row.script, .policy = profile("sal"), .wall_ms = 2000});
  EXPECT_EQ(to_string(result.outcome.status), to_string(row.status)) << result.outcome.reason << "\n" << result.err;
  EXPECT_THAT(result.end.error, HasSubstr(row.error));
}

INSTANTIATE_TEST_SUITE_P(
    Ends, LuaConfinedEnd,
    ::testing::Values(
        SandboxEndRow{"endless loop", "while true do end", RunStatus::timeout_wall, "2000 ms"},
        SandboxEndRow{"endless loop that catches", "while true do pcall(function() while true do end end) end",
                      RunStatus::timeout_wall, ""},
        SandboxEndRow{"endless finalizer", "setmetatable({}, {__gc = function() while true do end end})",
                      RunStatus::timeout_wall, ""},
        SandboxEndRow{"sleep", "mycojobs.sleep(60)", RunStatus::timeout_wall, ""},
        SandboxEndRow{"pattern", "string.find(string.rep('a', 40), string.rep('a?', 40) .. string.rep('a', 40) .. 'b')",
                      RunStatus::timeout_wall, ""},
        SandboxEndRow{"heap", "local t = {}\nfor i = 1, math.huge do t[i] = {} end", RunStatus::exit,
                      "MemoryError: not enough memory"},
        SandboxEndRow{"one text", "string.rep('x', 60 << 20)", RunStatus::exit, "MemoryError: not enough memory"},
        SandboxEndRow{"heap without a collector", "collectgarbage('stop')\nlocal t = {}\nwhile true do t = {t} end",
                      RunStatus::exit, "MemoryError"},
        SandboxEndRow{"recursion", "local function f() f() end\nf()", RunStatus::exit, "stack overflow"},
        SandboxEndRow{"recursion in a thread", "coroutine.wrap(function() local function f() f() end f() end)()",
                      RunStatus::exit, "stack overflow"},
        SandboxEndRow{"threads in threads", "local function f() coroutine.wrap(f)() end\nf()", RunStatus::exit,
                      "C stack overflow"},
        SandboxEndRow{"own pid", "for _, p in ipairs(process_list()) do kill(p.name) end\nerror('there still')",
                      RunStatus::exit, "there still"},
        SandboxEndRow{"giant result", "result.x = ('v'):rep(20 << 20)", RunStatus::ok,
                      "over the limit of 1048576 bytes"},
        SandboxEndRow{"giant tree as a result", "local t = {}\nfor i = 1, 400000 do t[i] = {i} end\nresult.x = t",
                      RunStatus::exit, "MemoryError: there is not enough memory to return"},
        SandboxEndRow{"full disk",
                      "file_write('/tmp/x', 'x')\nlocal f = io.open('/tmp/x', 'w')\nfor i = 1, 4000 do "
                      "assert(f:write(('x'):rep(1 << 20))) end",
                      RunStatus::oom, "memory limit"},
        SandboxEndRow{"files", "local t = {}\nwhile true do t[#t + 1] = assert(io.open('/dev/null')) end",
                      RunStatus::exit, "Too many open files"}));

// Only the granted folder is accessible.
TEST(LuaConfined, OnlyTheGrantedFolderIsOpen) {
  char folder[] = "/var/tmp/mycojobs-lua-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::filesystem::permissions(folder, std::filesystem::perms(0755));
  std::ofstream(std::string(folder) + "/a.txt") << "granted";
  std::filesystem::create_symlink("/etc/shadow", std::string(folder) + "/link");
  Policy policy = profile("sal");
  policy.fs_read = {folder};
  const std::string name = folder;
  const LuaRunResult result =
      run_lua_confined(LuaJob{.script = "print(file_read('" + name + "/a.txt'))\nprint(select(2, pcall(file_write, '" +
                                        name + "/b.txt', 'x')))\nprint(pcall(file_read, '" + name +
                                        "/link'))\n"
                                        "print(select(2, pcall(file_read, '/var/other/x')))",
                              .policy = policy});
  std::filesystem::remove_all(folder);
  EXPECT_THAT(result.out, HasSubstr("granted\n"));
  EXPECT_THAT(result.out, HasSubstr("to allow: policy: fs.write = [\"" + name + "\"]"));
  EXPECT_THAT(result.out, HasSubstr("false\tfile_read: " + name + "/link"));
  EXPECT_THAT(result.out, HasSubstr("to allow: policy: fs.read = [\"/var/other\"]"));
}

// Two jobs of one zygote: the second sees no state of the first.
TEST(LuaConfined, NextJobFindsNothing) {
  EXPECT_EQ(run_lua_confined("string.leak = 1\nleak = 2\nmycojobs.leak = 3\nfile_write('/tmp/leak', 'x')\n"
                             "getmetatable('').__index = {}\nos.setlocale('C')\nchdir('/tmp')")
                .end.error,
            "");
  const LuaRunResult next = run_lua_confined(
      "print(string.leak, leak, mycojobs.leak, exist('/tmp/leak'), ('x'):upper(), os.cwd(), next(result))");
  EXPECT_EQ(next.out, "nil\tnil\tnil\tfalse\tX\t/job\tnil\n") << next.err;
}

}  // namespace
}  // namespace mycojobs::test
