#include "cli/policy_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/config/config_file.h"

namespace mycojobs {
namespace {

// Finds the names of a JSON text that is known to be well-formed and not deep.
class JsonPlaces {
 public:
  JsonPlaces(const std::string& path, std::string_view text, std::map<std::string, std::string>& places)
      : path_(path), text_(text), places_(places) {}

  void value(const std::string& name) {
    skip_blanks();
    places_.emplace(name, place());
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
        places_.emplace(below, where);
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
  std::map<std::string, std::string>& places_;
  std::size_t at_ = 0;
};

Result<PolicyText> read_policy_json(const std::string& path, std::string text) {
  PolicyText out;
  if (auto parsed = parse_json(text, kMaxPolicyBytes); !parsed) return fail(parsed.error(), path);
  JsonPlaces(path, text, out.places).value("");
  out.json = std::move(text);
  return out;
}

}  // namespace

Result<PolicyRead> read_policy_file(const std::string& path) {
  const bool toml = path.ends_with(".toml");
  if (!toml && !path.ends_with(".json")) {
    return fail(Code::invalid, path + ": its name does not tell what it is: call it .toml or .json");
  }
  MJ_TRY(text, read_text_file(path));
  MJ_TRY(policy, toml ? read_policy_toml(path, text) : read_policy_json(path, text));
  PolicyRead read = read_policy(policy.json, "policy");
  for (FieldProblem& problem : read.problems) {
    const std::string field = problem.field == "policy" ? "" : problem.field.substr(sizeof "policy." - 1);
    problem.message.insert(0, place_of(policy, field) + ": ");
  }
  return read;
}

}  // namespace mycojobs
