#include "cli/config/config_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/errno_text.h"
#include "base/parse.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {

// No toml++ exception leaves this file.

namespace {

constexpr std::size_t kMaxConfigFileBytes = 1U << 20;  // larger files are rejected

std::string format_position(const std::string& path, const toml::source_region& region) {
  return path + ':' + std::to_string(region.begin.line) + ':' + std::to_string(region.begin.column);
}

// Converts a TOML node to JSON, and records the position of each name. A date or a time becomes text, which no policy
// field accepts.
nlohmann::json to_json_tree(const toml::node& node, const std::string& name, const std::string& path,
                            std::map<std::string, std::string>& positions) {
  positions.emplace(name, format_position(path, node.source()));
  if (const auto* table = node.as_table()) {
    auto out = nlohmann::json::object();
    for (const auto& [key, value] : *table) {
      const std::string child_name = (name.empty() ? "" : name + '.') + std::string(key.str());
      positions.emplace(child_name, format_position(path, key.source()));
      out[std::string(key.str())] = to_json_tree(value, child_name, path, positions);
    }
    return out;
  }
  if (const auto* items = node.as_array()) {
    auto out = nlohmann::json::array();
    for (const auto& item : *items)
      out.push_back(to_json_tree(item, name + '[' + std::to_string(out.size()) + ']', path, positions));
    return out;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* number = node.as_floating_point(); number != nullptr && std::isfinite(number->get()))
    return number->get();
  // Negative numbers stay signed, so that error messages show the original value.
  if (const auto* number = node.as_integer()) {
    if (number->get() >= 0) return static_cast<std::uint64_t>(number->get());
    return number->get();
  }
  // The remaining values have no form in JSON: inf, nan, dates and times.
  std::ostringstream text;
  if (const auto* number = node.as_floating_point()) text << number->get();
  if (const auto* date = node.as_date()) text << date->get();
  if (const auto* time = node.as_time()) text << time->get();
  if (const auto* date_time = node.as_date_time()) text << date_time->get();
  return text.str();
}

PolicyText make_policy_text(const toml::table& table, const std::string& path) {
  PolicyText out;
  out.json = dump_json(to_json_tree(table, "", path, out.positions));
  return out;
}

// Formats a text or an integer. Returns no value for other types.
std::optional<std::string> format_scalar(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  return std::nullopt;
}

// Formats the items of a list as comma-separated text, which is the form of a flag's value. Returns no value if an item
// is empty, has a comma, or is neither text nor an integer.
std::optional<std::string> format_list(const toml::node& node) {
  const auto* items = node.as_array();
  if (items == nullptr) return std::nullopt;
  std::string out;
  for (const auto& item : *items) {
    const auto text = format_scalar(item);
    if (!text || text->empty() || text->find(',') != std::string::npos) return std::nullopt;
    out += (out.empty() ? "" : ",") + *text;
  }
  return out;
}

// Text of a value, or no text if the value does not have the form that `expectation` describes for error messages.
struct TextOrExpectation {
  std::optional<std::string> text;
  std::string_view expectation;
};

// Converts the value of an option to the text that a flag would have.
TextOrExpectation to_text(OptionType type, const toml::node& node) {
  switch (type) {
    case OptionType::text:
      return {node.is_string() ? format_scalar(node) : std::nullopt, "text in quotes"};
    case OptionType::count:
      return {node.is_integer() ? format_scalar(node) : std::nullopt, "a whole number"};
    case OptionType::bytes:
      return {format_scalar(node), "a size: bytes, or text such as \"256MiB\""};
    case OptionType::duration:
      return {format_scalar(node), "a duration: text such as \"30s\""};
    case OptionType::flag:
      if (const auto* flag = node.as_boolean()) return {flag->get() ? "true" : "false", ""};
      return {std::nullopt, "true or false"};
    case OptionType::list:
    case OptionType::texts:
      return {format_list(node), "a list, such as [\"a\", \"b\"]"};
  }
  return {std::nullopt, "known"};
}

// Stores the settings of a configuration file in a FileValues object.
class ConfigFileReader {
 public:
  ConfigFileReader(const std::string& path, FileValues& values) : path_(path), values_(values) {}

