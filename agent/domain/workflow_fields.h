// Reading a CBOR map field by field: each is asked for by name and type; what nobody asked for is refused. Only
// workflow_*.cpp need it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs::workflows {

// A byte string, and back.
nlohmann::json binary(std::string_view bytes);
std::string bytes_of(const nlohmann::json& binary);
nlohmann::json binary_or_null(const std::optional<std::string>&);

// Answers defaults once something was wrong; end() says what was, the first of it.
class MapReader {
 public:
  MapReader(const nlohmann::json& map, std::string path);

  std::string text(const char* name);
  std::string text_or(const char* name, std::string otherwise);
  std::string bytes(const char* name);
  std::optional<std::string> bytes_or_null(const char* name);   // the field must be there
  std::optional<std::string> optional_bytes(const char* name);  // it may be missing
  std::uint64_t number(const char* name);
  std::uint64_t number_or(const char* name, std::uint64_t otherwise);
  bool flag(const char* name);
  const nlohmann::json& list(const char* name);
  const nlohmann::json& map(const char* name);
  const nlohmann::json* any(const char* name);  // nullptr: it is missing
  bool has(const char* name) const;
  // Something that the caller saw.
  void wrong(const std::string& name, std::string_view why);
  std::string path(std::string_view name) const;
  // Error invalid: what was wrong, or a field that nobody asked for.
  Result<void> end();

 private:
  const nlohmann::json* find(const char* name, bool required);

  const nlohmann::json& map_;
  std::string path_, problem_;
  std::set<std::string> asked_;
};

}  // namespace mycojobs::workflows
