// No std::filesystem call in the program may throw: an inaccessible folder is a normal condition, while an exception is
// a bug (ARCHITECTURE.md, "Wrong, in three shapes"). This test checks on the sources that each call passes an error
// code.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/build_paths.h"

namespace {

namespace fs = std::filesystem;

// The number of arguments of the overloads with an error code, for each function that throws without one.
const std::map<std::string, std::set<std::size_t>> kWithCode = {{"absolute", {2}},
                                                                {"canonical", {2}},
                                                                {"copy", {3, 4}},
                                                                {"copy_file", {3, 4}},
                                                                {"copy_symlink", {3}},
                                                                {"create_directories", {2}},
                                                                {"create_directory", {2, 3}},
                                                                {"create_directory_symlink", {3}},
                                                                {"create_hard_link", {3}},
                                                                {"create_symlink", {3}},
                                                                {"current_path", {1, 2}},
                                                                {"equivalent", {3}},
                                                                {"exists", {2}},
                                                                {"file_size", {2}},
                                                                {"hard_link_count", {2}},
                                                                {"is_block_file", {2}},
                                                                {"is_character_file", {2}},
                                                                {"is_directory", {2}},
                                                                {"is_empty", {2}},
                                                                {"is_fifo", {2}},
                                                                {"is_other", {2}},
                                                                {"is_regular_file", {2}},
                                                                {"is_socket", {2}},
                                                                {"is_symlink", {2}},
                                                                {"last_write_time", {2, 3}},
                                                                {"permissions", {3, 4}},
                                                                {"proximate", {2, 3}},
                                                                {"read_symlink", {2}},
                                                                {"relative", {2, 3}},
                                                                {"remove", {2}},
                                                                {"remove_all", {2}},
                                                                {"rename", {3}},
                                                                {"resize_file", {3}},
                                                                {"space", {2}},
                                                                {"status", {2}},
                                                                {"symlink_status", {2}},
                                                                {"temp_directory_path", {1}},
                                                                {"weakly_canonical", {2}},
                                                                {"directory_iterator", {0, 2, 3}},
                                                                {"recursive_directory_iterator", {0, 2, 3}}};

// Member functions of a directory entry that access the file system and throw without an argument.
constexpr const char* kMembers =
    "(?:\\.|->)(is_regular_file|is_directory|is_symlink|is_socket|is_fifo|is_other|file_size|last_write_time|"
    "hard_link_count|symlink_status)\\(\\s*\\)";

// Replaces comments and quoted text by blanks; line numbers stay the same.
std::string strip_comments(const std::string& text) {
  std::string out = text;
  char within = 0;  // '/' a line comment, '*' a block comment, '"' and '\'' quotes
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool digits = c == '\'' && i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0;
    if (within == 0) {
      if (c == '/' && (next == '/' || next == '*')) within = next;
      if (c == '"' || (c == '\'' && !digits)) within = c;
      if (within == '/' || within == '*') out[i] = ' ';
      continue;
    }
    if (c != '\n') out[i] = ' ';
    if (within == '/') {
      if (c == '\n') within = 0;
    } else if (within == '*') {
      if (c == '*' && next == '/') out[++i] = ' ', within = 0;
    } else if (c == '\\') {
      if (i + 1 < text.size()) out[++i] = ' ';
    } else if (c == within || c == '\n') {
      within = 0;
    }
  }
  return out;
}

// Returns the text between the bracket at `open` and its partner, split at the commas of that level.
std::vector<std::string> split_arguments(const std::string& code, std::size_t open) {
  std::vector<std::string> all(1);
  int depth = 1;
  for (std::size_t i = open + 1; i < code.size(); ++i) {
    const char c = code[i];
    if (c == ')' || c == '}' || c == ']') --depth;
    if (depth == 0) break;
    if (c == '(' || c == '{' || c == '[') ++depth;
    if (c == ',' && depth == 1) {
      all.emplace_back();
    } else {
      all.back() += c;
    }
  }
  if (all.size() == 1 && all[0].find_first_not_of(" \n") == std::string::npos) all.clear();
  return all;
}

bool is_name(const std::string& argument) {
  static const std::regex kName("\\s*[a-z_][a-z0-9_.]*\\s*");
  return std::regex_match(argument, kName);
}

