#include "executors/python/packages/script_requirements.h"

// toml++ is compiled into this file without exceptions. The toml++ shared library throws exceptions, which would
// terminate programs that are linked with an unwinder of their own.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <compare>
#include <optional>
#include <utility>

#include "base/parse.h"
#include "model/policy_json.h"
#include "text/split.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

constexpr std::string_view kBlockStart = "# /// script", kBlockEnd = "# ///";
constexpr std::size_t kMaxBlockBytes = 64U << 10;

// PEP 723: a line of a block is "#" or starts with "# ".
bool is_comment_of_block(std::string_view line) { return line == "#" || line.starts_with("# "); }

// Returns the TOML text of a block, and removes the block from the script. The script must begin after the start line
// of the block. PEP 723 defines that the block ends at the last end line of the contiguous comment lines. Returns no
// value if there is no end line.
std::optional<std::string> extract_block(std::string_view& script) {
  std::string text;
  std::optional<std::size_t> block_bytes;  // size of `text` at the latest end line
  std::string_view after_block = script;
  for (std::string_view rest = script; !rest.empty();) {
    const std::string_view line = pop_line(rest);
    if (!is_comment_of_block(line)) break;
    if (line == kBlockEnd) block_bytes = text.size(), after_block = rest;
    if (block_bytes && line == kBlockStart) break;
    text += line.size() > 2 ? line.substr(2) : std::string_view();
    text += '\n';
  }
  script = after_block;
  if (!block_bytes) return std::nullopt;
  text.resize(*block_bytes);
  return text;
}

// Returns the TOML text of the only block of the script, or an empty text if there is no block.
Result<std::string> find_block(std::string_view script) {
  std::optional<std::string> found;
  while (!script.empty()) {
    if (pop_line(script) != kBlockStart) continue;
    auto block = extract_block(script);
    if (!block) return fail(Code::invalid, "the script has \"# /// script\" without a line \"# ///\" after it");
    if (found) return fail(Code::invalid, "the script has more than one block \"# /// script\"");
    found = std::move(block);
  }
  if (found && found->size() > kMaxBlockBytes)
    return fail(Code::invalid, "the block \"# /// script\" has more than 64 KiB");
  return found.value_or("");
}

Result<toml::table> parse_toml(const std::string& text) {
  toml::parse_result parsed = toml::parse(text);
  if (parsed) return std::move(parsed).table();
  return fail(Code::invalid, "the block \"# /// script\" is not valid TOML: line " +
                                 std::to_string(parsed.error().source().begin.line) +
                                 " of the block: " + std::string(parsed.error().description()));
}

Result<void> read_dependencies(const toml::node& node, ScriptRequirements& out) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return fail(Code::invalid, "dependencies: is not a list of texts");
  if (list->size() > policies::kMaxPythonRequirements)
    return fail(Code::invalid,
                "dependencies: more than " + std::to_string(policies::kMaxPythonRequirements) + " packages");
  for (const toml::node& item : *list) {
    const auto* text = item.as_string();
    if (text == nullptr) return fail(Code::invalid, "dependencies: is not a list of texts");
    auto requirement = policies::check_python_requirement(trim_blanks(text->get()));
    if (!requirement) return fail(Code::invalid, "dependencies: " + requirement.error().message);
    out.requirements.push_back(std::move(*requirement));
  }
  add_requirements({}, out);
  return {};
}

// The numeric parts of a version: "3.11" is {3, 11}.
using ReleaseNumbers = std::vector<std::uint64_t>;

// Parses a version. Returns no value for versions with other parts than numbers, such as "3.11rc1".
std::optional<ReleaseNumbers> parse_release_numbers(std::string_view text) {
  ReleaseNumbers numbers;
  for (;;) {
    const std::size_t end = std::min(text.find('.'), text.size());
    std::uint64_t number = 0;
    if (!parse_u64(text.substr(0, end), number)) return std::nullopt;
    numbers.push_back(number);
    if (end == text.size()) return numbers;
    text.remove_prefix(end + 1);
  }
}

// Compares two versions. A shorter version is extended with zeros, so 3.11 equals 3.11.0.
std::strong_ordering compare_release_numbers(ReleaseNumbers a, ReleaseNumbers b) {
  const std::size_t size = std::max(a.size(), b.size());
  a.resize(size);
  b.resize(size);
  return a <=> b;
}

