// The order of the modules and their include rules (ARCHITECTURE.md), checked on the sources.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/build_paths.h"

namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

struct Module {
  std::string name;
  std::string folder;  // with a slash at the end; of main: the file
};

// A module includes only modules above it.
const std::vector<Module> kModules = {
    {"plugin", "include/mycojobs/"},
    {"base", "agent/base/"},
    {"text", "agent/text/"},
    {"net", "agent/net/"},
    {"sandbox", "sandbox/"},
    {"model", "agent/model/"},
    {"security", "agent/security/"},
    {"executors", "executors/"},
    {"telemetry", "agent/telemetry/"},
    {"store", "agent/store/"},
    {"jobs", "agent/jobs/"},
    {"artifacts", "agent/artifacts/"},
    {"flows", "agent/flows/"},
    {"workflows", "agent/workflows/"},
    {"messaging", "agent/messaging/"},
    {"worker", "agent/worker/"},
    {"coordinator", "agent/coordinator/"},
    {"inspect", "agent/inspect/"},
    {"service", "agent/service/"},
    {"api", "agent/api/"},
    {"cli", "agent/cli/"},
    {"main", "agent/main.cpp"},
};

// Processes and servers: only these modules may include them.
const std::map<std::string, Names> kUsers = {
    {"worker", {"cli", "main"}}, {"coordinator", {"cli", "main"}}, {"api", {"cli", "main"}}, {"cli", {"main"}}};

constexpr std::size_t kMaxFolderFiles = 40;

// Headers of libraries and of the kernel that only one module may include, by the prefix of their names.
struct ReservedHeader {
  std::string header;
  std::string place;  // path prefix of the files that may include the header
};
const std::vector<ReservedHeader> kReservedHeaders = {
    {"hiredis", "agent/store/redis/"}, {"linux/seccomp.h", "sandbox/"},
    {"seccomp.h", "sandbox/"},         {"linux/landlock.h", "sandbox/"},
    {"linux/filter.h", "sandbox/"},    {"sys/mount.h", "sandbox/"},
    {"linux/mount.h", "sandbox/"},     {"sched.h", "sandbox/"},
    {"Python.h", "executors/python/"}, {"pybind11/", "executors/python/"},
    {"utf8proc.h", "agent/text/"},     {"yaml-cpp/", "agent/text/"},
    {"date/", "agent/text/"},          {"boost/", "agent/net/http_wire.cpp"},
    {"curl/", "agent/net/"},           {"prometheus/", "agent/telemetry/"},
    {"lua.", "executors/lua/"},        {"support/", "tests/"},
    {"openssl/", "agent/net/"},
};

struct Include {
  std::string target;
  std::size_t line = 0;
};

struct Source {
  std::string path;  // relative to the root
  std::vector<Include> includes;
};

