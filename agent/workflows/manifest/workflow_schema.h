// Schemas of workflows: a subset of JSON Schema, compiled once. A valid value has exactly one encoding. Pure and
// thread-safe; a SchemaSet is immutable after it was built. Specification: seed 003, sections 3.2 and
// 6; docs/workflows/README.md.
//
//   type           null boolean integer number string array object, or a list of them; absent: any value
//   properties, required, additionalProperties (false, the default, or a schema for all others)
//   items, minItems, maxItems, enum, const, minimum, maximum, minLength, maxLength (characters; bytes of a byte string)
//   format: bytes  with type string: a byte string. In JSON it is base64, in CBOR it is a byte string
//   $ref           the name of another schema: ns/Name@version
//   oneOf          a variant: each arm is {title?, $ref} or {title, schema...}. Its value is {"$tag": title, "$value":
//                  a value of the arm}; the tag of an arm without title is the name in its $ref
//   title, description   no effect on values
//
// Canonical form: an integer written as 2.0 becomes 2, where the schema says integer or number; -0.0 becomes 0. NaN and
// infinite numbers are rejected. The other rules are those of text/cbor.h.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mycojobs {

struct DocumentValue;
class DocumentProblems;

inline constexpr std::size_t kMaxSchemaNodes = 10'000;
inline constexpr std::size_t kMaxValueBytes = 1U << 20;  // size as CBOR

// Returns whether the name is ns/name@version: ns of a-z, 0-9, '.' and '-'; name of letters, digits, '.', '_' and '-';
// version of digits and dots.
bool is_workflow_name(std::string_view);
bool is_system_name(std::string_view);  // begins with sys/

// The form of a value: JSON (a request of a user) or CBOR (the engine, a journal).
enum class ValueForm { from_json, from_cbor };

struct CanonicalValue {
  std::shared_ptr<const nlohmann::json> value;  // byte strings are json::binary
  std::string bytes;                            // deterministic CBOR of the value
};

struct VariantArm {
  std::string tag;
  std::string ref;  // empty if the arm has an inline schema
};

class SchemaSet {
 public:
  SchemaSet();  // has the schemas of the system (system_schemas.h)
  ~SchemaSet();
  SchemaSet(SchemaSet&&) noexcept;
  SchemaSet& operator=(SchemaSet&&) noexcept;

  // Adds a schema. Problems are reported with their paths. link() resolves references, so schemas may be added in any
  // order.
  void add(const std::string& name, const DocumentValue& schema);
  // Reports references to unknown schemas, and references that only lead back to themselves.
  void link(DocumentProblems&);

  bool has(std::string_view name) const;
  std::vector<std::string> names() const;  // sorted
  // Errors: not_found (no such schema), invalid ("lines[2].price: is the text "x", not integer"), too_large.
  Result<CanonicalValue> check(std::string_view name, const nlohmann::json&, ValueForm,
                               std::size_t max_bytes = kMaxValueBytes) const;
  // As check(), for a text of JSON, or for CBOR in its deterministic encoding.
  Result<CanonicalValue> check_text(std::string_view name, std::string_view text, ValueForm,
                                    std::size_t max_bytes = kMaxValueBytes) const;
  Result<CanonicalValue> check_bytes(std::string_view name, std::string_view cbor,
                                     std::size_t max_bytes = kMaxValueBytes) const;

  // Returns the arms if the schema is a variant, also through $ref; otherwise nullptr.
  const std::vector<VariantArm>* arms(std::string_view name) const;
  // Returns the tag of the arm that wraps a value of schema `event` for a workflow with the event schema `target`. The
  // tag is empty if both are the same schema. Returns no value if the workflow does not accept `event`.
  std::optional<std::string> find_arm(std::string_view target, std::string_view event) const;
  // Returns whether some value of the schema can have the path ("a.b", "$value.a").
  bool has_path(std::string_view name, std::string_view path) const;
  // Returns whether some value at the path may match the schema `other`. Only types are compared.
  bool can_match(std::string_view name, std::string_view path, std::string_view other) const;
  // Returns whether each value of the schema is a text, a whole number or a byte string.
  bool is_key_schema(std::string_view name) const;
  // Reports choices (enum, const) that the rest of their schema never accepts.
  void check_choices(DocumentProblems&) const;
  // Returns a minimal valid value, as a placeholder. Error unsupported: no value was found, for example for a type that
  // contains itself without an end.
  Result<CanonicalValue> placeholder(std::string_view name) const;

 private:
  struct Body;
  std::unique_ptr<Body> body_;
};

// Returns {"$tag": tag, "$value": value}, or the value itself if the tag is empty.
nlohmann::json wrap_in_arm(const std::string& tag, nlohmann::json value);
// Returns the value at "a.b" or "$value.a", or nullptr.
const nlohmann::json* find_at_path(const nlohmann::json&, std::string_view path);

}  // namespace mycojobs
