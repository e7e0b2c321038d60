// References to results of earlier nodes in the texts of a flow definition.
#include <gmock/gmock.h>

#include "model/result_references.h"

namespace mycojobs {
namespace {

using ::testing::HasSubstr;

FlowData make_flow_data() {
  FlowData flow;
  flow.expanded_variables = {"SIZE"};
  flow.expanded_args = {0, 2, 7};
  return flow;
}

Result<std::string> look_up(const ResultReference& reference) {
  if (reference.node == "build" && reference.key == "size") return "10";
  if (reference.key == "a.b") return "${build.size}";
  return fail(Code::invalid, "no value");
}

TEST(ResultReferences, AreReplacedWhereTheFlowNamesThem) {
  Job job;
  job.env_vars = {{"SIZE", "<${build.size}>"}, {"OTHER", "${build.size}"}};
  job.args = {"--n=${build.size} $${HOME} $5 $$", "${HOME}", "${x.a.b}"};
  ASSERT_TRUE(expand_references(job, make_flow_data(), look_up));
  EXPECT_EQ(job.env_vars, (TextMap{{"SIZE", "<10>"}, {"OTHER", "${build.size}"}}));
  EXPECT_EQ(job.args, (std::vector<std::string>{"--n=10 ${HOME} $5 $$", "${HOME}", "${build.size}"}));
}

TEST(ResultReferences, MissingValueNamesFieldAndReference) {
  Job job;
  job.env_vars = {{"SIZE", "${build.gone}"}};
  auto result = expand_references(job, make_flow_data(), look_up);
  EXPECT_EQ(result.error().message, "env_vars: \"SIZE\": ${build.gone}: no value");
  job = {};
  job.args = {"x", "y", "${gone.size}"};
  result = expand_references(job, make_flow_data(), look_up);
  EXPECT_EQ(result.error().message, "args[2]: ${gone.size}: no value");
}

TEST(ResultReferences, TextWithoutReferenceIsRejected) {
  for (const char* text : {"${HOME}", "${", "${a.b", "${.b}", "${a.}", "${}"}) {
    const auto references = parse_references(text);
    ASSERT_FALSE(references) << text;
    EXPECT_THAT(references.error().message, HasSubstr("is not ${NODE.KEY}")) << text;
  }
  EXPECT_EQ(parse_references("a ${b.c} ${d.e.f}")->at(1).key, "e.f");
}

TEST(ResultReferences, EscapedTextIsUnescapedToItself) {
  for (const char* text : {"", "$", "$$", "${a}", "$${a}", "$$${a.b}", "x${${y", "${"}) {
    const std::string escaped = escape_references(text);
    EXPECT_FALSE(has_references(escaped)) << text;
    EXPECT_EQ(unescape_references(escaped), text);
  }
  EXPECT_TRUE(has_references("${a.b}"));
  EXPECT_EQ(unescape_references("$${a} ${b.c}"), "$${a} ${b.c}");
}

}  // namespace
}  // namespace mycojobs