  // Reads a table of options. `prefix` is the name of the table with a final dot; "" for the whole file.
  Result<void> read_table(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      if (const Option* option = find_option(resolve_option_name(name))) {
        MJ_CHECK(read_option(*option, name, node));
      } else if (name == "ceiling") {
        MJ_CHECK(read_ceiling(0, name, node));
      } else if (name == "executors" && node.is_table()) {
        for (const auto& [type, entry] : *node.as_table()) {
          const std::string table_name = "executors." + std::string(type.str());
          if (!entry.is_table()) return reject_non_table(entry, table_name);
          values_.executors.emplace(type.str(), make_policy_text(*entry.as_table(), path_));
        }
      } else if (name == "contexts" && node.is_table()) {
        MJ_CHECK(read_contexts(*node.as_table()));
      } else if (node.is_table() && is_section(name + '.')) {
        MJ_CHECK(read_table(*node.as_table(), name + '.'));
      } else {
        return reject(key.source(),
                      "unknown key " + excerpt(name, 80) + ": `mycojobs config print` lists all settings");
      }
    }
    return {};
  }

 private:
  static bool is_section(std::string_view prefix) {
    return std::any_of(options().begin(), options().end(),
                       [&](const Option& option) { return option.name.starts_with(prefix); });
  }
  tl::unexpected<Error> reject(const toml::source_region& region, const std::string& message) const {
    return fail(Code::invalid, format_position(path_, region) + ": " + message);
  }
  tl::unexpected<Error> reject_non_table(const toml::node& node, const std::string& name) const {
    return reject(node.source(), name + ": is not a table: write [" + name + "]");
  }
  Result<void> read_option(const Option& option, const std::string& name, const toml::node& node) {
    const auto [text, expectation] = to_text(option.type, node);
    if (!text) return reject(node.source(), name + ": is not " + std::string(expectation));
    values_.options.push_back({name, *text, format_position(path_, node.source())});
    return {};
  }
  Result<void> read_contexts(const toml::table& contexts) {
    for (const auto& [key, node] : contexts) {
      std::uint64_t id = 0;
      if (!parse_u64(key.str(), id) || id == 0 || id > 4294967295) {
        return reject(key.source(), "contexts: " + excerpt(key.str()) + " is not a context id from 1 to 4294967295");
      }
      const std::string name = "contexts." + std::to_string(id);
      if (!node.is_table()) return reject_non_table(node, name);
      MJ_CHECK(read_context(static_cast<Id>(id), name, *node.as_table()));
    }
    return {};
  }
  Result<void> read_ceiling(Id id, const std::string& name, const toml::node& node) {
    if (!node.is_table()) return reject_non_table(node, name);
    if (!values_.ceilings.emplace(id, make_policy_text(*node.as_table(), path_)).second)
      return reject(node.source(), name + ": is given twice");
    return {};
  }
  // Returns the tables of this kind of all contexts, or null.
  std::map<Id, PolicyText>* find_context_tables(std::string_view kind) {
    if (kind == "python") return &values_.context_python;
    if (kind == "redis_tls") return &values_.context_redis_tls;
    if (kind == "volumes") return &values_.context_volumes;
    return kind == "files" ? &values_.context_files : nullptr;
  }
  Result<void> read_context(Id id, const std::string& name, const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (key.str() == "ceiling") {
        MJ_CHECK(read_ceiling(id, name + ".ceiling", node));
        continue;
      }
      if (auto* const tables = find_context_tables(key.str())) {
        const std::string table_name = name + '.' + std::string(key.str());
        if (!node.is_table()) return reject_non_table(node, table_name);
        if (!tables->emplace(id, make_policy_text(*node.as_table(), path_)).second)
          return reject(node.source(), table_name + ": is given twice");
        continue;
      }
      if (key.str() != "redis") {
        const std::string table_name = name + '.' + std::string(key.str());
        return reject(key.source(),
                      "unknown key " + excerpt(table_name, 80) +
                          ": a context has redis = \"...\", redis_tls, a ceiling, python, volumes and files only");
      }
      const auto text = to_text(OptionType::text, node).text;
      if (!text || text->empty()) return reject(node.source(), name + ".redis: is not an address in quotes");
      const bool is_first =
          values_.context_redis.emplace(id, ConfigValue{name + ".redis", *text, format_position(path_, node.source())})
              .second;
      if (!is_first) return reject(key.source(), name + ": is given twice");
    }
    return {};
  }

  const std::string& path_;
  FileValues& values_;
};

// Parses the text of a policy file in TOML. Returns the policy as JSON, with the position of each field.
Result<PolicyText> read_policy_toml(const std::string& path, const std::string& text) {
  try {
    return make_policy_text(toml::parse(text, path), path);
  } catch (const toml::parse_error& error) {
    return fail(Code::invalid, format_position(path, error.source()) + ": " + std::string(error.description()));
  }
}

}  // namespace

std::string find_position(const PolicyText& text, std::string field) {
  for (;;) {
    if (const auto entry = text.positions.find(field); entry != text.positions.end()) return entry->second;
    // The whole file has the name "" and always has a position, so the loop ends.
    const auto parent_length = field.find_last_of(".[");
    field.resize(parent_length == std::string::npos ? 0 : parent_length);
  }
}

