// Graphs of flows: their content, and robustness against hostile names and records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "flow/show_views.h"
#include "inspect/flow_drawing.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Layers = std::vector<std::vector<std::uint32_t>>;

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::size_t widest(const std::string& text) {
  std::size_t max = 0;
  for (const auto& line : split_lines(text)) max = std::max(max, count_columns(line));
  return max;
}

const std::vector<GraphFormat> kFormats = {GraphFormat::text, GraphFormat::ascii, GraphFormat::mermaid,
                                           GraphFormat::dot, GraphFormat::json};

TEST(FlowGraph, LayersAreLongestPathsAndErrorNodesAreLast) {
  EXPECT_EQ(find_layers(pipeline()), (Layers{{0, 1}, {2}, {3}, {4}, {5, 6}}));
}

TEST(FlowGraph, CyclesAndUnknownNeedsAreDrawn) {
  FlowView view = pipeline();
  view.nodes[2].needs = {4, 0, 777};  // test -> ok -> deploy -> test
  EXPECT_EQ(find_layers(view), (Layers{{0, 1}, {2, 3, 4}, {5, 6}}));
  for (GraphFormat format : kFormats) EXPECT_FALSE(draw_flow(view, format).empty());
}

TEST(FlowGraph, EmptyFlowIsDrawn) {
  for (GraphFormat format : kFormats) EXPECT_FALSE(draw_flow(FlowView(), format).empty());
}

TEST(FlowGraph, TextShowsStatesTimesAndTargets) {
  const std::string text = draw_flow(pipeline(), GraphFormat::text);
  EXPECT_THAT(text, HasSubstr("flow 12 pipeline  running  1 of 5 settled, 1 running  41 s\n"));
  EXPECT_THAT(text, HasSubstr("╭ ✔ build ────────╮ ╭ ● lint ──────╮\n"
                              "│ completed 1.2 s │ │ running 14 s │\n"
                              "╰ → test ─────────╯ ╰ → ok ────────╯\n"));
  EXPECT_THAT(text, HasSubstr("retry_wait (attempt 2), due in 4.0 s"));
  EXPECT_THAT(text, HasSubstr("→ ok on error: mend"));
  EXPECT_THAT(text, HasSubstr("undone by: undo"));
  EXPECT_THAT(text, HasSubstr("only when called:\n"));
}

TEST(FlowGraph, HeadlineCountsSkippedNodes) {
  FlowView view = pipeline();
  view.nodes[2].status = NodeStatus::cancelled;
  view.nodes[2].detail = "skipped";
  EXPECT_THAT(draw_flow(view, GraphFormat::text), HasSubstr("2 of 5 settled, 1 running, 1 skipped  41 s\n"));
}

TEST(FlowGraph, AsciiModeHasOnlyAscii) {
  FlowView view = pipeline();
  view.nodes[0].name = "b\xC3\xA4u\xE2\x86\x92";
  const std::string text = draw_flow(view, GraphFormat::ascii);
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  EXPECT_THAT(text, HasSubstr("+ + b?u? ---"));
  EXPECT_THAT(text, HasSubstr("-> test"));
}

TEST(FlowGraph, ColoursUseNoColumns) {
  const std::string plain = draw_flow(pipeline(), GraphFormat::text);
  const std::string coloured = draw_flow(pipeline(), GraphFormat::text, 100, true);
  EXPECT_THAT(coloured, HasSubstr("\033[32m"));
  const auto a = split_lines(plain), b = split_lines(coloured);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(count_columns(a[i]), count_columns(b[i])) << a[i];
}

TEST(FlowGraph, FitsAnyTerminalWidth) {
  FlowView view = pipeline();
  for (std::uint32_t i = 7; i < 60; ++i)
    view.nodes.push_back(
        node(i, "a-node-with-a-rather-long-name-" + std::to_string(i), {0, 1}, NodeStatus::dispatched, "queued"));
  for (std::size_t width : {24, 40, 80, 100, 200}) {
    EXPECT_LE(widest(draw_flow(view, GraphFormat::text, width)), width);
    EXPECT_LE(widest(draw_flow(view, GraphFormat::text, width, false, 10)), width);
    EXPECT_LE(widest(draw_text(view, {width, false, false, 200, 60})), width);
  }
  EXPECT_LE(widest(draw_flow(view, GraphFormat::text, 0)), 24U) << "a width that is too small";
}

