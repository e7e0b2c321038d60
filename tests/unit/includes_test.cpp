// The include rules of ARCHITECTURE.md, checked on the sources: each allowed dependency is listed here.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/build_paths.h"

namespace {

namespace fs = std::filesystem;
using Parts = std::set<std::string>;

// The parts that each part may include besides itself. "ports" is include/mycojobs.
const std::map<std::string, Parts> kArrows = {
    {"ports", {}},
    {"base", {"ports"}},
    {"domain", {"ports", "base"}},
    {"metrics", {"ports", "base"}},
    {"traces", {"ports", "base", "domain", "metrics"}},
    {"store", {"ports", "base", "domain", "metrics", "traces"}},
    {"sandbox", {"ports", "base", "domain"}},
    {"transport", {"ports", "base", "domain"}},
    {"prerequisites", {"ports", "base", "domain", "store/keys.h", "store/place.h"}},
    {"executors", {"ports", "base", "domain", "sandbox/zygote.h", "sandbox/helper_rights.h"}},
    {"workflow", {"ports", "base", "domain", "executors/lua/workflowhost/wire.h"}},
    {"worker",
     {"ports", "base", "domain", "metrics", "traces", "store", "sandbox", "transport", "executors", "prerequisites"}},
    {"coordinator",
     {"ports", "base", "domain", "metrics", "store", "transport", "executors", "prerequisites", "workflow"}},
    {"inspect", {"ports", "base", "domain", "store", "sandbox", "executors"}},
    {"service", {"ports", "base", "domain", "store", "transport", "inspect", "coordinator"}},
    {"api",
     {"ports", "base", "domain", "metrics", "store", "transport", "inspect", "worker", "coordinator", "service"}},
    {"cli",
     {"ports", "base", "domain", "metrics", "traces", "store", "sandbox", "transport", "executors", "worker",
      "coordinator", "workflow", "inspect", "service", "api", "prerequisites"}},
};

// Headers of libraries and of the kernel that only one part may include, by the prefix of their names.
struct Reserved {
  std::string header;
  std::string place;  // path prefix of the files that may include the header
  bool exact = false;
};
const std::vector<Reserved> kReserved = {
    {"hiredis", "agent/store/"},
    {"linux/seccomp.h", "sandbox/"},
    {"seccomp.h", "sandbox/"},
    {"linux/landlock.h", "sandbox/"},
    {"linux/filter.h", "sandbox/"},
    {"sys/mount.h", "sandbox/"},
    {"linux/mount.h", "sandbox/"},
    {"sched.h", "sandbox/"},
    {"Python.h", "executors/python/"},
    {"pybind11/", "executors/python/"},
    {"utf8proc.h", "agent/domain/"},
    {"yaml-cpp/", "agent/domain/"},
    {"date/", "agent/domain/"},
    {"boost/", "agent/domain/http_wire.cpp"},
    {"prometheus/", "agent/metrics/"},
    {"lua.", "executors/lua/"},
    {"support/", "tests/"},
};

struct Include {
  std::string target;
  std::size_t line = 0;
};

struct Source {
  std::string path;  // relative to the root
  std::vector<Include> includes;
  std::size_t lines = 0;
};

Source read_source(const fs::path& root, const fs::path& file) {
  Source source{fs::relative(file, root).string(), {}, 0};
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    ++source.lines;
    std::erase_if(line, [](char c) { return c == ' ' || c == '\t'; });
    if (!line.starts_with("#include\"") && !line.starts_with("#include<")) continue;
    const auto end = line.find_first_of("\">", 9);
    source.includes.push_back({line.substr(9, end - 9), source.lines});
  }
  return source;
}

std::vector<Source> read_sources(const fs::path& root) {
  std::vector<Source> sources;
  for (const char* folder : {"include", "agent", "executors", "sandbox"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const auto extension = entry.path().extension();
      if (extension == ".h" || extension == ".cpp" || extension == ".c") {
        sources.push_back(read_source(root, entry.path()));
      }
    }
  }
  return sources;
}

