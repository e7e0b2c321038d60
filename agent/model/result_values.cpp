#include "model/result_values.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "text/json.h"
#include "text/json_writer.h"
#include "text/utf8.h"

namespace mycojobs {

nlohmann::json to_typed_json(const TextMap& texts, const std::vector<std::string>& json_keys) {
  const std::set<std::string_view> json_key_set(json_keys.begin(), json_keys.end());
  auto out = nlohmann::json::object();
  for (const auto& [key, text] : texts) {
    auto value = json_key_set.contains(key) ? parse_exact_json(text) : Result<nlohmann::json>(to_utf8(text));
    out[to_utf8(key)] = value ? std::move(*value) : nlohmann::json(to_utf8(text));
  }
  return out;
}

std::string to_typed_json_text(const TextMap& texts, const std::vector<std::string>& json_keys) {
  const std::set<std::string_view> json_key_set(json_keys.begin(), json_keys.end());
  std::string out;
  JsonObject object(out);
  for (const auto& [key, text] : texts) {
    std::string& value = object.append_member(key);
    if (json_key_set.contains(key) && is_json(text)) {
      value += text;
    } else {
      append_json(value, text);
    }
  }
  object.end();
  return out;
}

ResultValues parse_result_values(const nlohmann::json& object) {
  ResultValues out;
  if (!object.is_object()) return out;
  for (const auto& [key, value] : object.items()) {
    const auto* text = value.get_ptr<const std::string*>();
    out.texts[key] = text != nullptr ? *text : dump_json(value);
    if (text == nullptr) out.json.push_back(key);
  }
  return out;
}

}  // namespace mycojobs
