#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "flows/flow_plan.h"
#include "flows/flow_yaml.h"
#include "support/process.h"
#include "text/json.h"
#include "text/yaml.h"

namespace mycojobs {
namespace {

using nlohmann::json;

Result<json> parse_yaml(std::string_view text, YamlText& places) {
  return yaml_to_json(text, kMaxDefinitionBytes, places);
}

std::string get_yaml_error(const std::string& text) {
  YamlText places;
  const auto read = parse_yaml(text, places);
  return read ? "read: " + dump_json(*read) : read.error().message;
}

TEST(FlowYaml, CoversJson) {
  YamlText places;
  const auto read = parse_yaml(
      "# a comment\n"
      "name: pipeline\n"
      "n: [1, -2, 3.5, 1e3, true, False, null, ~, 'true', \"7\", yes, 0x1f, 007, .5, 1_000, 99999999999999999999]\n"
      "script: |\n"
      "  a = 1\n"
      "  b = 2\n"
      "folded: >\n"
      "  one\n"
      "  two\n"
      "empty:\n"
      "7: seven\n"
      "jobs: {a: {needs: [b, c]}}\n"
      "list:\n"
      "  - x: 1\n"
      "    y: 2\n"
      "  - z\n",
      places);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(
      dump_json(*read),
      dump_json(json::parse(
          R"({"name":"pipeline","n":[1,-2,3.5,1e3,true,false,null,null,"true","7","yes","0x1f","007",".5","1_000","99999999999999999999"],
                    "script":"a = 1\nb = 2\n","folded":"one two\n","empty":null,"7":"seven",
                    "jobs":{"a":{"needs":["b","c"]}},"list":[{"x":1,"y":2},"z"]})")));
  using Place = std::pair<std::size_t, std::size_t>;
  EXPECT_EQ(places.positions.at("name"), (Place{2, 1})) << "the position of a value is that of its key";
  EXPECT_EQ(places.positions.at("jobs.a.needs[1]"), (Place{12, 23}));
  EXPECT_EQ(places.positions.at("list[0].y"), (Place{15, 5}));
  EXPECT_EQ(places.positions.at("list[1]"), (Place{16, 5}));
}

TEST(FlowYaml, NumbersAndTextsAreParsedLikeJson) {
  YamlText places;
  EXPECT_EQ(dump_json(*parse_yaml("a: 12\nb: 1.0\nc: -0\n", places)),
            dump_json(json::parse(R"({"a":12,"b":1.0,"c":0})")));
  EXPECT_EQ(
      dump_json(*parse_yaml("a: 18446744073709551615\nb: 18446744073709551616\nc: -9223372036854775809\n", places)),
      R"({"a":18446744073709551615,"b":"18446744073709551616","c":"-9223372036854775809"})");
}

TEST(FlowYaml, EnvironmentAndEachKeepTheirSpelling) {
  YamlText places;
  const auto read = flow_yaml_to_json(R"(
name: spelled
env: {V: 3.10, SHA: 1e3, P: 0.30, DEBUG: True, N: 5, ON: true, Q: "3.10", L: -0}
timeout: 1.50
defaults: {env: {D: 1.0e2}}
jobs:
  a: {script: x, env: {A: 1E5}, each: [3.9, 3.10, {v: 0.50}, True, 7], when: {key: b.c, less_than: 3.10}}
  b: {flow: {name: child, env: {C: 2.50}, jobs: [{name: c, script: y, env: {E: 99999999999999999999}}]}}
)",
                                      places);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(dump_json((*read)["env"]),
            R"({"DEBUG":"True","L":"-0","N":5,"ON":true,"P":"0.30","Q":"3.10","SHA":"1e3","V":"3.10"})");
  EXPECT_EQ((*read)["defaults"]["env"]["D"], "1.0e2");
  EXPECT_EQ((*read)["jobs"]["a"]["env"]["A"], "1E5");
  EXPECT_EQ(dump_json((*read)["jobs"]["a"]["each"]), R"([3.9,"3.10",{"v":"0.50"},true,7])");
  EXPECT_EQ((*read)["jobs"]["a"]["when"]["less_than"], 3.1) << "a condition compares numbers";
  EXPECT_EQ((*read)["timeout"], 1.5);
  const auto& child = (*read)["jobs"]["b"]["flow"];
  EXPECT_EQ(child["env"]["C"], "2.50");
  EXPECT_EQ(child["jobs"][0]["env"]["E"], "99999999999999999999");
}

TEST(FlowYaml, RejectedSyntaxIsNamedWithItsPlace) {
  EXPECT_EQ(get_yaml_error("a: &x 1\nb: 2\n"),
            "line 1, column 4: anchors (&name) are not supported: repeat the value where it is used");
  EXPECT_NE(get_yaml_error("a: 1\nb: *x\n").find("line 2, column 4: "), std::string::npos)
      << get_yaml_error("a: 1\nb: *x\n");
  EXPECT_EQ(get_yaml_error("a: 1\nb: 2\na: 3\n"), "line 3, column 1: the key \"a\" is a duplicate key of this map");
  EXPECT_EQ(get_yaml_error("a: !!python/object:os.system x\n").substr(0, 24), "line 1, column 4: tags (");
  EXPECT_EQ(get_yaml_error("a: !!str 1\n").substr(0, 24), "line 1, column 4: tags (");
  EXPECT_EQ(get_yaml_error("a: 1\n---\nb: 2\n"), "line 2, column 1: a second document begins: give one");
  EXPECT_EQ(get_yaml_error("? [a]\n: 1\n"), "line 1, column 3: a key is a text, not a list or a map");
  EXPECT_EQ(get_yaml_error(""), "line 1, column 1: is empty");
  EXPECT_EQ(get_yaml_error("# nothing\n"), "line 1, column 1: is empty");
  EXPECT_EQ(get_yaml_error("a: \xff\n"), "is not text in UTF-8: save it as UTF-8");
  EXPECT_EQ(get_yaml_error(std::string("a: \0b\n", 6)), "is not text in UTF-8: save it as UTF-8");
  for (const char* text : {"a: [1, 2\n", "a: {b: 1\n", "a: 'x\n", "a: b: c\n", "a:\n\t- b\n", "- a\nb: 1\n",
                           "%YAML 9\n---\na: 1\n", "a: \"\\q\"\n", "@a: 1\n", "a: |x\n  b\n"}) {
    EXPECT_EQ(get_yaml_error(text).substr(0, 5), "line ") << text << " -> " << get_yaml_error(text);
  }
}

TEST(FlowYaml, TabInTheIndentationIsNamed) {
  for (const char* text : {"name: x\njobs:\n\ta: {log: hi}\n", "jobs:\n  a:\n  \tlog: hi\n  \tneeds: []\n"})
    EXPECT_NE(get_yaml_error(text).find("; line 3 is indented by a tab"), std::string::npos) << get_yaml_error(text);
}

TEST(FlowYaml, BombsAreRejected) {
  EXPECT_NE(get_yaml_error("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n").find("anchors"), std::string::npos);
  for (const char* open : {"[", "{a: ", "- ", "? "}) {
    std::string deep;
    for (int i = 0; i < 20000; ++i) deep += open;
    EXPECT_NE(get_yaml_error(deep).find("line 1"), std::string::npos) << open << get_yaml_error(deep).substr(0, 100);
  }
  std::string steps;
  for (int i = 0; i < 100; ++i) steps += std::string(i, ' ') + "a:\n";
  EXPECT_EQ(get_yaml_error(steps), "line 65, column 65: nests deeper than 64 levels");
  std::string many = "a: [";
  for (int i = 0; i < 600000; ++i) many += "1,";
  EXPECT_NE(get_yaml_error(many + "1]").find("more than 500000 keys and values"), std::string::npos);
  EXPECT_NE(get_yaml_error("- " + many.substr(3) + "1]").find("more than 100000 keys and values in"),
            std::string::npos);
  many.clear();
  for (int i = 0; i < 600000; ++i) many += "- 1\n";
  EXPECT_EQ(get_yaml_error(many), "line 500000, column 3: more than 500000 keys and values");
  EXPECT_NE(get_yaml_error(std::string(17U << 20, ' ')).find("over the limit"), std::string::npos);
}

// Returns the peak growth of this process's memory while `run` executes.
long growth_kib(const std::function<void()>& run) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak value
  const long before = test::read_status_kib(::getpid(), "VmRSS");
  run();
  return test::read_status_kib(::getpid(), "VmHWM") - before;
}

std::string repeated(std::string_view text, std::size_t bytes) {
  std::string all;
  while (all.size() < bytes) all += text;
  return all;
}

// yaml-cpp buffers the tokens of a line and of a flow collection until it knows whether they are a key.
TEST(FlowYaml, MemoryOfHostileTextsIsBounded) {
  constexpr std::size_t kBytes = 15U << 20;
  const std::string key(1U << 20, 'k');
  const std::pair<const char*, std::string> attacks[] = {
      {"nested lists", repeated("[", kBytes)},
      {"nested maps", repeated("{a: ", kBytes)},
      {"nested lists of a script", "a: |\n  [\nb: " + repeated("[", kBytes)},
      {"a long list", "- [" + repeated("1,", kBytes)},
      {"a list of nothing", "- [" + repeated(",", kBytes)},
      {"maps in a list", "- [" + repeated("a: b, ", kBytes)},
      {"quoted texts in a line", repeated("'' ", kBytes)},
      {"values without keys", "- [" + repeated(": ", kBytes)},
      {"texts where keys should be", "a: 1\n" + repeated("b\n", kBytes)},
      {"tags in a line", repeated("! ", kBytes)},
      {"anchors in a line", repeated("&a ", kBytes)},
      {"aliases in a list", "- [" + repeated("*a, ", kBytes)},
      {"words of a directive", "%A" + repeated(" a", kBytes)},
      {"paths of values", key + ": {" + key + ": [" + repeated("1,", 1U << 18) + "]}"},
      {"spellings of values", std::string(4000, 'k') + ": [" + repeated("1.50,", 1U << 20) + "]"},
  };
  for (const auto& [name, text] : attacks) {
    std::string refusal;
    const long kib = growth_kib([&refusal, &attack = text] { refusal = get_yaml_error(attack); });
    EXPECT_EQ(refusal.substr(0, 5), "line ") << name << ": " << refusal.substr(0, 100);
    EXPECT_LT(kib, 160 << 10) << name;
  }
}

TEST(FlowYaml, LongScriptsOfManyBracketsAreRead) {
  const std::string script = repeated("  x[y[z{'a', \"b\"}]] # [ [ [ {{\n", 4U << 20);
  YamlText places;
  const auto block = parse_yaml("jobs:\n  a:\n    script: |\n" + repeated("      [[[[ x\n", 4U << 20), places);
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_GT((*block)["jobs"]["a"]["script"].get_ref<const std::string&>().size(), 2U << 20);
  const auto quoted = parse_yaml("a: '" + repeated("[{,", 1U << 20) + "'\nb: " + repeated("x [ ", 1U << 20), places);
  ASSERT_TRUE(quoted) << quoted.error().message;
  EXPECT_TRUE(parse_yaml("a: |\n" + script + "b: [1, 2]\n", places));
}

// Where the scanner stops, yaml-cpp must reject the text; otherwise a text would be read only in part.
TEST(FlowYaml, ScannerStopsWhereTheParserStops) {
  constexpr std::string_view kPieces[] = {
      "a",     "b: ",   "- ",          "? ",     ": ", "[",    "]",    "{",     "}",       ",",       "\n",
      "\n  ",  "\n ",   "'",           "\"",     "|",  "|2\n", ">-\n", "|+\n",  " ",       "\t",      "#",
      "---\n", "...\n", "-",           "?",      ":",  "x#y",  " #",   "\\",    "''",      "\\\"",    "\r\n",
      "%",     "a:\n",  "key: [a, b]", "[a: b]", "1",  "!",    "@",    "\n---", "\"q\":1", "'x\n y'", "\n\t"};
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto pieces = 1 + random() % 14; pieces > 0; --pieces) text += kPieces[random() % std::size(kPieces)];
    EXPECT_EQ(get_yaml_error(text).find("read as a whole"), std::string::npos) << text;
  }
}

// Every text that differs from a valid one by a few bytes is accepted or rejected without a crash.
TEST(FlowYaml, SurvivesDamagedText) {
  const std::string sound =
      "name: x\njobs:\n  a: {script: \"x\\ny\", type: python}\n  b:\n    needs: [a]\n    log: |\n      hello\n";
  const std::string bytes = "[]{}:,-?&*!|>'\"%@`# \n\t~\\a0\x01\x7f";
  for (std::size_t at = 0; at < sound.size(); ++at) {
    for (char c : bytes) {
      std::string changed = sound;
      changed[at] = c;
      YamlText places;
      (void)parse_yaml(changed, places);
      (void)parse_yaml(sound.substr(0, at) + c, places);
    }
  }
}

}  // namespace
}  // namespace mycojobs
