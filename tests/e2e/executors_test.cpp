// All script types: the examples, and osis with several callers and killed agents.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "e2e/client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string source_file(const std::string& path) { return mj::test::source_folder() + "/" + path; }

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// An example of the README. It runs with an agent and a Redis of its own.
struct ExecutorExample {
  const char* file;
  const char* type;
  const char* key;    // key of the result
  const char* value;  // expected value
};

void PrintTo(const ExecutorExample& example, std::ostream* out) { *out << example.file; }

class Examples : public ::testing::TestWithParam<ExecutorExample> {};

json run_example(const TempDir& folder, const std::string& file, const std::string& type) {
  const ProcessResult command_result =
      run(folder, {program_path(), "run", file, "--type", type, "--json", "--state-dir", folder / "state", "--config",
                   source_file("examples/command/config.toml")});
  EXPECT_EQ(command_result.code, 0) << command_result.out << command_result.err;
  return json::parse(command_result.out.substr(std::min(command_result.out.find('{'), command_result.out.size())),
                     nullptr, false);
}

// Returns the text of a result value as it is stored in the record.
std::string get_text(const json& result, const std::string& key) {
  const auto found = result.find(key);
  if (found == result.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

TEST_P(Examples, RunsAsDocumented) {
  const ExecutorExample& example = GetParam();
  const TempDir folder;
  const json job = run_example(folder, source_file(std::string("examples/") + example.file), example.type);
  ASSERT_TRUE(job.is_object());
  EXPECT_EQ(get_text(job["result"], example.key), example.value) << job.dump(2);
}

INSTANTIATE_TEST_SUITE_P(
    All, Examples,
    ::testing::Values(ExecutorExample{"python/report.py", "python", "words", "36"},
                      ExecutorExample{"python/fetch_all.py", "python", "silent", R"(["site 3"])"},
                      ExecutorExample{"sal/tidy.lua", "sal", "texts", "2"},
                      ExecutorExample{"sal/letter.lua", "sal", "letters", "2"},
                      ExecutorExample{"osis/contacts.lua", "osis", "compilers", "grace@example.org"},
                      ExecutorExample{"osis/transfer.lua", "osis", "left", "100"},
                      ExecutorExample{"command/summary.js", "node", "figures", "[12,15,11,19,30,8,14]"},
                      ExecutorExample{"command/parse.pl", "perl", "status_200", "2"}),
    [](const auto& parameter) {
      std::string name = parameter.param.file;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

TEST(Examples, BashReadsTheSystem) {
  const TempDir folder;
  const json job = run_example(folder, source_file("examples/command/lines.sh"), "bash");
  EXPECT_TRUE(job["result"].contains("languages")) << job.dump(2);
  EXPECT_TRUE(job["artifacts"].contains("languages.txt")) << job.dump(2);
}

// node prints its version without the grants that its compiler needs, but its scripts crash without them.
TEST(ExecutorList, ReportsWhetherScriptsRunInItsSandbox) {
  const TempDir folder;
  const auto describe_node = [&](const std::string& config) {
    const ProcessResult command_result = run(
        folder, {program_path(), "executor", "list", "--json", "--config", config, "--state-dir", folder / "state"});
    for (const auto& row : json::parse(command_result.out, nullptr, false)) {
      if (row["name"] == "node") return (row["works"] == true ? "works " : "fails ") + row["about"].get<std::string>();
    }
    return "absent: " + command_result.out + command_result.err;
  };
  const std::string command = "[executors.node]\ncommand = [\"/usr/bin/node\", \"{script}\"]\nfile = \"script.js\"\n";
  EXPECT_THAT(
      describe_node(folder.write("bare.toml", command)),
      AllOf(HasSubstr("fails v"), HasSubstr("an empty script ends well on this host and fails in its sandbox: ")));
  EXPECT_THAT(describe_node(source_file("examples/command/config.toml")), HasSubstr("works v"));
}

TEST(Examples, NativeProgramsAreAddedAndRun) {
  for (const auto& [file, arguments, key, value] :
       {std::tuple{"primes", "100000", "primes", "9592"}, {"checksum", "a\nb", "a", "e40c292c"}}) {
    const TempDir folder;
    const std::string program_file = folder / "built";
    ASSERT_EQ(run(folder, {"/usr/bin/cc", "-O1", "-o", program_file,
                           source_file(std::string("examples/native/") + file + ".c")})
                  .code,
              0);
    const ProcessResult add_result =
        run(folder, {program_path(), "program", "add", program_file, "--state-dir", folder / "state"});
    ASSERT_EQ(add_result.code, 0) << add_result.err;
    const json job = run_example(folder, folder.write("script", add_result.out + arguments), "native");
    EXPECT_EQ(get_text(job["result"], key), value) << job.dump(2);
  }
}

TEST(Manual, OsisExampleRunsOnTheRealStore) {
  const std::string page = read_file(source_file("docs/executors/osis.md"));
  const std::size_t code_begin = page.find("```lua\n", page.find("## In Lua"));
  const std::size_t code_end = page.find("```", code_begin + 7);
  ASSERT_NE(code_end, std::string::npos);
  const TempDir folder;
  run_example(folder, folder.write("example.lua", page.substr(code_begin + 7, code_end - code_begin - 7)), "osis");
}

class Osis : public Operator {
 protected:
  ProcessResult run_as_caller(int caller, const std::string& script) {
    const std::string file = folder_.write("script.lua", script);
    return run(folder_, {program_path(), "run", file, "--type", "osis", "--caller", std::to_string(caller), "--redis",
                         redis_.url()});
  }
  ProcessResult run_context_command(std::vector<std::string> words) {
    words.insert(words.begin(), {program_path(), "context"});
    words.insert(words.end(), {"--redis", redis_.url()});
    return run(folder_, words);
  }
  const std::string kind_ = "local things = osis.kind('things', {index = {'n'}})\n";
};

TEST_F(Osis, PermissionsAreThoseOfTheCaller) {
  const Process agent = start_agent(folder_, redis_, 1);
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  const std::string write = kind_ + "things:put{id = 'one', n = 1}";
  const std::string read = kind_ + "result.n = things:get('one').n";
  const ProcessResult caller_without_role = run_as_caller(12, write);
  EXPECT_NE(caller_without_role.code, 0);
  EXPECT_THAT(caller_without_role.err, HasSubstr("context grant 1 --admin 12"));
  ASSERT_EQ(run_context_command({"grant", "1", "--admin", "12", "--reader", "13"}).code, 0);
  EXPECT_EQ(run_as_caller(12, write).code, 0);
  const ProcessResult reader_result = run_as_caller(13, read);
  EXPECT_EQ(reader_result.code, 0) << reader_result.err;
  EXPECT_THAT(reader_result.out + reader_result.err, HasSubstr("n = 1"));
  EXPECT_THAT(run_as_caller(13, "local things = osis.kind('things')\nthings:put{id = 'two', n = 2}").err,
              HasSubstr("actor 13 may not administer objects in context 1"));
  EXPECT_THAT(run_as_caller(14, read).err, HasSubstr("actor 14 may not read objects in context 1"));
}

// A script updates two counters together. Agents are killed at random moments, and other agents continue its jobs.
TEST_F(Osis, KilledAgentLeavesNothingHalfWritten) {
  ASSERT_EQ(run_context_command({"grant", "1", "--admin", "12"}).code, 0);
  std::string script = kind_ + R"(
local function pair()
  return things:get('a') or {id = 'a', n = 0}, things:get('b') or {id = 'b', n = 0}
end
for _ = 1, 200 do
  local a, b = pair()
  if a.n ~= b.n then error('half written: ' .. a.n .. ' and ' .. b.n, 0) end
  a.n, b.n = a.n + 1, b.n + 1
  osis.transaction(function(t) t:put(things, a) t:put(things, b) end)
end
local a, b = pair()
result.a, result.b = a.n, b.n
)";
  std::vector<Process> agents;
  for (int id = 1; id <= 4; ++id) {
    agents.push_back(start_agent(folder_, redis_, id, {"--lease", "1s", "--job-max-deliveries", "9"}));
    ASSERT_TRUE(wait_until_registered(redis_, id));
    PlainJob job;
    job.type = "osis";
    if (id == 1) {
      job.script = script;
      job.timeout = "60";
      submit(redis_, job);
    }
    ASSERT_TRUE(eventually([&] { return read_field(redis_, job, "runner_id") == std::to_string(id); }, Seconds(20)));
    if (id == 4) break;
    ::usleep(static_cast<useconds_t>(20000 + id * 17000));
    agents.back().signal(SIGKILL);
    agents.back().wait();
    if (has_ended(redis_, job)) break;
  }
  PlainJob job;
  EXPECT_EQ(wait_for_status(redis_, job, Seconds(60)), "finished") << read_field(redis_, job, "error");
  const json result = json::parse(read_field(redis_, job, "result"));
  EXPECT_EQ(result["a"], result["b"]);
  const ProcessResult verify_result = run(folder_, {program_path(), "verify", "--redis", redis_.url()});
  EXPECT_EQ(verify_result.code, 0) << verify_result.out << verify_result.err;
}

}  // namespace
}  // namespace mycojobs::test