Result<std::string> read_text_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  std::string text;
  char buffer[4096];
  while (file) {
    const std::size_t size = std::fread(buffer, 1, sizeof buffer, file.get());
    if (size == 0 && std::ferror(file.get()) == 0) return text;
    if (size == 0) break;
    text.append(buffer, size);
    if (text.size() > kMaxConfigFileBytes) {
      return fail(Code::too_large, path + ": is longer than " + std::to_string(kMaxConfigFileBytes) + " bytes");
    }
  }
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return fail(Code::not_found, path + ": no such file");
  return fail(Code::io, "cannot read " + path + ": " + errno_text(errno));
}

Result<FileValues> read_config_file(const std::string& path) {
  MJ_TRY(text, read_text_file(path));
  try {
    const toml::table table = toml::parse(text, path);
    FileValues values;
    MJ_CHECK(ConfigFileReader(path, values).read_table(table, ""));
    return values;
  } catch (const toml::parse_error& error) {
    return fail(Code::invalid, format_position(path, error.source()) + ": " + std::string(error.description()));
  }
}

namespace {

// Records the positions of the names in a JSON text. REQUIRES: the text is valid JSON of limited depth.
class JsonPositions {
 public:
  JsonPositions(const std::string& path, std::string_view text, std::map<std::string, std::string>& positions)
      : path_(path), text_(text), positions_(positions) {}

  void read_value(const std::string& name) {
    skip_blanks();
    positions_.emplace(name, current_position());
    if (peek() == '{' || peek() == '[') {
      read_members(name, peek() == '{');
    } else if (peek() == '"') {
      read_string();
    } else {
      offset_ = std::min(text_.find_first_of(",]} \t\r\n", offset_), text_.size());
    }
  }

 private:
  char peek() const { return offset_ < text_.size() ? text_[offset_] : '\0'; }
  void skip_blanks() { offset_ = std::min(text_.find_first_not_of(" \t\r\n", offset_), text_.size()); }
  // Skips a string. Returns the text between the quotes, with unchanged escapes.
  std::string read_string() {
    const std::size_t begin = ++offset_;
    while (offset_ < text_.size() && text_[offset_] != '"') offset_ += text_[offset_] == '\\' ? 2 : 1;
    offset_ = std::min(offset_ + 1, text_.size());
    return std::string(text_.substr(begin, offset_ - 1 - begin));
  }
  void read_members(const std::string& name, bool is_object) {
    ++offset_;
    for (std::size_t i = 0; offset_ < text_.size(); ++i) {
      skip_blanks();
      if (peek() == '}' || peek() == ']') break;
      std::string child_name = name + '[' + std::to_string(i) + ']';
      if (is_object) {
        const std::string position = current_position();
        child_name = (name.empty() ? "" : name + '.') + read_string();
        positions_.emplace(child_name, position);
        skip_blanks();
        ++offset_;  // the colon
      }
      read_value(child_name);
      skip_blanks();
      if (peek() == ',') ++offset_;
    }
    ++offset_;
  }
  std::string current_position() const {
    const std::string_view preceding_text = text_.substr(0, offset_);
    const auto line = std::count(preceding_text.begin(), preceding_text.end(), '\n') + 1;
    const std::size_t line_begin = preceding_text.rfind('\n') + 1;  // npos + 1 is 0
    return path_ + ':' + std::to_string(line) + ':' + std::to_string(preceding_text.size() - line_begin + 1);
  }

  const std::string& path_;
  std::string_view text_;
  std::map<std::string, std::string>& positions_;
  std::size_t offset_ = 0;
};

Result<PolicyText> read_policy_json(const std::string& path, std::string text) {
  PolicyText out;
  if (auto parsed = parse_json(text, kMaxPolicyBytes); !parsed) return fail(parsed.error(), path);
  JsonPositions(path, text, out.positions).read_value("");
  out.json = std::move(text);
  return out;
}

}  // namespace

Result<ParsedPolicy> read_policy_file(const std::string& path) {
  const bool is_toml = path.ends_with(".toml");
  MJ_TRY(text, read_text_file(path));
  if (!is_toml && !path.ends_with(".json")) {
    return fail(Code::invalid, path + ": its name has no known extension: use .toml or .json");
  }
  MJ_TRY(policy, is_toml ? read_policy_toml(path, text) : read_policy_json(path, text));
  ParsedPolicy parsed_policy = read_policy(policy.json, "policy");
  for (FieldProblem& problem : parsed_policy.problems) {
    const std::string field = problem.field == "policy" ? "" : problem.field.substr(sizeof "policy." - 1);
    problem.message.insert(0, find_position(policy, field) + ": ");
  }
  return parsed_policy;
}

}  // namespace mycojobs
