// docs/flows.md agrees with the parser, and every definition in docs/flows.md and examples/flow is valid.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "flows/flow_plan.h"
#include "flows/flow_yaml.h"
#include "inspect/flow_view.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}
std::string find_problems(const std::string& yaml) {
  YamlText places;
  const auto parsed = flow_yaml_to_json(yaml, places);
  if (!parsed) return parsed.error().message;
  return join(read_plan(*parsed).problems);
}

TEST(FlowDocs, HaveARowForExactlyEveryField) {
  const std::string manual = read_text(mj::test::source_path("docs/flows.md"));
  for (const char* of : {"flow", "node"}) {
    std::string table = "| field | takes | meaning |\n|---|---|---|\n";
    for (const PlanField& field : plan_fields()) {
      if (field.owner != of) continue;
      table += "| `" + std::string(field.name) + "` | " + std::string(field.value_format) + " | " +
               std::string(field.meaning) + " |\n";
    }
    EXPECT_NE(manual.find(table + "\n"), std::string::npos) << "docs/flows.md, fields of a " << of << ":\n" << table;
  }
}

TEST(FlowDocs, EveryDefinitionIsValid) {
  const std::string manual = read_text(mj::test::source_path("docs/flows.md"));
  int count = 0;
  for (std::size_t at = manual.find("```yaml\n"); at != std::string::npos; at = manual.find("```yaml\n", at + 1)) {
    const std::size_t from = at + sizeof "```yaml\n" - 1;
    const std::string yaml = manual.substr(from, manual.find("```\n", from) - from);
    EXPECT_EQ(find_problems(yaml), "") << yaml;
    ++count;
  }
  EXPECT_GE(count, 2);
}

TEST(FlowDocs, HaveARowForEveryFlowTerm) {
  const std::string manual = read_text(mj::test::source_path("docs/flows.md"));
  for (const FlowDisplayState& row : flow_display_states()) {
    std::string line = "| `";
    line.append(row.state).append("` | ").append(to_string(row.status)).append(" | ").append(row.meaning).append(" |");
    EXPECT_NE(manual.find(line), std::string::npos) << line;
  }
}

TEST(FlowDocs, EveryExampleIsValidAndListed) {
  const std::string manual = read_text(mj::test::source_path("docs/flows.md"));
  int count = 0;
  for (const auto& file : fs::directory_iterator(mj::test::source_path("examples/flow"))) {
    EXPECT_EQ(find_problems(read_text(file.path())), "") << file.path();
    EXPECT_NE(manual.find("examples/flow/" + file.path().filename().string()), std::string::npos) << file.path();
    ++count;
  }
  EXPECT_GE(count, 5);
}

}  // namespace
}  // namespace mycojobs
