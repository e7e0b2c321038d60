// The flags of commands and the table of requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands/command_table.h"
#include "cli/request_arguments.h"

namespace mycojobs {
namespace {

using ::testing::HasSubstr;

// Requests that no command sends, with the reason.
const std::map<std::string_view, std::string_view> kRequestsWithoutCommand = {
    {"context.get", "`context show` also shows contexts without a record"},
    {"context.update", "`context grant`, `context revoke` and `context notify` change single lists"},
    {"context.rights", "for the page: a command acts as the operator"},
    {"context.overview", "for the page"},
    {"context.verify", "`verify` reads the store without a server"},
    {"context.doctor", "`doctor` also tests this host"},
    {"message.send", "`message send` creates, signs and sends a message in one step"},
    {"job.create", "`job submit` queues the job"},
    {"job.start", "`job submit` creates the job"},
    {"job.run", "`run` also runs an agent"},
    {"job.status", "`job show` has the state"},
    {"job.result", "`job show` has the result"},
    {"job.history", "for the page"},
    {"artifact.put", "`job submit --file` uploads large files"},
    {"artifact.list", "`job artifacts` reads the store and this host"},
    {"artifact.get", "`job artifacts JOB NAME` needs no server"},
    {"jobs.create", "`job submit --batch` reads a file of any length"},
    {"jobs.list", "the same as job.list"},
    {"jobs.page", "for the page"},
    {"jobs.wait", "`job logs --follow` waits for a job"},
    {"flow.start", "`flow start` can create and follow the flow"},
    {"flow.check", "`flow check` reads a file and reports its lines"},
    {"flow.dag", "`flow graph` draws the flow"},
    {"flows.page", "for the page"},
    {"flows.wait", "`flow watch` waits for a flow"},
    {"approval.list", "for the page"},
    {"queue.dead", "`queue dead` has flags for three requests"},
    {"queue.requeue", "`queue dead --requeue`"},
    {"queue.drop", "`queue dead --drop`"},
    {"system.ping", "`health` checks a server"},
    {"system.version", "`version` is that of the program"},
    {"system.info", "about a server: `rpc system.info`"},
    {"session.challenge", "for logins by key"},
    {"session.begin", "for logins by key"},
    {"session.end", "for logins by key"},
};

// Flags of commands that are named like a parameter of the request, but take another value.
const std::set<std::pair<std::string_view, std::string_view>> kDifferentFlags = {
    {"flow create", "notify"},  // one target, which can be repeated
    {"flow list", "status"},    // also a displayed state
    {"message send", "flow"},   // a file
};

// Flags with a help of their own, because the command has another default, limit or format than the request.
const std::set<std::string_view> kFlagsWithOwnHelp = {"type", "timeout", "queue-timeout", "after", "deliver-within"};

TEST(RequestFlags, EveryRequestHasACommandOrAReason) {
  std::set<std::string_view> sent;
  for (const Command& command : commands()) {
    if (command.request != nullptr) sent.insert(command.request->name);
  }
  for (const service::Request& request : service::requests())
    EXPECT_NE(sent.contains(request.name), kRequestsWithoutCommand.contains(request.name)) << request.name;
  for (const auto& [name, reason] : kRequestsWithoutCommand) {
    EXPECT_NE(service::find_request(name), nullptr) << name;
    EXPECT_FALSE(reason.empty()) << name;
  }
}

TEST(RequestFlags, AgreeWithTheParameter) {
  for (const Command& command : commands()) {
    std::set<std::string_view> names;
    for (const FlagRow& flag : command.flags) {
      SCOPED_TRACE(std::string(command.name) + " --" + flag.name);
      EXPECT_TRUE(names.insert(flag.name).second) << "the command has the flag twice";
      EXPECT_FALSE(flag.help.empty());
      if (flag.param == nullptr) {
        std::string param = flag.name;
        std::replace(param.begin(), param.end(), '-', '_');
        const bool is_param = command.request != nullptr && service::find_param(*command.request, param) != nullptr;
        EXPECT_EQ(is_param, kDifferentFlags.contains({command.name, flag.name}));
        continue;
      }
      EXPECT_EQ(flag.choices, flag.param->choices);
      EXPECT_EQ(flag.value.empty(), flag.param->type == "boolean");
      EXPECT_EQ(flag.is_repeatable, flag.param->type == "texts" || flag.param->type == "ids");
      EXPECT_TRUE(kFlagsWithOwnHelp.contains(flag.name) || flag.help.starts_with(flag.param->help));
    }
  }
}

class RequestArguments : public ::testing::Test {
 protected:
  using Flags = std::map<std::string, std::vector<std::string>, std::less<>>;

  Invocation make_call(std::string_view command, Flags flags) {
    const auto row =
        std::find_if(commands().begin(), commands().end(), [&](const Command& entry) { return entry.name == command; });
    return {dependencies_, {}, {}, false, {}, std::move(flags), &*row};
  }
  // Reads the request of a command with these flags. Returns the values as JSON, or the error.
  std::string read(std::string_view command, Flags flags) {
    const auto request = read_request(make_call(command, std::move(flags)));
    return request ? request->params().dump() : request.error().message;
  }

 private:
  SystemClock clock_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<Traces> traces_;
  ProgramDependencies dependencies_{{}, {}, {}, {}, {}, {}, {}, {}, clock_, metrics_, traces_};
};

TEST_F(RequestArguments, AreConvertedToTheTypesOfTheParameters) {
  EXPECT_EQ(read("job list", {{"status", {"started"}}, {"caller", {"12"}}, {"limit", {"7"}}}),
            R"({"caller_id":12,"limit":7,"status":"started"})");
  EXPECT_EQ(read("actor create", {{"address", {"http://a", "http://b"}}, {"id", {"3"}}}),
            R"({"address":["http://a","http://b"],"id":3})");
  EXPECT_EQ(read("message send", {{"deliver-within", {"2m"}}, {"stream", {"true"}}}),
            R"({"stream_logs":true,"timeout":120})");
}

TEST(RequestFlags, HaveThePlaceholderOfTheirTypeOrAnother) {
  const std::vector<FlagRow> flags = request_flags("workflow.timeline", "limit before=after:HEIGHT");
  ASSERT_EQ(flags.size(), 2U);
  EXPECT_EQ(flags[0].name, "limit");
  EXPECT_EQ(flags[0].value, "N");
  EXPECT_EQ(flags[1].name, "after");
  EXPECT_EQ(flags[1].value, "HEIGHT");
}

TEST_F(RequestArguments, ErrorsNameTheFlag) {
  EXPECT_EQ(read("job list", {{"limit", {"0"}}}), "--limit: must be a whole number, 1 or more, not 0");
  EXPECT_EQ(read("job list", {{"caller", {"x"}}}), "--caller: must be a whole number from 1 to 4294967295, not \"x\"");
  EXPECT_THAT(read("job list", {{"since", {"x"}}}), HasSubstr("--since: \"x\" is neither a time ago"));
  EXPECT_THAT(read("message send", {{"deliver-within", {"x"}}}), HasSubstr("--deliver-within: "));
}

TEST_F(RequestArguments, ErrorsNameTheFlagOfTheirRequest) {
  const Invocation call = make_call("message send", {{"deliver-within", {"1s"}}, {"timeout", {"1s"}}});
  const Error error{Code::invalid, "timeout: is wrong"};
  EXPECT_EQ(to_command_line_error(call, error).message, "--deliver-within: is wrong");
  EXPECT_EQ(to_command_line_error(call, error, service::find_request("job.create")).message, "--timeout: is wrong");
}

}  // namespace
}  // namespace mycojobs
