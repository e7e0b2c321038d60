// Runs every flow of examples/flow as described in its first lines, with a real agent and coordinator.
#include <algorithm>
#include <filesystem>
#include <set>

#include "e2e/client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

// A command of the operator for a waiting node.
struct Step {
  std::string node;
  std::vector<std::string> words;  // words of `flow WORD FLOW NODE ...`
};
struct Example {
  std::string file, ends;          // file in examples/flow; status word at the end
  std::vector<std::string> nodes;  // "name word detail" of some nodes, at the end
  std::vector<std::string> lines;  // lines of `flow logs`
  std::vector<Step> steps = {};
  std::vector<std::string> start = {};  // additional arguments of `flow start`
};

std::vector<Example> examples() {
  return {
      {"approval.yaml",
       "completed",
       {"deploy completed ok", "announce completed ok"},
       {"build    | built", "deploy   | deployed", "announce | released"},
       {{"ship", {"approve", "ship", "--comment", "looks good"}}, {"watch", {"resume", "watch"}}}},
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
  static fs::path folder() { return fs::path(mj::test::source_folder()) / "examples" / "flow"; }
  void serve() {
    coordinator_.emplace_back(
        folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(), "--context", "1",
                                          "--state-dir", folder_ / "coordinator"});
    agents_.push_back(agent(20));
  }
  std::set<std::string> get_nodes(const nlohmann::json& result) {
    std::set<std::string> nodes;
    for (const auto& node : result["nodes"]) {
      nodes.insert(node["name"].get<std::string>() + " " + node["node_status"].get<std::string>() + " " +
                   node.value("detail", ""));
    }
    return nodes;
  }
  nlohmann::json show(const std::string& flow) { return mycojobs_.json({"flow", "show", flow}); }
  bool waits_at(const std::string& flow, const std::string& name) {
    return eventually([&] {
      const auto result = show(flow);
      return std::any_of(result["nodes"].begin(), result["nodes"].end(),
                         [&](const auto& node) { return node["name"] == name && node["node_status"] == "dispatched"; });
    });
  }
  void run(const Example& example) {
    SCOPED_TRACE(example.file);
    std::vector<std::string> words{"flow", "start", folder() / example.file, "--detach"};
    words.insert(words.end(), example.start.begin(), example.start.end());
    const ProcessResult started = mycojobs_(words);
    ASSERT_EQ(started.code, 0) << started.err;
    const std::string flow = started.out.substr(5, started.out.find('\n') - 5);
    for (const Step& step : example.steps) {
      ASSERT_TRUE(waits_at(flow, step.node)) << show(flow).dump(2);
      std::vector<std::string> answer{"flow", step.words[0], flow};
      answer.insert(answer.end(), step.words.begin() + 1, step.words.end());
      expect_says(mycojobs_(answer), 0, "flow " + flow);
    }
    EXPECT_TRUE(eventually([&] { return show(flow).value("terminal", false); }))
        << mycojobs_({"flow", "explain", flow}).out;
    const auto ended = show(flow);
    EXPECT_EQ(ended["detail"], example.ends) << ended.dump(2);
    const auto nodes = get_nodes(ended);
    for (const std::string& node : example.nodes) EXPECT_TRUE(nodes.contains(node)) << node << "\n" << ended.dump(2);
    const std::string logs = mycojobs_({"flow", "logs", flow}).out;
    for (const std::string& line : example.lines) EXPECT_NE(logs.find(line + "\n"), std::string::npos) << logs;
  }

  std::vector<Process> coordinator_, agents_;
};

TEST_F(FlowExamples, EachRunsToTheEndItShows) {
  serve();
  for (const Example& example : examples()) run(example);
}

TEST_F(FlowExamples, AllExamplesAreTested) {
  std::set<std::string> run_here, there;
  for (const Example& example : examples()) run_here.insert(example.file);
  for (const auto& file : fs::directory_iterator(folder())) there.insert(file.path().filename());
  EXPECT_EQ(run_here, there);
}

}  // namespace
}  // namespace mycojobs::test