Source read_source(const fs::path& root, const fs::path& file) {
  Source source{fs::relative(file, root).string(), {}};
  std::ifstream in(file);
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::erase_if(line, [](char c) { return c == ' ' || c == '\t'; });
    if (!line.starts_with("#include\"") && !line.starts_with("#include<")) continue;
    const auto end = line.find_first_of("\">", 9);
    source.includes.push_back({line.substr(9, end - 9), number});
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

// The number of the module of a path from the root.
std::optional<std::size_t> find_module(const std::string& path) {
  for (std::size_t at = 0; at < kModules.size(); ++at) {
    if (path.starts_with(kModules[at].folder)) return at;
  }
  return std::nullopt;
}

// Returns the path of an included header from the root, or "" for headers of libraries and of the system.
std::string resolve_include(const std::string& target) {
  for (const char* base : {"agent/", "", "include/"}) {
    if (find_module(base + target) && target.find('/') != std::string::npos) return base + target;
  }
  return "";
}

std::string get_folder(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

bool is_public_sandbox(const std::string& path) {
  return get_folder(path) == "sandbox/" || path == "sandbox/zygote/zygote.h";
}

std::optional<std::string> check_module(const Source& source, const Include& include) {
  const auto from = find_module(source.path);
  if (!from) return "the file is in no module";
  if (include.target.find("..") != std::string::npos) return "goes up by ..";
  const std::string path = resolve_include(include.target);
  const auto to = find_module(path);
  if (!to || to == from) return std::nullopt;
  const std::string &user = kModules[*from].name, &used = kModules[*to].name;
  if (*to > *from) return user + " may not include " + used + ", which is below it";
  const auto users = kUsers.find(used);
  if (users != kUsers.end() && !users->second.contains(user)) return user + " may not include " + used;
  if (used == "sandbox" && user != "main" && !is_public_sandbox(path)) return "no public header of sandbox";
  return std::nullopt;
}

// Headers that are private to a few sources. Only these headers may include the JSON library.
const Names kPrivate = {"text/cbor_map_reader.h", "flows/flow_fold.h", "flows/flow_plan_reader.h",
                        "workflows/workflow_fact_fields.h", "workflows/manifest/manifest_fields.h"};

std::optional<std::string> check_library(const Source& source, const Include& include) {
  for (const auto& reserved : kReservedHeaders) {
    const bool named = include.target == reserved.header ||
                       (!reserved.header.ends_with(".h") && include.target.starts_with(reserved.header));
    const bool by_luahost = reserved.header == "curl/" && source.path.starts_with("executors/lua/luahost/");
    if (named && !by_luahost && !source.path.starts_with(reserved.place)) {
      return "only " + reserved.place + " may include it";
    }
  }
  if (source.path.starts_with("include/mycojobs/") && include.target.find_first_of("/") != std::string::npos) {
    return "a public header must do without it";
  }
  static const Names kHeavy = {"nlohmann/json.hpp", "spdlog/spdlog.h", "CLI/CLI.hpp", "toml++/toml.h",
                               "pybind11/pybind11.h"};
  const std::string name = source.path.starts_with("agent/") ? source.path.substr(6) : source.path;
  const bool header = source.path.ends_with(".h") && !kPrivate.contains(name);
  if (header && kHeavy.contains(include.target)) return "too heavy for a header";
  if (header && kPrivate.contains(include.target)) return "only sources may include it";
  return std::nullopt;
}

// Only main wires the modules together: no other file may include all of these.
bool is_composition_root(const Source& source) {
  Names missing = {"store", "sandbox", "executors", "worker"};
  for (const Include& include : source.includes) {
    if (const auto to = find_module(resolve_include(include.target))) missing.erase(kModules[*to].name);
  }
  return missing.empty() && source.path != "agent/main.cpp";
}

std::vector<std::string> find_violations(const fs::path& root) {
  std::vector<std::string> found;
  for (const Source& source : read_sources(root)) {
    if (is_composition_root(source)) found.push_back(source.path + ": only agent/main.cpp may name all the modules");
    for (const Include& include : source.includes) {
      for (const auto& wrong : {check_module(source, include), check_library(source, include)}) {
        if (wrong) {
          found.push_back(source.path + ':' + std::to_string(include.line) + ": " + include.target + ": " + *wrong);
        }
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Which sub-folders of a module include which. Files directly in the module's folder are shared by the sub-folders, or
// assemble them, and do not count.
std::map<std::string, Names> find_folder_uses(const fs::path& root) {
  std::map<std::string, Names> uses;
  for (const Source& source : read_sources(root)) {
    const auto from = find_module(source.path);
    for (const Include& include : source.includes) {
      const std::string path = resolve_include(include.target);
      const std::string user = get_folder(source.path), used = get_folder(path);
      if (!from || find_module(path) != from || user == used) continue;
      const std::string& top = kModules[*from].folder;
      if (user != top && used != top) uses[user].insert(used);
    }
  }
  return uses;
}

std::set<Names> find_cycles(const std::map<std::string, Names>& uses) {
  std::map<std::string, Names> reached;
  for (const auto& [start, direct] : uses) {
    std::vector<std::string> todo(direct.begin(), direct.end());
    while (!todo.empty()) {
      const std::string next = todo.back();
      todo.pop_back();
      if (!reached[start].insert(next).second) continue;
      const auto more = uses.find(next);
      if (more != uses.end()) todo.insert(todo.end(), more->second.begin(), more->second.end());
    }
  }
  std::set<Names> circles;
  for (const auto& [start, all] : reached) {
    Names circle;
    for (const auto& each : all) {
      const auto back = reached.find(each);
      if (back != reached.end() && back->second.contains(start)) circle.insert(each);
    }
    if (!circle.empty()) circles.insert(circle);
  }
  return circles;
}

TEST(Includes, FollowTheOrderOfTheModules) {
  EXPECT_GT(read_sources(mj::test::source_folder()).size(), 30U) << "the sources were not found";
  for (const auto& violation : find_violations(mj::test::source_folder())) ADD_FAILURE() << violation;
}

TEST(Includes, SubFoldersHaveNoCircle) {
  for (const auto& circle : find_cycles(find_folder_uses(mj::test::source_folder()))) {
    ADD_FAILURE() << ::testing::PrintToString(circle);
  }
}

TEST(Includes, FoldersStaySmall) {
  std::map<std::string, std::size_t> files;
  for (const Source& source : read_sources(mj::test::source_folder())) ++files[get_folder(source.path)];
  EXPECT_EQ(files["include/mycojobs/"], 1U) << "the folder contains only the interface for plugins";
  for (const auto& [folder, count] : files) EXPECT_LE(count, kMaxFolderFiles) << folder;
}

TEST(Includes, NoFileNameOccursTwice) {
  static const Names kTwice = {"main.cpp", "run_job.cpp", "run_job.h"};
  std::map<std::string, std::string> paths;
  for (const Source& source : read_sources(mj::test::source_folder())) {
    const std::string name = source.path.substr(source.path.rfind('/') + 1);
    const auto [place, is_new] = paths.emplace(name, source.path);
    EXPECT_TRUE(is_new || kTwice.contains(name)) << source.path << " and " << place->second;
  }
}

// "1 node(s)" is not allowed: text/plural.h selects singular or plural.
TEST(Texts, CountThingsAsPeopleDo) {
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

class Planted : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mycojobs-includes-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  void write_source(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::vector<std::string> planted(const std::string& path, const std::string& text) {
    fs::remove_all(root_);
    write_source(path, text);
    return find_violations(root_);
  }

  fs::path root_;
};

TEST_F(Planted, WrongModulesAreFound) {
  using Found = std::vector<std::string>;
  EXPECT_EQ(planted("agent/worker/x.cpp", "\n#include \"coordinator/y.h\"\n"),
            (Found{"agent/worker/x.cpp:2: coordinator/y.h: worker may not include coordinator, which is below it"}));
  EXPECT_EQ(planted("agent/coordinator/x.cpp", "#include \"worker/y.h\"\n"),
            (Found{"agent/coordinator/x.cpp:1: worker/y.h: coordinator may not include worker"}));
  EXPECT_EQ(planted("agent/model/x.h", "# include <store/y.h>\n").size(), 1U);
  EXPECT_EQ(planted("sandbox/x.cpp", "#include \"model/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/store/x.cpp", "#include \"sandbox/launcher/cgroup.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/store/x.cpp", "#include \"../worker/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/base/x.cpp", "#include \"agent/text/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("executors/python/x.cpp", "#include \"sandbox/launcher/launcher.h\"\n").size(), 1U);
  EXPECT_EQ(planted("executors/python/x.cpp", "#include \"store/y.h\"\n").size(), 1U);
  EXPECT_EQ(planted("agent/surprise/x.cpp", "#include <string>\n").size(), 1U);
}

TEST_F(Planted, ReservedLibrariesAreFound) {
  for (const char* header :
       {"hiredis/hiredis.h", "seccomp.h", "linux/seccomp.h", "linux/landlock.h", "sys/mount.h", "sched.h", "Python.h",
        "pybind11/embed.h", "lua.hpp", "lua.h", "curl/curl.h", "openssl/ssl.h"}) {
    EXPECT_EQ(planted("agent/worker/x.cpp", "#include <" + std::string(header) + ">\n").size(), 1U) << header;
  }
  EXPECT_EQ(planted("agent/store/x.cpp", "#include \"support/redis/memory_server.h\"\n").size(), 1U);
  EXPECT_EQ(planted("include/mycojobs/x.h", "#include <fmt/core.h>\n").size(), 1U);
  EXPECT_EQ(planted("include/mycojobs/x.h", "#include \"base/fd.h\"\n").size(), 2U);
  EXPECT_EQ(planted("agent/store/x.h", "#include <nlohmann/json.hpp>\n").size(), 1U);
  EXPECT_EQ(planted("agent/store/x.h", "#include \"text/cbor_map_reader.h\"\n").size(), 1U);
}

TEST_F(Planted, ASecondMainIsFound) {
  const std::string all =
      "#include \"store/a.h\"\n#include \"sandbox/a.h\"\n#include \"executors/a.h\"\n#include \"worker/a.h\"\n";
  EXPECT_EQ(planted("agent/cli/other.cpp", all).size(), 1U);
  EXPECT_TRUE(planted("agent/main.cpp", all).empty());
}

TEST_F(Planted, CirclesOfSubFoldersAreFound) {
  write_source("agent/api/rpc/x.h", "#include \"api/http/y.h\"\n");
  write_source("agent/api/http/y.h", "#include \"api/top.h\"\n");
  EXPECT_TRUE(find_cycles(find_folder_uses(root_)).empty());
  write_source("agent/api/http/z.h", "#include \"api/rpc/x.h\"\n");
  EXPECT_EQ(find_cycles(find_folder_uses(root_)), (std::set<Names>{{"agent/api/http/", "agent/api/rpc/"}}));
}

TEST_F(Planted, WhatIsAllowedIsNotReported) {
  EXPECT_TRUE(planted("sandbox/x.cpp", "#include <seccomp.h>\n#include <sched.h>\n#include \"base/fd.h\"\n").empty());
  EXPECT_TRUE(planted("agent/store/redis/x.cpp", "#include <hiredis/hiredis.h>\n#include \"store/store.h\"\n").empty());
  EXPECT_TRUE(
      planted("executors/python/x.cpp", "#include <pybind11/embed.h>\n#include \"sandbox/zygote/zygote.h\"\n").empty());
  EXPECT_TRUE(planted("agent/main.cpp", "#include \"store/x.h\"\n#include \"worker/x.h\"\n").empty());
  EXPECT_TRUE(planted("executors/lua/luahost/x.cpp", "#include <curl/curl.h>\n").empty());
  EXPECT_TRUE(planted("include/mycojobs/x.h", "#include <stdint.h>\n").empty());
}

}  // namespace
