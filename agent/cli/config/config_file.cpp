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

// This is the only file that uses toml++. No toml++ exception leaves this file.

namespace {

constexpr std::size_t kMaxFileBytes = 1U << 20;  // larger files are rejected

std::string place(const std::string& path, const toml::source_region& at) {
  return path + ':' + std::to_string(at.begin.line) + ':' + std::to_string(at.begin.column);
}

// Converts a TOML node to JSON. A date or a time becomes text, which no policy field accepts.
nlohmann::json tree_of(const toml::node& node, const std::string& name, const std::string& path,
                       std::map<std::string, std::string>& places) {
  places.emplace(name, place(path, node.source()));
  if (const auto* table = node.as_table()) {
    auto out = nlohmann::json::object();
    for (const auto& [key, value] : *table) {
      const std::string below = (name.empty() ? "" : name + '.') + std::string(key.str());
      places.emplace(below, place(path, key.source()));
      out[std::string(key.str())] = tree_of(value, below, path, places);
    }
    return out;
  }
  if (const auto* items = node.as_array()) {
    auto out = nlohmann::json::array();
    for (const auto& item : *items)
      out.push_back(tree_of(item, name + '[' + std::to_string(out.size()) + ']', path, places));
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
  std::ostringstream text;
  if (const auto* number = node.as_floating_point()) text << number->get();  // inf, nan: not representable in JSON
  if (const auto* date = node.as_date()) text << date->get();
  if (const auto* time = node.as_time()) text << time->get();
  if (const auto* both = node.as_date_time()) text << both->get();
  return text.str();
}

PolicyText policy_text(const toml::table& table, const std::string& path) {
  PolicyText out;
  out.json = dump_json(tree_of(table, "", path, out.places));
  return out;
}

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  return std::nullopt;
}

// Returns the items of a list as comma-separated text, like a flag's value.
std::optional<std::string> list_text(const toml::node& node) {
  const auto* items = node.as_array();
  if (items == nullptr) return std::nullopt;
  std::string out;
  for (const auto& item : *items) {
    const auto text = scalar_text(item);
    if (!text || text->empty() || text->find(',') != std::string::npos) return std::nullopt;
    out += (out.empty() ? "" : ",") + *text;
  }
  return out;
}

struct TypedText {
  std::optional<std::string> text;
  std::string_view expected;
};

TypedText typed_text(OptionType type, const toml::node& node) {
  switch (type) {
    case OptionType::text:
      return {node.is_string() ? scalar_text(node) : std::nullopt, "text in quotes"};
    case OptionType::count:
      return {node.is_integer() ? scalar_text(node) : std::nullopt, "a whole number"};
    case OptionType::bytes:
      return {scalar_text(node), "a size: bytes, or text such as \"256MiB\""};
    case OptionType::duration:
      return {scalar_text(node), "a duration: text such as \"30s\""};
    case OptionType::flag:
      if (const auto* flag = node.as_boolean()) return {flag->get() ? "true" : "false", ""};
      return {std::nullopt, "true or false"};
    case OptionType::list:
    case OptionType::texts:
      return {list_text(node), "a list, such as [\"a\", \"b\"]"};
  }
  return {std::nullopt, "known"};
}

class Reader {
 public:
  Reader(const std::string& path, FileValues& out) : path_(path), out_(out) {}

  Result<void> read_table(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      if (const Option* option = find_option(current_name(name))) {
        MJ_CHECK(read_option(*option, name, node));
      } else if (name == "ceiling") {
        MJ_CHECK(read_ceiling(0, name, node));
      } else if (name == "executors" && node.is_table()) {
        for (const auto& [type, entry] : *node.as_table()) {
          const std::string full = "executors." + std::string(type.str());
          if (!entry.is_table()) return refuse(entry.source(), full + ": is not a table: write [" + full + "]");
          out_.executors.emplace(type.str(), policy_text(*entry.as_table(), path_));
        }
      } else if (name == "contexts" && node.is_table()) {
        MJ_CHECK(read_contexts(*node.as_table()));
      } else if (node.is_table() && is_section(name + '.')) {
        MJ_CHECK(read_table(*node.as_table(), name + '.'));
      } else {
        return refuse(key.source(),
                      "unknown key " + excerpt(name, 80) + ": `mycojobs config print` lists all settings");
      }
    }
    return {};
  }

