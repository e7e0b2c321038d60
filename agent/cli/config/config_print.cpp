#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/config/config.h"
#include "domain/codec.h"

namespace mycojobs {
namespace {

// "redis://user:secret@host" without the secret: what is printed is pasted into reports. A password may hold '@' and
// '/'.
std::string without_password(const std::string& text) {
  const auto scheme = text.find("://");
  if (scheme == std::string::npos) return text;
  const auto colon = text.find(':', scheme + 3);
  const auto at = text.rfind('@');
  if (at == std::string::npos || colon > at) return text;
  return text.substr(0, colon + 1) + "***" + text.substr(at);
}

nlohmann::json typed(const ConfigValue& value) {
  if (value.literal) {
    auto parsed = parse_json(value.text);
    return parsed ? std::move(*parsed) : nlohmann::json(value.text);
  }
  const Option* option = find_option(value.name);
  const OptionType type = option ? option->type : OptionType::text;
  if (type == OptionType::flag) return value.text == "true";
  const auto number = [](const std::string& text) { return nlohmann::json(std::strtoull(text.c_str(), nullptr, 10)); };
  if (type == OptionType::count) return number(value.text);
  if (!is_list(type)) return without_password(value.text);
  auto items = nlohmann::json::array();
  const bool ids = std::holds_alternative<std::vector<Id> Settings::*>(option->member);
  for (std::size_t from = 0; from < value.text.size();) {
    const auto comma = std::min(value.text.find(',', from), value.text.size());
    const std::string item = value.text.substr(from, comma - from);
    items.push_back(ids ? number(item) : nlohmann::json(item));
    from = comma + 1;
  }
  return items;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

std::string print_config(const Config& config, bool as_json) {
  if (as_json) {
    auto out = nlohmann::json::object();
    for (const auto& value : config.values) out[value.name] = {{"value", typed(value)}, {"source", value.source}};
    return dump_json(out, 2) + "\n";
  }
  std::size_t width = 0;
  for (const auto& value : config.values) width = std::max(width, value.name.size());
  std::string out;
  for (const auto& value : config.values) {
    // JSON's text, numbers, booleans and lists of these are TOML's too.
    // To write a ceiling down is to set it, so one that nobody wrote is a comment.
    out += value.literal && value.source == "default" ? "# " : "";
    out +=
        padded(padded(value.name, width) + " = " + dump_json(typed(value)), width + 24) + "  # " + value.source + "\n";
  }
  return out;
}

}  // namespace mycojobs