// Both "agent/store/keys.h" and "store/keys.h" belong to store. Returns "" for headers of libraries and the system.
std::string part_of(std::string path) {
  if (path.starts_with("agent/")) path.erase(0, 6);
  if (path.starts_with("include/mycojobs/") || path.starts_with("mycojobs/")) return "ports";
  const std::string part = path.substr(0, path.find('/'));
  return kArrows.contains(part) && path.find('/') != std::string::npos ? part : "";
}

std::optional<std::string> wrong_arrow(const Source& source, const Include& include) {
  const std::string from = part_of(source.path);
  const std::string to = part_of(include.target);
  if (from.empty()) return "the file is in no part that the arrows name";
  if (include.target.find("..") != std::string::npos) return "goes up by ..";
  if (to.empty() || to == from) return std::nullopt;
  const Parts& may = kArrows.at(from);
  if (may.contains(to) || may.contains(include.target)) return std::nullopt;
  return from + " may not include " + to;
}

std::optional<std::string> wrong_library(const Source& source, const Include& include) {
  for (const auto& reserved : kReserved) {
    const bool named = include.target == reserved.header ||
                       (!reserved.header.ends_with(".h") && include.target.starts_with(reserved.header));
    if (named && !source.path.starts_with(reserved.place)) return "only " + reserved.place + " may include it";
  }
  const bool own = part_of(include.target) == "ports";
  const bool standard = include.target.find('/') == std::string::npos && !include.target.ends_with(".h");
  const bool named = include.target == "tl/expected.hpp" || include.target == "nlohmann/json_fwd.hpp" ||
                     include.target == "stdint.h";  // plugin.h is C
  if (part_of(source.path) == "ports" && !own && !standard && !named) return "a public header must do without it";
  static const Parts kHeavy = {"nlohmann/json.hpp", "spdlog/spdlog.h", "CLI/CLI.hpp", "toml++/toml.h",
                               "pybind11/pybind11.h"};
  // Headers shared by several sources of agent/domain; other headers must not include them.
  static const Parts kPrivate = {"domain/flow_plan_read.h", "domain/flow_fold.h", "domain/workflow_fields.h",
                                 "domain/workflow_visit.h", "domain/workflow_reading.h"};
  const bool header = source.path.ends_with(".h") && !kPrivate.contains(source.path.substr(6));
  if (header && kHeavy.contains(include.target)) return "too heavy for a header";
  const std::string room = "agent/" + include.target.substr(0, include.target.find('/') + 1);
  if (kPrivate.contains(include.target) && (!source.path.starts_with(room) || header))
    return "only sources of its own room may include it";
  return std::nullopt;
}

// Only main wires the parts together: no other file may include all of these parts.
bool wires_all(const Source& source) {
  Parts missing = {"store", "sandbox", "executors", "worker"};
  for (const Include& include : source.includes) missing.erase(part_of(include.target));
  return missing.empty() && source.path != "agent/cli/main.cpp";
}

