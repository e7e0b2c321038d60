// Functions of the System Abstraction Layer that the manual's examples do not cover.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "lua_driver.h"
#include "lua_servers.h"
#include "security/profiles.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;

LuaRunResult run_with_grants(const std::string& script, bool exec, Network network = Network::none) {
  Policy policy = profile("sal");
  policy.exec = exec;
  policy.network = network;
  return run_lua(LuaJob{.script = script, .policy = policy});
}

TEST(Sal, FilesAndFoldersWork) {
  // Without the sandbox, the working directory is the folder of the job.
  const LuaRunResult result = run_with_grants(R"(
mkdir('a/b/c')
mkdir('a/b/c')
file_write('a/b/one.txt', '1')
file_write('a/b/c/two.txt', '2')
assert(copy('a/b', 'copy') and file_read('copy/c/two.txt') == '2')
copy('a/b/one.txt', 'copy/c')
assert(file_read('copy/c/one.txt') == '1')
mv('copy/c/one.txt', 'copy')
copy('a/b/one.txt', 'new/place/three.txt')
assert(file_read('new/place/three.txt') == '1')
assert(#find_files('a', '*') == 2 and #find_dirs('.', 'c') == 2 and #find_files('.', 'copy/*.txt') == 2)
assert(find_files('a', '?ne.txt')[1] == 'a/b/one.txt' and #find_files('a', 'one[.]txt') == 0)
os.execute = nil
assert(os.rename('new/place/three.txt', 'x') and exist('x') and os.remove('x') and not exist('x'))
delete('a')
assert(not exist('a') and delete('a'):find('nothing'))
chdir('copy')
assert(file_read('one.txt') == '1' and os.cwd():find('copy$'))
for _, call in ipairs{function() find_file('.', 'none') end, function() copy('none', 'x') end, function() mv('none', 'x') end,
                      function() chdir('none') end, function() file_size('none') end} do
  local fine, err = pcall(call)
  assert(not fine and err.code == 'not_found', tostring(err))
end
assert(select(2, pcall(copy, '.', './c/inside')).code == 'invalid')
assert(select(2, pcall(mkdir, 'one.txt/x')).code == 'conflict')
assert(select(2, pcall(file_read, '')).code == 'invalid' and select(2, pcall(file_read, 'a\0b')).code == 'invalid')
assert(select(2, pcall(file_write, 'x')).code == 'invalid')
)",
                                              false);
  EXPECT_EQ(result.end.error, "") << result.err;
}

// Regression test: the target was emptied before the source was read.
TEST(Sal, FileCopiedOntoItselfIsUnchanged) {
  const LuaRunResult result = run_with_grants(R"(
file_write('d/a', 'kept')
run_silent('ln -s a d/link; ln -s d e')
for _, call in ipairs{{'d/a', 'd/a'}, {'d/a', 'd'}, {'d/link', 'd/a'}, {'d/a', 'd/link'}, {'d', 'e'}} do
  local fine, err = pcall(copy, call[1], call[2])
  assert(not fine and err.code == 'conflict' and file_read('d/a') == 'kept', tostring(err))
end
file_write('longer', 'much longer')
copy('d/a', 'longer')
assert(file_read('longer') == 'kept')
)",
                                              true);
  EXPECT_EQ(result.end.error, "") << result.err;
}