std::vector<std::string> throwing_calls(const std::string& text) {
  std::vector<std::string> found;
  const auto has = [&text](const char* name) { return text.find(name) != std::string::npos; };
  // A fast path for most sources, since the regular expressions are slow.
  if (!has("filesystem") && !has("fs::") && !has("entry")) return found;
  const std::string code = strip_comments(text);
  const auto report = [&](std::size_t at, const std::string& what) {
    found.push_back(std::to_string(1 + std::count(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(at), '\n')) +
                    ": " + what);
  };
  const auto each = [&code](const std::regex& what, const auto& act) {
    for (std::sregex_iterator it(code.begin(), code.end(), what), end; it != end; ++it) act(*it);
  };
  // Matches a call, or the declaration of an iterator: "directory_iterator entry(folder, error)".
  static const std::regex kCall("(?:std::filesystem|\\bfs)::([a-z_]+)(?:\\s+[a-z_]+)?\\s*([({])");
  each(kCall, [&](const std::smatch& match) {
    const auto row = kWithCode.find(match[1].str());
    if (row == kWithCode.end()) return;
    const auto arguments = split_arguments(code, static_cast<std::size_t>(match.position(2)));
    // Does not access the file system.
    const bool of_status = arguments.size() == 1 && arguments[0].ends_with("status");
    const bool has_checked_arguments =
        row->second.contains(arguments.size()) && (arguments.empty() || is_name(arguments.back()));
    if (!has_checked_arguments && !of_status)
      report(static_cast<std::size_t>(match.position(0)), match[1].str() + " without an error code");
  });
  static const std::regex kRange("for\\s*\\([^;()]*:\\s*(?:std::filesystem|fs)::(?:recursive_)?directory_iterator");
  each(kRange, [&](const std::smatch& match) {
    report(static_cast<std::size_t>(match.position(0)),
           "a range-for over a folder throws as it goes on: use increment(error)");
  });
  static const std::regex kDeclared("directory_iterator\\s+([a-z_]+)\\s*[({]");
  each(kDeclared, [&](const std::smatch& match) {
    const std::regex step("\\+\\+\\s*" + match[1].str() + "\\b|\\b" + match[1].str() + "\\s*\\+\\+");
    each(step, [&](const std::smatch& use) {
      report(static_cast<std::size_t>(use.position(0)), "++ of a directory_iterator throws: use increment(error)");
    });
  });
  static const std::regex kMember(kMembers);
  each(kMember, [&](const std::smatch& match) {
    report(static_cast<std::size_t>(match.position(0)), match[1].str() + "() without an error code");
  });
  static const std::regex kHidden("using\\s+(?:namespace\\s+)?std::filesystem");
  each(kHidden, [&](const std::smatch& match) {
    report(static_cast<std::size_t>(match.position(0)), "hides what is called: write std::filesystem:: or fs::");
  });
  return found;
}

TEST(ThrowingCalls, AreNotUsedInTheProgram) {
  std::size_t files = 0;
  for (const char* folder : {"include", "agent", "executors", "sandbox"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(mj::test::source_folder()) / folder)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      ++files;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      for (const std::string& call : throwing_calls(text.str()))
        ADD_FAILURE() << fs::relative(entry.path(), mj::test::source_folder()).string() << ':' << call;
    }
  }
  EXPECT_GT(files, 100U) << "the sources were not found";
}

TEST(ThrowingCalls, InsertedCallsAreFound) {
  for (const char* text :
       {"if (std::filesystem::exists(path)) return;", "if (fs::is_directory(a(b, c))) x();", "fs::rename(from, to);",
        "fs::create_directories(folder / \"x\");", "const auto home = fs::temp_directory_path();",
        "for (const auto& entry : fs::directory_iterator(folder, error)) x();",
        "for (fs::directory_iterator at(folder, error), end; at != end; ++at) x();",
        "fs::directory_iterator at(folder);", "fs::recursive_directory_iterator(folder, fs::directory_options::none)",
        "if (entry.is_regular_file()) x();", "x(entry->file_size());", "using namespace std::filesystem;",
        "std::filesystem::remove_all(\n    folder)"}) {
    EXPECT_FALSE(throwing_calls(text).empty()) << text;
  }
}

TEST(ThrowingCalls, NonThrowingCallsAreNotReported) {
  for (const char* text :
       {"if (std::filesystem::exists(path, error)) return;",
        "const auto status = fs::status(path, error); if (fs::is_directory(status)) x();",
        "fs::rename(from, folder + \"/\" + hash, failed);", "// fs::exists(path)\n\"fs::exists(path)\"",
        "for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) x();",
        "for (auto at = fs::directory_iterator(folder, error); at != fs::directory_iterator(); x()) y();",
        "x(entry.file_size(error), fs::path(a).filename(), fs::path());", "::rename(a, b); store.exists(key);"}) {
    EXPECT_TRUE(throwing_calls(text).empty()) << text << "\n" << throwing_calls(text).front();
  }
}

}  // namespace
