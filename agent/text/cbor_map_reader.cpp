#include "text/cbor_map_reader.h"

#include <utility>
#include <vector>

#include "text/utf8.h"

namespace mycojobs::workflows {

using nlohmann::json;

json to_binary(std::string_view bytes) { return json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end())); }
std::string to_bytes(const json& binary) {
  const auto& bytes = binary.get_binary();
  return {bytes.begin(), bytes.end()};
}
json to_binary_or_null(const std::optional<std::string>& bytes) { return bytes ? to_binary(*bytes) : json(nullptr); }

MapReader::MapReader(const json& map, std::string path) : map_(map), path_(std::move(path)) {
  if (!map_.is_object()) problem_ = (path_.empty() ? "it" : path_) + " is not a map";
}

std::string MapReader::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + '.' + std::string(name);
}
void MapReader::add_problem(const std::string& name, std::string_view reason) {
  if (problem_.empty()) problem_ = path(name) + ' ' + std::string(reason);
}
bool MapReader::has(const char* name) const { return map_.is_object() && map_.contains(name); }

const json* MapReader::find(const char* name, bool required) {
  read_names_.insert(name);
  if (!has(name)) {
    if (required) add_problem(name, "is missing");
    return nullptr;
  }
  return &map_.at(name);
}
const json* MapReader::any(const char* name) { return find(name, false); }

std::string MapReader::text(const char* name) {
  const json* field = find(name, true);
  if (field == nullptr) return {};
  if (!field->is_string()) return add_problem(name, "is not a text"), std::string();
  return field->get<std::string>();
}
std::string MapReader::text_or(const char* name, std::string default_value) {
  read_names_.insert(name);
  return has(name) ? text(name) : std::move(default_value);
}
std::string MapReader::bytes(const char* name) {
  const json* field = find(name, true);
  if (field == nullptr) return {};
  if (!field->is_binary()) return add_problem(name, "is not a byte string"), std::string();
  return to_bytes(*field);
}
std::optional<std::string> MapReader::bytes_or_null(const char* name) {
  const json* field = find(name, true);
  if (field == nullptr || field->is_null()) return std::nullopt;
  return bytes(name);
}
std::optional<std::string> MapReader::optional_bytes(const char* name) {
  read_names_.insert(name);
  if (!has(name)) return std::nullopt;
  return bytes(name);
}
std::uint64_t MapReader::number(const char* name) {
  const json* field = find(name, true);
  if (field == nullptr) return 0;
  if (!field->is_number_integer() || (!field->is_number_unsigned() && field->get<std::int64_t>() < 0))
    return add_problem(name, "is not a whole number from 0"), 0;
  return field->get<std::uint64_t>();
}
std::uint64_t MapReader::number_or(const char* name, std::uint64_t default_value) {
  read_names_.insert(name);
  return has(name) ? number(name) : default_value;
}
bool MapReader::flag(const char* name) {
  const json* field = find(name, true);
  if (field == nullptr) return false;
  if (!field->is_boolean()) return add_problem(name, "is neither true nor false"), false;
  return field->get<bool>();
}
const json& MapReader::list(const char* name) {
  static const json kEmpty = json::array();
  const json* field = find(name, true);
  if (field == nullptr) return kEmpty;
  if (!field->is_array()) return add_problem(name, "is not a list"), kEmpty;
  return *field;
}
const json& MapReader::map(const char* name) {
  static const json kEmpty = json::object();
  const json* field = find(name, true);
  if (field == nullptr) return kEmpty;
  if (!field->is_object()) return add_problem(name, "is not a map"), kEmpty;
  return *field;
}
Result<void> MapReader::end() {
  if (problem_.empty() && map_.is_object()) {
    for (const auto& [name, value] : map_.items())
      if (!read_names_.contains(name)) add_problem(to_ascii(name, 80), "is an unknown field");
  }
  if (!problem_.empty()) return fail(Code::invalid, problem_);
  return {};
}

}  // namespace mycojobs::workflows