// delete() must not follow a link out of the folder.
TEST(Sal, LinksAreDeletedNotFollowed) {
  const LuaRunResult result = run_with_grants(R"(
mkdir('kept')
file_write('kept/a', 'x')
run_silent('ln -s ../kept gone-link; mkdir gone; ln -s ../kept gone/link; ln -s nothing gone/broken')
delete('gone')
delete('gone-link')
assert(exist('kept/a') and not exist('gone') and not exist('gone-link'))
run_silent('ln -s kept l; mkdir d; ln -s ../kept d/l')
copy('d', 'e')
assert(os.find_files('e', '*')[1] == nil and exist('e/l'))
)",
                                              true);
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(Sal, ProgramsRsyncAndArchivesWork) {
  const HttpServer web([](const std::string& head, const std::string&) {
    return head.starts_with("GET /none") ? format_http_response("404 Not Found", "")
                                         : format_http_response("200 OK", "not an archive");
  });
  const std::string at = "http://127.0.0.1:" + std::to_string(web.port());
  const LuaRunResult result = run_with_grants(R"(
local at = ')" + at + R"('
mkdir('from/deep')
file_write('from/deep/a', '1')
file_write('to/old', '2')
rsync('from/', 'to')
assert(file_read('to/deep/a') == '1' and not exist('to/old'))
local result = run('printf "%s" "$PWD"; echo more >&2'):folder('/usr'):silent():execute()
assert(result.stdout == '/usr' and result.stderr == 'more\n')
assert(run('kill -9 $$'):ignore_error():execute().code == 137)
assert(#run('head -c 5000000 /dev/zero'):silent():execute().stdout == 4 << 20)
assert(#run{'cat'}:input(('x'):rep(1 << 20)):silent():execute().stdout == 1 << 20)
assert(run('exit 1'):die(false):execute().code == 1 and run_with_options('exit 1', {die = false}).code == 1)
local fine, err = pcall(run_command, 'echo a\nfalse\necho b')
assert(not fine and err.stdout == 'a\n' and err.exit_code == 1)
assert(select(2, pcall(function() run{'no-such-program'}:execute() end)).code == 'not_found')
assert(select(2, pcall(run, '  ')).code == 'invalid' and select(2, pcall(run, {})).code == 'invalid')
assert(select(2, pcall(run_with_options, 'ls', {dye = 1})).code == 'invalid')
assert(cmd_ensure_exists('sh, ls') and not pcall(cmd_ensure_exists, 'sh,nope'))
assert(download(at .. '/plain.txt?x=1', 'got') == 'got/plain.txt' and file_read('got/plain.txt') == 'not an archive')
fine, err = pcall(download, at .. '/a.tar.gz', 'got')
assert(not fine and err.code == 'failed' and tostring(err):find('unpacking'), tostring(err))
fine, err = pcall(download_file, at .. '/none', 'got/none')
assert(tostring(err):find('status 404') and not exist('got/none') and not exist('got/none.part'))
)",
                                              true, Network::loopback);
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(Sal, GitNeedsTheServerOnTheList) {
  const LuaRunResult result = run_with_grants(R"(
for url, place in pairs{['https://github.com/a/b.git'] = 'github.com:443', ['http://user@h1:8080/a/b'] = 'h1:8080'} do
  local fine, err = pcall(git_clone, url)
  assert(not fine and err.code == 'denied' and tostring(err):find('net = ["' .. place .. '"]', 1, true), tostring(err))
end
for _, url in ipairs{'git@github.com:a/b', 'ssh://h/a/b', '--upload-pack=x', 'https://h/', 'https://h/../..', '/tmp/..', 'ext::sh -c ls'} do
  local fine, err = pcall(git_clone, url)
  assert(not fine and err.code == 'invalid', url .. ' ' .. tostring(err))
end
)",
                                              true);
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(Sal, TextFunctionsWork) {
  const LuaRunResult result = run_with_grants(R"(
assert(dedent('\ta\n\t\tb\n') == 'a\n\tb\n' and dedent('') == '' and dedent('a\n  b') == 'a\n  b' and dedent('  \n  a') == '\na')
assert(prefix('', '>') == '>' and name_fix('Ünïcode Näme') == 'ncode_nme' and path_fix('/a b/') == '/a b/')
local function replace(pattern, replacement, text, regex)
  return text_replacer_new():pattern(pattern):replacement(replacement):regex(regex):build():replace(text)
end
assert(replace('a.c', 'x', 'abc a.c', false) == 'abc x' and replace('a.c', 'x', 'abc a.c', true) == 'x x')
assert(replace('(\\w+)@(\\w+)', '$2 at ${1}$$', 'me@home', true) == 'home at me$' and replace('x*', '-', 'axb', true) == '-a--b-')
assert(replace('b*', '-', 'é€', true) == '-é-€-' and replace('a', '\0', 'bab', true) == 'b\0b')
assert(select(2, pcall(replace, 'a\0b', 'x', 'a', true)).code == 'invalid')
assert(replace('^a', 'x', 'aaa', true) == 'xaa' and replace('%', '%%', '50%', false) == '50%%')
assert(select(2, pcall(replace, '(', 'x', 'a', true)).code == 'invalid' and select(2, pcall(replace, '', 'x', 'a')).code == 'invalid')
file_write('t.txt', 'old text')
local replacer = text_replacer_new():pattern('old'):replacement('new'):build()
assert(replacer:replace_file('t.txt') == 'new text' and replacer:replace_file_in_place('t.txt') and file_read('t.txt') == 'new text')
local function render(source, values) return text.template(source):add_vars(values or {}):render() end
assert(render('{{ a.b.0 }}{{ a.n }}', {a = {b = {'x'}, n = 2}}) == 'x2' and render('{{ x | default(value="d") }}') == 'd')
assert(render('{% if a and not b or c > 2 %}1{% elif d == "x" %}2{% else %}3{% endif %}', {d = 'x', c = 1}) == '2')
assert(render('{% if true or false and false %}1{% endif %}{% if false and true or true %}2{% endif %}{% if not true or true %}3{% endif %}') == '123')
assert(render('{% for x in l %}{% if loop.first %}[{% endif %}{{ x }}{% if loop.last %}]{% endif %}{% else %}none{% endfor %}', {l = {1, 2}}) == '[12]')
assert(render('{% for x in l %}x{% else %}none{% endfor %}{# no #}!', {l = {}}) == 'none!')
assert(render('{{ "a b" | upper | replace(from=" ", to="_") }} {{ l | join(sep="+") }} {{ l | length }} {{ l | json_encode }}', {l = {1, 2}}) == 'A_B 1+2 2 [1,2]')
for source, problem in pairs{['{{ a'] = '{{ without }}', ['{% if x %}'] = 'not closed', ['\n{{ nope }}'] = 'line 2: unknown variable nope',
    ['{{ 1 | nope }}'] = 'unknown filter nope', ['{% else %}'] = 'not valid here', ['{{ a $ }}'] = 'is not valid', ['{{ 1 2 }}'] = 'unexpected 2',
    ['{% for x %}{% endfor %}'] = 'write', ['{% if 1 < "a" %}{% endif %}'] = 'two numbers or two texts'} do
  local fine, err = pcall(render, source)
  assert(not fine and tostring(err):find(problem, 1, true), tostring(err))
end
)",
                                              false);
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(Sal, HttpAndTcpWork) {
  const HttpServer web([](const std::string& head, const std::string& body) {
    if (head.starts_with("GET /big")) return format_http_response("200 OK", std::string(9U << 20, 'x'));
    if (head.starts_with("GET /loop")) return format_http_response("302 Found", "", "Location: /loop\r\n");
    if (head.starts_with("POST /form")) return format_http_response("303 See Other", "", "Location: /made\r\n");
    if (head.starts_with("POST /moved"))
      return format_http_response("307 Temporary Redirect", "", "Location: /kept\r\n");
    if (head.starts_with("GET /short")) return std::string("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort");
    if (head.starts_with("GET /odd")) return std::string("no answer at all");
    return format_http_response("200 OK", head.substr(0, head.find(' ')) + " " + body, "X-Seen: yes\r\n");
  });
  const LuaRunResult result = run_with_grants("local port = " + std::to_string(web.port()) + R"(
local at = 'http://127.0.0.1:' .. port
assert(net.http{url = at, method = 'put', body = 'b'}.body == 'PUT b' and http_post(at, 'x').headers['x-seen'] == 'yes')
assert(http_post(at .. '/form', 'x').body == 'GET ' and http_post(at .. '/moved', 'x').body == 'POST x')
assert(net.http{url = at, method = 'POST'}.body == 'POST ')
assert(http_get(at .. '/big', {file = 'big'}).body == '' and file_size('big') == 9 << 20)
local function code(...)
  local fine, err = pcall(...)
  return not fine and err.code
end
assert(code(http_get, at .. '/big') == 'unavailable' and code(http_get, at .. '/loop') == 'unavailable')
assert(code(http_get, at .. '/short') == 'unavailable' and code(http_get, at .. '/odd') == 'unavailable')
assert(code(http_get, 'file:///etc/passwd') == 'invalid' and code(http_get, at .. '/a b') == 'invalid' and code(http_get, 'http://') == 'invalid')
assert(code(http_get, at, {headers = {A = 'b\r\nC: d'}}) == 'invalid' and code(http_get, at, {hedders = {}}) == 'invalid')
assert(code(http_get, 'http://example.org/') == 'denied' and code(tcp_check, 'example.org', 80) == 'denied')
local fine, err = pcall(http_get, 'http://me:pw@127.0.0.1:1/')
assert(not fine and not tostring(err):find('pw', 1, true) and code(http_get, at, {file = 'big/x'}) == 'conflict')
assert(http_get(at, {timeout = math.huge}).success and net.connect('127.0.0.1', port, {timeout = 1e300}):close() == nil)
assert(tostring(select(2, pcall(sleep, 0/0))):find('nan is not a number from 0', 1, true) and code(http_get, at, {timeout = 0}) == 'invalid')
assert(code(net.connect, '127.0.0.1', 70000) == 'invalid' and code(net.connect, 'a b', 1) == 'invalid')
local c = net.connect('127.0.0.1', port)
c:send('GET / HTTP/1.0\r\n\r\n')
assert(c:receive(9) == 'HTTP/1.1 ' and c:read_line() == '200 OK' and #c:read_all() > 10 and c:receive() == nil and c:read_line() == nil)
c:close()
c:close()
assert(code(c.send, c, 'x') == 'invalid')
)",
                                              false, Network::loopback);
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(Sal, RedisRejectsAndReconnects) {
  const RedisServer server;
  const LuaRunResult result = run_with_grants("local url = 'redis://127.0.0.1:" + std::to_string(server.port()) + R"('
local r = redis.connect(url)
local function code(...)
  local fine, err = pcall(...)
  return not fine and err.code, tostring(err)
end
assert(r:set('n', 'text') == 'OK' and code(r.incr, r, 'n') == 'failed' and r:get('n') == 'text')
assert(r:set('bytes', '\0\r\n\xff') and r:get('bytes') == '\0\r\n\xff' and r:del('bytes') == 1 and r:exists('bytes') == 0)
r:close()
assert(r:ping() == 'PONG')
assert(code(redis.connect, 'http://x') == 'invalid' and code(function() redis.connect(url .. '/99'):ping() end) == 'failed')
assert(code(function() redis.connect('redis://user:pw@127.0.0.1:1'):ping() end) == 'unavailable')
assert(code(function() redis.connect('redis://10.0.0.1:6379'):ping() end) == 'denied')
local nested = r:command('EVAL', 'return {1, {2, {err = "odd"}}, false}', 0)
assert(nested[1] == 1 and nested[2][1] == 2 and nested[3] == nil and nested.n == 3)
)",
                                              false, Network::loopback);
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(Sal, DefaultRedisIsSetByTheEnvironment) {
  const RedisServer server;
  Policy policy = profile("sal");
  policy.network = Network::loopback;
  const LuaRunResult result =
      run_lua(LuaJob{.script = "redis_set('k', 'v')\nprint(redis_get('k'), "
                               "redis_ping())\nredis_reset()\nprint(redis_hset('h', 'a', 1), redis_hget('h', 'a'))",
                     .policy = policy,
                     .environment = {{"REDIS_URL", "redis://127.0.0.1:" + std::to_string(server.port()) + "/3"}}});
  EXPECT_EQ(result.out, "v\tPONG\n1\t1\n") << result.err;
}

TEST(Sal, MyceliumPollsAndDecodesReplies) {
  std::atomic<int> polls{0};
  const HttpServer daemon(
      [&polls, answer = make_mycelium_handler()](const std::string& head, const std::string& body) mutable {
        if (head.starts_with("GET /api/v1/messages")) ++polls;
        return answer(head, body);
      });
  const LuaRunResult result = run_with_grants("local api = 'http://127.0.0.1:" + std::to_string(daemon.port()) + R"('
assert(mycelium_receive_messages(api, 'none', 1) == nil)
local to = ('a'):rep(64)
assert(mycelium_send_message(api, to, 'echo', 'gr\u{fc}\u{df}\0', 7).payload == 'gr\u{fc}\u{df}\0')
local fine, err = pcall(mycelium_send_message, api, to, 'silence', 'x', 7)
assert(not fine and err.code == 'unavailable', tostring(err))
print(err)
assert(mycelium_send_message(api, to, 'later', 'x').id)
assert(mycelium_receive_messages(api, 'later', 5).payload == 'x')
)",
                                              false, Network::loopback);
  EXPECT_EQ(result.end.error, "") << result.err;
  EXPECT_THAT(result.out, HasSubstr("no reply to the message with topic \"silence\" from aaaa"));
  EXPECT_THAT(result.out, HasSubstr("within 7 s"));
  EXPECT_GT(polls, 3) << "the daemon is asked again and again";
}

TEST(Sal, NamesAreGlobalsAndInTables) {
  const LuaRunResult result = run_with_grants(R"(
for name, value in pairs{exist = os, mkdir = os, copy = os, mv = os, delete = os, find_file = os, find_files = os, find_dir = os,
    find_dirs = os, file_read = os, file_write = os, file_write_append = os, file_size = os, chdir = os, rsync = os, which = os,
    download = os, platform_is_linux = os, run = process, process_list = process, process_get = process, kill = process,
    git_clone = git, dedent = text, prefix = text, name_fix = text, path_fix = text, tcp_check = net, http_check = net} do
  assert(type(_G[name]) == 'function' and value[name] == _G[name], name)
end
assert(redis_get and redis_set and text.replacer and text.template and mycelium.list_peers and git.tree and process.list)
assert(not osis)
)",
                                              false);
  EXPECT_EQ(result.end.error, "") << result.err;
}

}  // namespace
}  // namespace mycojobs::test