TEST(TerminalText, CommandIsNeverTruncated) {
  const std::string text =
      "no runner serves queue:v here; next: `mycojobs agent --redis URL`, or `mycojobs flow cancel 12`";
  for (std::size_t max = 0; max < 100; ++max) {
    const std::string cut = shorten_message(text, max);
    EXPECT_THAT(cut, HasSubstr("`mycojobs agent --redis URL`")) << max;
    EXPECT_THAT(cut, HasSubstr("`mycojobs flow cancel 12`")) << max;
    EXPECT_EQ(std::count(cut.begin(), cut.end(), '`'), 4) << cut;
  }
  EXPECT_EQ(shorten_message(text, 200), text);
  EXPECT_EQ(shorten_message("a long line without any", 10), shorten_text("a long line without any", 10));
  EXPECT_EQ(shorten_message("an open ` mark that is long", 10), shorten_text("an open ` mark that is long", 10));
}

TEST(FlowGraph, ShorterFormsAreUsedOnFewLines) {
  const FlowView view = pipeline();
  EXPECT_THAT(draw_text(view, {.max_lines = 30}), HasSubstr("╭"));
  const std::string listed = draw_text(view, {.max_lines = 10});
  EXPECT_THAT(listed, Not(HasSubstr("╭")));
  EXPECT_THAT(listed, HasSubstr("● lint"));
  EXPECT_THAT(draw_text(view, {.max_lines = 7}), HasSubstr("layer 1  2 nodes  ● 1 running  ✔ 1 completed: lint"));
}

TEST(FlowGraph, LargeFlowsAreFoldedByLayerAndStatus) {
  FlowView view = pipeline();
  for (std::uint32_t i = 7; i < 10000; ++i)
    view.nodes.push_back(
        node(i, "n" + std::to_string(i), {0}, i % 2 ? NodeStatus::failed : NodeStatus::completed, "ok"));
  const auto lines = split_lines(draw_flow(view, GraphFormat::text));
  EXPECT_EQ(lines.size(), 6U);
  EXPECT_THAT(lines[2], HasSubstr("layer 2  9994 nodes  ◌ 1 ready  ✔ 4996 completed  ✘ 4997 failed: n7, n9, n11, n13"));
  EXPECT_LE(widest(draw_flow(view, GraphFormat::text)), 100U);
}

TEST(FlowGraph, DefinitionIsDrawnBeforeItRuns) {
  FlowPlan plan;
  plan.name = "later";
  plan.nodes.resize(2);
  plan.nodes[0].name = "a";
  plan.nodes[1].name = "b";
  plan.nodes[1].needs = {0};
  plan.nodes[1].when = {{0, "size", FlowCondition::Test::greater_than, "10"}};
  const std::string text = draw_flow(make_plan_view(plan), GraphFormat::text);
  EXPECT_THAT(text, HasSubstr("definition later  2 nodes"));
  EXPECT_THAT(text, HasSubstr("if a.size greater_than 10"));
  EXPECT_THAT(text, Not(HasSubstr("pending")));
}

TEST(FlowGraph, MermaidAndDotHaveEveryEdge) {
  const std::string mermaid = draw_flow(pipeline(), GraphFormat::mermaid);
  for (const char* line : {"flowchart TD\n", "  n0[\"build<br/>completed 1.2 s\"]:::completed\n", "  n0 --> n2\n",
                           "  n1 --> n3\n", "  n2 -.->|error| n5\n", "  n4 -.->|compensation| n6\n",
                           "  n3{{\"approval ok<br/>pending\"}}:::pending\n", "classDef running "})
    EXPECT_THAT(mermaid, HasSubstr(line));
  const std::string dot = draw_flow(pipeline(), GraphFormat::dot);
  for (const char* line : {"digraph \"pipeline\" {\n", "n0 [label=\"build\\ncompleted 1.2 s\"", "n0 -> n2;",
                           "n2 -> n5 [style=dashed, label=\"error\"];"})
    EXPECT_THAT(dot, HasSubstr(line));
}

