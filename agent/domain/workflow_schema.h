// Schemas of workflows: a subset of JSON Schema, compiled once; a value that fits has one text of bytes. Pure; any
// thread, a SchemaSet is not changed after it was made. Source: seed 003, 3.2 and 6; the page workflows.md.
//
//   type           null boolean integer number string array object, or a list of them; absent: any value
//   properties, required, additionalProperties (false, the default, or a schema for all others)
//   items, minItems, maxItems, enum, const, minimum, maximum, minLength, maxLength (characters; bytes of a byte string)
//   format: bytes  with type string: a byte string. From JSON it is base64, in CBOR it is a byte string
//   $ref           the name of another schema: ns/Name@version
//   oneOf          a variant: each arm is {title?, $ref} or {title, schema...}. Its value is {"$tag": title, "$value":
//                  what fits the arm}; an arm without title has the name that it refers to as its tag
//   title, description   say nothing of values
//
// Canonical: an integer that came as 2.0 is 2, everywhere where the schema says integer or number; -0.0 is 0. No NaN,
// nothing infinite. The rest is domain/cbor.h.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs {

namespace plans {
struct JsonPath;
class Problems;
}  // namespace plans

inline constexpr std::size_t kMaxSchemaNodes = 10'000;
inline constexpr std::size_t kMaxValueBytes = 1U << 20;  // of CBOR

// ns/name@version: ns of a-z, 0-9, '.' and '-', name of letters, digits, '.', '_' and '-', version of digits and dots.
bool is_workflow_name(std::string_view);
bool is_system_name(std::string_view);  // begins with sys/

// Where a value comes from: JSON (a request of people), or CBOR (the engine, a journal).
enum class ValueForm { from_json, from_cbor };

struct CanonicalValue {
  std::shared_ptr<const nlohmann::json> value;  // byte strings are binary
  std::string bytes;                            // its deterministic CBOR
};

struct VariantArm {
  std::string tag;
  std::string ref;  // empty: the arm has a schema of its own
};

class SchemaSet {
 public:
  SchemaSet();  // the schemas of the system (workflow_system.h)
  ~SchemaSet();
  SchemaSet(SchemaSet&&) noexcept;
  SchemaSet& operator=(SchemaSet&&) noexcept;

  // Adds a schema. Problems are named with their path. References are looked up by link(), so that order is free.
  void add(const std::string& name, const plans::JsonPath& schema);
  // Problems: a reference to nothing, one that only leads back to itself.
  void link(plans::Problems&);

  bool has(std::string_view name) const;
  std::vector<std::string> names() const;  // sorted
  // Errors: not_found (no such schema), invalid ("lines[2].price: is the text "x", not integer"), too_large.
  Result<CanonicalValue> check(std::string_view name, const nlohmann::json&, ValueForm,
                               std::size_t max_bytes = kMaxValueBytes) const;
  // The same for a text: of JSON, or CBOR that must be the one encoding of its value.
  Result<CanonicalValue> check_text(std::string_view name, std::string_view text, ValueForm,
                                    std::size_t max_bytes = kMaxValueBytes) const;
  Result<CanonicalValue> check_bytes(std::string_view name, std::string_view cbor,
                                     std::size_t max_bytes = kMaxValueBytes) const;

  // The arms, if the schema is a variant, through $ref.
  const std::vector<VariantArm>* arms(std::string_view name) const;
  // How a value of `event` is taken by who takes `into`: "" exactly as it is, a tag: wrapped as that arm, nothing: not.
  std::optional<std::string> arm_of(std::string_view into, std::string_view event) const;
  // Whether some value of the schema can have something at the path ("a.b", "$value.a").
  bool has_path(std::string_view name, std::string_view path) const;
  // Whether some value at the path may fit `other`, as far as types tell.
  bool may_fit(std::string_view name, std::string_view path, std::string_view other) const;
  // Whether each value is a text, a whole number or a byte string.
  bool is_of_keys(std::string_view name) const;
  // Problems: a choice (enum, const) that the rest of its schema never lets through.
  void check_choices(plans::Problems&) const;
  // The least value that fits, as a placeholder. Error unsupported: there is none that this finds (a type that contains
  // itself without an end).
  Result<CanonicalValue> placeholder(std::string_view name) const;

 private:
  struct Body;
  std::unique_ptr<Body> body_;
};

// {"$tag": tag, "$value": value}; the value itself if the tag is empty.
nlohmann::json as_arm(const std::string& tag, nlohmann::json value);
// What stands at "a.b" or "$value.a"; nullptr: nothing.
const nlohmann::json* at_path(const nlohmann::json&, std::string_view path);

}  // namespace mycojobs