std::vector<std::string> violations(const fs::path& root) {
  std::vector<std::string> found;
  for (const Source& source : read_sources(root)) {
    if (wires_all(source)) found.push_back(source.path + ": only agent/cli/main.cpp may name all the parts");
    for (const Include& include : source.includes) {
      for (const auto& wrong : {wrong_arrow(source, include), wrong_library(source, include)}) {
        if (wrong) {
          found.push_back(source.path + ':' + std::to_string(include.line) + ": " + include.target + ": " + *wrong);
        }
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(Includes, FollowTheModuleOrder) {
  EXPECT_GT(read_sources(mj::test::source_folder()).size(), 30U) << "the sources were not found";
  for (const auto& violation : violations(mj::test::source_folder())) ADD_FAILURE() << violation;
}

// "1 node(s)" is not allowed: base/counted.h selects singular or plural.
TEST(Texts, CountInPlainEnglish) {
  const fs::path root = mj::test::source_folder();
  const std::regex guessed("\"[^\"]*[a-z]\\(s\\)");
  for (const Source& source : read_sources(root)) {
    std::ifstream in(root / source.path);
    std::size_t number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      if (line.find("(s)") == std::string::npos) continue;
      EXPECT_FALSE(std::regex_search(line, guessed)) << source.path << ":" << number << ": " << line;
    }
  }
}

TEST(Includes, ModuleOrderHasNoCycle) {
  Parts done;
  for (std::size_t round = 0; round < kArrows.size(); ++round) {
    for (const auto& [part, may] : kArrows) {
      const bool ready = std::all_of(may.begin(), may.end(), [&](const std::string& each) {
        return done.contains(each.substr(0, each.find('/')));
      });
      if (ready) done.insert(part);
    }
  }
  EXPECT_EQ(done.size(), kArrows.size());
}

class Planted : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mycojobs-includes-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::vector<std::string> planted(const std::string& path, const std::string& text) {
    fs::remove_all(root_);
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
    return violations(root_);
  }

  fs::path root_;
};

TEST_F(Planted, WrongDependenciesAreFound) {
  using Found = std::vector<std::string>;
  EXPECT_EQ(planted("agent/worker/x.cpp", "\n#include \"coordinator/y.h\"\n"),
            (Found{"agent/worker/x.cpp:2: coordinator/y.h: worker may not include coordinator"}));
  EXPECT_EQ(planted("agent/coordinator/x.cpp", "#include \"worker/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/domain/x.h", "# include <store/y.h>\n").size(), 1U);
  EXPECT_EQ(planted("agent/store/x.cpp", "#include \"sandbox/client.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/store/x.cpp", "#include \"../worker/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/base/x.cpp", "#include \"agent/domain/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("executors/python/x.cpp", "#include \"sandbox/client.h\"\n").size(), 1U);
  EXPECT_EQ(planted("executors/python/x.cpp", "#include \"store/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/surprise/x.cpp", "#include <string>\n").size(), 1U);
}

TEST_F(Planted, ReservedLibrariesAreFound) {
  for (const char* header : {"hiredis/hiredis.h", "seccomp.h", "linux/seccomp.h", "linux/landlock.h", "sys/mount.h",
                             "sched.h", "Python.h", "pybind11/embed.h", "lua.hpp", "lua.h"}) {
    EXPECT_EQ(planted("agent/worker/x.cpp", "#include <" + std::string(header) + ">\n").size(), 1U) << header;
  }
  EXPECT_EQ(planted("agent/store/x.cpp", "#include \"support/redis/memory_server.h\"\n").size(), 1U);
  EXPECT_EQ(planted("include/mycojobs/x.h", "#include <fmt/core.h>\n").size(), 1U);
  EXPECT_EQ(planted("include/mycojobs/x.h", "#include \"base/fd.h\"\n").size(), 2U);
  EXPECT_EQ(planted("agent/store/x.h", "#include <nlohmann/json.hpp>\n").size(), 1U);
}

TEST_F(Planted, SecondMainIsFound) {
  const std::string all =
      "#include \"store/a.h\"\n#include \"sandbox/a.h\"\n#include \"executors/a.h\"\n#include \"worker/a.h\"\n";
  EXPECT_EQ(planted("agent/cli/other.cpp", all).size(), 1U);
  EXPECT_TRUE(planted("agent/cli/main.cpp", all).empty());
}

TEST_F(Planted, AllowedIncludesAreNotReported) {
  EXPECT_TRUE(planted("sandbox/x.cpp", "#include <seccomp.h>\n#include <sched.h>\n#include \"base/fd.h\"\n").empty());
  EXPECT_TRUE(planted("agent/store/x.cpp", "#include <hiredis/hiredis.h>\n#include \"mycojobs/store.h\"\n").empty());
  EXPECT_TRUE(
      planted("executors/python/x.cpp", "#include <pybind11/embed.h>\n#include \"sandbox/zygote.h\"\n").empty());
  EXPECT_TRUE(planted("agent/cli/main.cpp", "#include \"store/x.h\"\n#include \"worker/x.h\"\n").empty());
  EXPECT_TRUE(planted("include/mycojobs/x.h", "#include <string>\n#include <tl/expected.hpp>\n").empty());
}

}  // namespace
