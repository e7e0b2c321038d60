// Reads a CBOR map field by field, by name and type, and rejects fields that the caller does not read. Of the
// headers, only workflows/workflow_fact_fields.h may include this file, because it includes the JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs::workflows {

// Convert a byte string to a binary value of JSON and back.
nlohmann::json to_binary(std::string_view bytes);
std::string to_bytes(const nlohmann::json& binary);
nlohmann::json to_binary_or_null(const std::optional<std::string>&);

// Each function returns the default value of its type after the first problem. end() reports that problem.
class MapReader {
 public:
  MapReader(const nlohmann::json& map, std::string path);

  std::string text(const char* name);
  std::string text_or(const char* name, std::string default_value);
  std::string bytes(const char* name);
  std::optional<std::string> bytes_or_null(const char* name);   // the field is required
  std::optional<std::string> optional_bytes(const char* name);  // the field may be absent
  std::uint64_t number(const char* name);
  std::uint64_t number_or(const char* name, std::uint64_t default_value);
  bool flag(const char* name);
  const nlohmann::json& list(const char* name);
  const nlohmann::json& map(const char* name);
  const nlohmann::json* any(const char* name);  // nullptr if the field is absent
  bool has(const char* name) const;
  // Reports a problem that the caller has found.
  void add_problem(const std::string& name, std::string_view reason);
  std::string path(std::string_view name) const;
  // Error invalid: the first problem, or a field that was not read.
  Result<void> end();

 private:
  const nlohmann::json* find(const char* name, bool required);

  const nlohmann::json& map_;
  std::string path_, problem_;
  std::set<std::string> read_names_;
};

}  // namespace mycojobs::workflows