TEST(FlowGraph, JsonHasNodesAndEdges) {
  const auto json = nlohmann::json::parse(draw_flow(pipeline(), GraphFormat::json));
  EXPECT_EQ(json["flow"], 12);
  EXPECT_EQ(json["nodes"].size(), 7U);
  EXPECT_EQ(json["nodes"][1]["node_status"], "running");
  EXPECT_EQ(json["edges"].size(), 6U);
  EXPECT_EQ(json["edges"][0], (nlohmann::json{{"from", "build"}, {"to", "test"}, {"kind", "needs"}}));
}

// Names, kinds and details come from definitions and from any client that can write to Redis.
TEST(FlowGraph, HostileNamesAreHarmless) {
  const std::vector<std::string> kHostile = {
      "\"]; evil [label=\"x",
      "\"]:::x\n  click n0 call evil()",
      "#quot;<script>alert(1)</script>",
      "\\\" -> n1; \\N",
      "\033]0;owned\007\033[2J",
      "line\nline\r\ttab",
      std::string("\0nul", 4),
      "\xff\xfe\xc0\x80",
      "\xE2\x80\xAEgnp.exe",
      "`markdown` %%{init: {}}%%",
      std::string(100000, 'w'),
      "\xE5\xAE\xBD\xE5\xAE\xBD",
  };
  for (const std::string& name : kHostile) {
    FlowView view = pipeline();
    view.record.name = name;
    for (NodeView& each : view.nodes) each.name = each.kind = each.detail = name;
    view.nodes[0].gates = {name};
    for (GraphFormat format : {GraphFormat::text, GraphFormat::ascii}) {
      const std::string text = draw_flow(view, format);
      EXPECT_LE(widest(text), 100U) << name.substr(0, 20);
      EXPECT_EQ(text.find('\033'), std::string::npos);
      EXPECT_EQ(text.find('\r'), std::string::npos);
      EXPECT_EQ(text.find("\xE2\x80\xAE"), std::string::npos);
      EXPECT_TRUE(is_utf8(text));
      EXPECT_EQ(split_lines(text).size(), 17U) << text.substr(0, 1000);
    }
    const std::string mermaid = draw_flow(view, GraphFormat::mermaid);
    EXPECT_EQ(mermaid.find("\n  click"), std::string::npos);
    EXPECT_EQ(mermaid.find("<script>"), std::string::npos);
    EXPECT_EQ(split_lines(mermaid).size(), 4U + 7 + 6 + 7) << mermaid.substr(0, 500);
    EXPECT_EQ(std::count(mermaid.begin(), mermaid.end(), '"'), 2 + 2 * 7);
    const std::string dot = draw_flow(view, GraphFormat::dot);
    EXPECT_EQ(split_lines(dot).size(), 3U + 7 + 6 + 1) << dot.substr(0, 500);
    EXPECT_TRUE(nlohmann::json::accept(draw_flow(view, GraphFormat::json)));
  }
}

TEST(TerminalText, ColumnsAndShorteningWork) {
  EXPECT_EQ(count_columns("b\xC3\xA4u"), 3U);
  EXPECT_EQ(count_columns("\xE5\xAE\xBD"), 2U);
  EXPECT_EQ(count_columns("\033[1;31mred\033[0m"), 3U);
  EXPECT_EQ(count_columns("\xff\xff"), 2U);
  EXPECT_EQ(shorten_text("abcdef", 6), "abcdef");
  EXPECT_EQ(shorten_text("abcdefg", 6), "abcde\xE2\x80\xA6");
  EXPECT_EQ(shorten_text("\xE5\xAE\xBD\xE5\xAE\xBD", 3, "~"), "\xE5\xAE\xBD~");
  EXPECT_EQ(shorten_text("abc", 0), "");
  std::string marks = "e";
  for (int i = 0; i < 1000; ++i) marks += "\xCC\x81";
  EXPECT_LT(shorten_text(marks, 10).size(), 100U);
}

}  // namespace
}  // namespace mycojobs