 private:
  static bool is_section(std::string_view prefix) {
    return std::any_of(options().begin(), options().end(), [&](const Option& o) { return o.name.starts_with(prefix); });
  }
  tl::unexpected<Error> refuse(const toml::source_region& at, const std::string& message) const {
    return fail(Code::invalid, place(path_, at) + ": " + message);
  }
  Result<void> read_option(const Option& option, const std::string& name, const toml::node& node) {
    const auto [text, expected] = typed_text(option.type, node);
    if (!text) return refuse(node.source(), name + ": is not " + std::string(expected));
    out_.options.push_back({name, *text, place(path_, node.source())});
    return {};
  }
  Result<void> read_contexts(const toml::table& contexts) {
    for (const auto& [key, node] : contexts) {
      std::uint64_t id = 0;
      if (!parse_u64(key.str(), id) || id == 0 || id > 4294967295) {
        return refuse(key.source(), "contexts: " + excerpt(key.str()) + " is not a context id from 1 to 4294967295");
      }
      const std::string name = "contexts." + std::to_string(id);
      if (!node.is_table()) return refuse(node.source(), name + ": is not a table: write [" + name + "]");
      MJ_CHECK(read_context(static_cast<Id>(id), name, *node.as_table()));
    }
    return {};
  }
  Result<void> read_ceiling(Id id, const std::string& name, const toml::node& node) {
    if (!node.is_table()) return refuse(node.source(), name + ": is not a table: write [" + name + "]");
    if (!out_.ceilings.emplace(id, policy_text(*node.as_table(), path_)).second)
      return refuse(node.source(), name + ": is given twice");
    return {};
  }
  Result<void> read_context(Id id, const std::string& name, const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (key.str() == "ceiling") {
        MJ_CHECK(read_ceiling(id, name + ".ceiling", node));
        continue;
      }
      if (key.str() == "python") {
        const std::string full = name + ".python";
        if (!node.is_table()) return refuse(node.source(), full + ": is not a table: write [" + full + "]");
        if (!out_.context_python.emplace(id, policy_text(*node.as_table(), path_)).second)
          return refuse(node.source(), full + ": is given twice");
        continue;
      }
      if (key.str() != "redis") {
        const std::string full = name + '.' + std::string(key.str());
        return refuse(key.source(), "unknown key " + excerpt(full, 80) +
                                        ": a context has redis = \"...\", a ceiling and python only");
      }
      const auto text = typed_text(OptionType::text, node).text;
      if (!text || text->empty()) return refuse(node.source(), name + ".redis: is not an address in quotes");
      const bool first =
          out_.context_redis.emplace(id, ConfigValue{name + ".redis", *text, place(path_, node.source())}).second;
      if (!first) return refuse(key.source(), name + ": is given twice");
    }
    return {};
  }

  const std::string& path_;
  FileValues& out_;
};

// Parses a policy file.
Result<PolicyText> read_policy_toml(const std::string& path, const std::string& text) {
  try {
    return policy_text(toml::parse(text, path), path);
  } catch (const toml::parse_error& error) {
    return fail(Code::invalid, place(path, error.source()) + ": " + std::string(error.description()));
  }
}

}  // namespace

std::string position_of(const PolicyText& text, std::string field) {
  for (;;) {
    if (const auto found = text.places.find(field); found != text.places.end()) return found->second;
    const auto end = field.find_last_of(".[");
    field.resize(end == std::string::npos ? 0 : end);
  }
}

Result<std::string> read_text_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  std::string text;
  char block[4096];
  while (file) {
    const std::size_t size = std::fread(block, 1, sizeof block, file.get());
    if (size == 0 && std::ferror(file.get()) == 0) return text;
    if (size == 0) break;
    text.append(block, size);
    if (text.size() > kMaxFileBytes) {
      return fail(Code::too_large, path + ": is longer than " + std::to_string(kMaxFileBytes) + " bytes");
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
    MJ_CHECK(Reader(path, values).read_table(table, ""));
    return values;
  } catch (const toml::parse_error& error) {
    return fail(Code::invalid, place(path, error.source()) + ": " + std::string(error.description()));
  }
}

namespace {

// Records the positions of the names in a JSON text. REQUIRES: the text is valid JSON of limited depth.
class JsonPositions {
 public:
  JsonPositions(const std::string& path, std::string_view text, std::map<std::string, std::string>& places)
      : path_(path), text_(text), job_states_(places) {}

  void value(const std::string& name) {
    skip_blanks();
    job_states_.emplace(name, place());
    if (peek() == '{' || peek() == '[') {
      members(name, peek() == '{');
    } else if (peek() == '"') {
      string();
    } else {
      at_ = std::min(text_.find_first_of(",]} \t\r\n", at_), text_.size());
    }
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_blanks() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  std::string string() {
    const std::size_t from = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_ + 1, text_.size());
    return std::string(text_.substr(from, at_ - 1 - from));
  }
  void members(const std::string& name, bool object) {
    ++at_;
    for (std::size_t i = 0; at_ < text_.size(); ++i) {
      skip_blanks();
      if (peek() == '}' || peek() == ']') break;
      std::string below = name + '[' + std::to_string(i) + ']';
      if (object) {
        const std::string where = place();
        below = (name.empty() ? "" : name + '.') + string();
        job_states_.emplace(below, where);
        skip_blanks();
        ++at_;  // the colon
      }
      value(below);
      skip_blanks();
      if (peek() == ',') ++at_;
    }
    ++at_;
  }
  std::string place() const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
    return path_ + ':' + std::to_string(line) + ':' + std::to_string(before.size() - start + 1);
  }

  const std::string& path_;
  std::string_view text_;
  std::map<std::string, std::string>& job_states_;
  std::size_t at_ = 0;
};

Result<PolicyText> read_policy_json(const std::string& path, std::string text) {
  PolicyText out;
  if (auto parsed = parse_json(text, kMaxPolicyBytes); !parsed) return fail(parsed.error(), path);
  JsonPositions(path, text, out.places).value("");
  out.json = std::move(text);
  return out;
}

}  // namespace

Result<ParsedPolicy> read_policy_file(const std::string& path) {
  const bool toml = path.ends_with(".toml");
  MJ_TRY(text, read_text_file(path));
  if (!toml && !path.ends_with(".json")) {
    return fail(Code::invalid, path + ": its name has no known extension: use .toml or .json");
  }
  MJ_TRY(policy, toml ? read_policy_toml(path, text) : read_policy_json(path, text));
  ParsedPolicy read = read_policy(policy.json, "policy");
  for (FieldProblem& problem : read.problems) {
    const std::string field = problem.field == "policy" ? "" : problem.field.substr(sizeof "policy." - 1);
    problem.message.insert(0, position_of(policy, field) + ": ");
  }
  return read;
}

}  // namespace mycojobs
