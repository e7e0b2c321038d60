// The examples of docs/executors/python.md behave as the page says.
#include <gtest/gtest.h>

#include <fstream>

#include "python_sandbox.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

struct Example {
  std::size_t line = 0;
  bool fails = false;
  std::string script;
};

std::vector<Example> read_examples() {
  std::ifstream manual(mj::test::source_path("docs/executors/python.md"));
  std::vector<Example> examples;
  bool is_inside = false;
  std::size_t line_number = 0;
  for (std::string line; std::getline(manual, line);) {
    ++line_number;
    if (line.starts_with("```")) {
      is_inside = !is_inside && line.starts_with("```python");
      if (is_inside) examples.push_back({line_number, line.ends_with(" fails"), {}});
    } else if (is_inside) {
      examples.back().script += line + "\n";
    }
  }
  return examples;
}

TEST(PythonManual, ExamplesRunAsDocumented) {
  const auto all = read_examples();
  ASSERT_GE(all.size(), 6U);
  for (const Example& example : all) {
    JobFacts facts = make_facts(example.script);
    facts.inputs["build"] = {2000, {{"size", "42"}}, {"size"}};
    facts.secrets = {{"token", "t"}};
    facts.granted_policy.secrets = {"token"};
    const RunResult result = run_python_confined(facts);
    EXPECT_EQ(result.end.detail, example.fails ? "exception" : "ok")
        << "docs/executors/python.md:" << example.line << ": " << result.end.error << result.err;
    // The error contains the text of the comment, up to "...".
    const auto comment = example.script.find("   # ");
    if (!example.fails || comment == std::string::npos) continue;
    std::string output = example.script.substr(comment + 5, example.script.find('\n', comment) - comment - 5);
    if (output.starts_with("...; ")) output.erase(0, 5);
    EXPECT_NE(result.end.error.find(output), std::string::npos) << result.end.error;
  }
}

}  // namespace
}  // namespace mycojobs::test
