// Runs every flow of examples/flow as the comment at the start of the file describes, with a real agent and
// coordinator.
#include <algorithm>
#include <filesystem>
#include <set>

#include "e2e/client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

// A command of the operator for a waiting node.
struct OperatorCommand {
  std::string node;
  std::vector<std::string> words;  // VERB ARGUMENT... of `flow VERB FLOW ARGUMENT...`
};
struct Example {
  std::string file;                             // in examples/flow
  std::string expected_detail;                  // field `detail` of the ended flow
  std::vector<std::string> expected_nodes;      // "NAME STATUS DETAIL" of some nodes of the ended flow
  std::vector<std::string> expected_log_lines;  // some lines of `flow logs`
  std::vector<OperatorCommand> commands = {};
  std::vector<std::string> start_arguments = {};  // additional arguments of `flow start`
};

std::vector<Example> examples() {
  return {
      {"approval.yaml",
       "completed",
       {"deploy completed ok", "announce completed ok"},
       {"build    | built", "deploy   | deployed", "announce | released"},
       {{"ship", {"approve", "ship", "--comment", "looks good"}}, {"watch", {"resume", "watch"}}}},
      {"arguments.yaml",
       "completed",
       {"filter completed ok"},
       {"filter  | 12 pears - pears: Williams - filter of arguments"}},
      {"child.yaml", "completed", {"backup completed ok"}, {"begin | the night begins", "done  | the night is over"}},
      {"compensation.yaml",
       "failed",
       {"free-room completed ok", "tell-customer completed ok", "confirm cancelled skipped"},
       {"room          | room reserved", "tell-customer | the card was refused", "free-room     | room given back"}},
      {"data.yaml", "completed", {"many completed ok", "few cancelled skipped"}, {"end     | one branch has run"}},
      {"each.yaml", "completed", {"sum completed ok", "few cancelled skipped"}, {}, {}, {"--input", "count=4"}},
      {"pipeline.yaml",
       "completed",
       {"long-test completed ok"},
       {"quick-test | quick test ok", "report     | all tests have passed"}},
  };
}

class FlowExamples : public Operator {
 protected:
  static fs::path examples_folder() { return fs::path(mj::test::source_folder()) / "examples" / "flow"; }
  void start_programs() {
    coordinators_.emplace_back(
        folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(), "--context", "1",
                                          "--state-dir", folder_ / "coordinator"});
    agents_.push_back(start_registered_agent(20));
  }
  std::set<std::string> list_node_states(const nlohmann::json& result) {
    std::set<std::string> nodes;
    for (const auto& node : result["nodes"]) {
      nodes.insert(node["name"].get<std::string>() + " " + node["node_status"].get<std::string>() + " " +
                   node.value("detail", ""));
    }
    return nodes;
  }
  nlohmann::json show_flow(const std::string& flow) { return mycojobs_.run_json({"flow", "show", flow}); }
  bool wait_for_node(const std::string& flow, const std::string& name) {
    return eventually([&] {
      const auto result = show_flow(flow);
      return std::any_of(result["nodes"].begin(), result["nodes"].end(),
                         [&](const auto& node) { return node["name"] == name && node["node_status"] == "dispatched"; });
    });
  }
  void run_example_flow(const Example& example) {
    SCOPED_TRACE(example.file);
    std::vector<std::string> words{"flow", "start", examples_folder() / example.file, "--detach"};
    words.insert(words.end(), example.start_arguments.begin(), example.start_arguments.end());
    const ProcessResult started = mycojobs_(words);
    ASSERT_EQ(started.code, 0) << started.err;
    const std::string flow = started.out.substr(5, started.out.find('\n') - 5);
    for (const OperatorCommand& command : example.commands) {
      ASSERT_TRUE(wait_for_node(flow, command.node)) << show_flow(flow).dump(2);
      std::vector<std::string> command_words{"flow", command.words[0], flow};
      command_words.insert(command_words.end(), command.words.begin() + 1, command.words.end());
      expect_result(mycojobs_(command_words), 0, "flow " + flow);
    }
    EXPECT_TRUE(eventually([&] { return show_flow(flow).value("terminal", false); }))
        << mycojobs_({"flow", "explain", flow}).out;
    const auto final_state = show_flow(flow);
    EXPECT_EQ(final_state["detail"], example.expected_detail) << final_state.dump(2);
    const auto nodes = list_node_states(final_state);
    for (const std::string& node : example.expected_nodes)
      EXPECT_TRUE(nodes.contains(node)) << node << "\n" << final_state.dump(2);
    const std::string logs = mycojobs_({"flow", "logs", flow}).out;
    for (const std::string& line : example.expected_log_lines)
      EXPECT_NE(logs.find(line + "\n"), std::string::npos) << logs;
  }

  std::vector<Process> coordinators_, agents_;
};

TEST_F(FlowExamples, EachEndsAsExpected) {
  start_programs();
  for (const Example& example : examples()) run_example_flow(example);
}

TEST_F(FlowExamples, AllExamplesAreTested) {
  std::set<std::string> tested_files, existing_files;
  for (const Example& example : examples()) tested_files.insert(example.file);
  for (const auto& file : fs::directory_iterator(examples_folder())) existing_files.insert(file.path().filename());
  EXPECT_EQ(tested_files, existing_files);
}

}  // namespace
}  // namespace mycojobs::test
