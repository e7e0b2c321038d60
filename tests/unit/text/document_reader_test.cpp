#include "text/document_reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/json.h"
#include "text/yaml.h"

namespace mycojobs {
namespace {

std::string join_located(const YamlText& text, DocumentProblem problem) {
  set_position(text, problem);
  return join(std::vector<DocumentProblem>{std::move(problem)});
}

TEST(DocumentProblem, HasThePositionOfTheClosestEnclosingValue) {
  YamlText text;
  ASSERT_TRUE(yaml_to_json("name: x\njobs:\n  a: [1, 2]\n", 100, text));
  EXPECT_EQ(join_located(text, {"jobs.a[1]", "m"}), "line 3, column 10: jobs.a[1]: m");
  EXPECT_EQ(join_located(text, {"jobs.a[1].key", "m"}), "line 3, column 10: jobs.a[1].key: m");
  EXPECT_EQ(join_located(text, {"other", "m"}), "line 1, column 1: other: m");
  EXPECT_EQ(join_located(text, {"", "m"}), "line 1, column 1: m");
  EXPECT_EQ(join_located(text, {"jobs.a", "m", 7, 8}), "line 7, column 8: jobs.a: m");
  EXPECT_EQ(join_located({}, {"jobs.a", "m"}), "jobs.a: m");
}

TEST(DocumentProblem, OfASyntaxErrorHasThePositionOfItsText) {
  const auto located = [](const std::string& message) {
    const DocumentProblem problem = parse_syntax_error(message);
    return std::to_string(problem.line) + ':' + std::to_string(problem.column) + ' ' + problem.message;
  };
  EXPECT_EQ(located("line 3, column 5: is empty"), "3:5 is empty");
  EXPECT_EQ(located("not JSON at line 3 column 5: is empty"), "3:5 not JSON at line 3 column 5: is empty");
  EXPECT_EQ(located("line 3: has a control character"), "0:0 line 3: has a control character");
  EXPECT_EQ(located("more than 100 bytes"), "0:0 more than 100 bytes");

  YamlText text;
  EXPECT_EQ(parse_syntax_error(yaml_to_json("a: 1\nb: [", 100, text).error().message).line, 2U);
  EXPECT_EQ(parse_syntax_error(parse_exact_json("{\n\"a\": ]}", 100).error().message).line, 2U);
}

}  // namespace
}  // namespace mycojobs