// Returns whether a version begins with the numbers of the prefix: 3.11.2 has the prefix 3.11.
bool has_prefix(ReleaseNumbers version, const ReleaseNumbers& prefix) {
  version.resize(std::max(version.size(), prefix.size()));
  return std::equal(prefix.begin(), prefix.end(), version.begin());
}

// Evaluates one comparison of a specifier, such as ">=3.11" or "==3.*". Returns no value if it cannot be parsed.
std::optional<bool> meets_comparison(const ReleaseNumbers& version, std::string_view text) {
  static constexpr std::string_view kOperators[] = {"===", "~=", "==", "!=", "<=", ">=", "<", ">"};
  const auto found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [text](std::string_view candidate) { return text.starts_with(candidate); });
  if (found == std::end(kOperators)) return std::nullopt;
  std::string_view bound_text = trim_blanks(text.substr(found->size()));
  const bool is_equality = *found == "==" || *found == "!=";
  const bool is_prefix = is_equality && bound_text.ends_with(".*");
  if (is_prefix) bound_text.remove_suffix(2);
  const auto bound = parse_release_numbers(bound_text);
  if (!bound) return std::nullopt;
  const std::strong_ordering ordering = compare_release_numbers(version, *bound);
  if (is_equality) return (is_prefix ? has_prefix(version, *bound) : ordering == 0) == (*found == "==");
  if (*found == "===") return ordering == 0;
  if (*found == "<=") return ordering <= 0;
  if (*found == ">=") return ordering >= 0;
  if (*found == "<") return ordering < 0;
  if (*found == ">") return ordering > 0;
  if (bound->size() < 2) return std::nullopt;
  return ordering >= 0 && has_prefix(version, ReleaseNumbers(bound->begin(), bound->end() - 1));
}

}  // namespace

bool may_have_requirements(std::string_view script) { return script.find(kBlockStart) != std::string_view::npos; }

void add_requirements(const std::vector<std::string>& added, ScriptRequirements& out) {
  out.requirements.insert(out.requirements.end(), added.begin(), added.end());
  std::sort(out.requirements.begin(), out.requirements.end());
  out.requirements.erase(std::unique(out.requirements.begin(), out.requirements.end()), out.requirements.end());
}

Result<ScriptRequirements> parse_requirements(std::string_view script) {
  ScriptRequirements requirements;
  MJ_TRY(block, find_block(script));
  if (!is_utf8(block)) return fail(Code::invalid, "the block \"# /// script\" is not UTF-8");
  MJ_TRY(table, parse_toml(block));
  if (const toml::node* node = table.get("requires-python")) {
    const auto* text = node->as_string();
    if (text == nullptr) return fail(Code::invalid, "requires-python: is not a text, as \">=3.11\"");
    requirements.python_specifier = trim_blanks(text->get());
  }
  if (const toml::node* node = table.get("dependencies")) MJ_CHECK(read_dependencies(*node, requirements));
  return requirements;
}

std::string normalize_package_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool is_separator = c == '-' || c == '_' || c == '.';
    if (is_separator && out.ends_with('-')) continue;
    out += is_separator ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

bool matches_package_pattern(std::string_view name, std::string_view pattern) {
  std::size_t position = 0, index = 0, last_star = std::string_view::npos, star_position = 0;
  while (position < name.size()) {
    if (index < pattern.size() && pattern[index] == '*') {
      last_star = index++;
      star_position = position;
    } else if (index < pattern.size() && pattern[index] == name[position]) {
      ++index;
      ++position;
    } else if (last_star != std::string_view::npos) {
      index = last_star + 1;
      position = ++star_position;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', index) == std::string_view::npos;
}

Result<bool> meets_python_specifier(std::string_view version, std::string_view specifier) {
  const auto version_numbers = parse_release_numbers(version);
  bool is_met = true;
  for (std::string_view rest = specifier; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    const auto result =
        version_numbers ? meets_comparison(*version_numbers, trim_blanks(rest.substr(0, end))) : std::nullopt;
    if (!result)
      return fail(Code::invalid,
                  "requires-python: \"" + std::string(specifier) + "\" is not understood; write \">=3.11\"");
    is_met = is_met && *result;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return is_met;
}

}  // namespace mycojobs
