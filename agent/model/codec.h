// Conversion of records to and from Redis hashes and JSON, based on one table of fields per record (record_fields.h).
// Decoding accepts any input: a field that cannot be read keeps its default and is listed in `problems`, and the caller
// decides whether the problem matters. No function throws. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/field_problem.h"
#include "model/records.h"
#include "text/json.h"

namespace mycojobs {

template <class Record>
struct DecodeResult {
  Record record;
  std::vector<FieldProblem> problems;
  bool ok() const { return problems.empty(); }
};

// R is one of the records in model/record_fields.h; FlowNode and Log have no hash form.
template <class R>
DecodeResult<R> decode(const Fields& hash);
// Omits fields that are empty, absent or 0. Enums, booleans and unknown fields are always written.
template <class R>
Fields encode(const R&);
template <class R>
DecodeResult<R> decode_json(const nlohmann::json&);  // accepts typed values, and text where a hash has text
template <class R>
nlohmann::json to_json(const R&);  // the same fields with types; bytes that are not UTF-8 become U+FFFD

std::string_view field_of(const Fields&, std::string_view name);  // empty if the field is absent
std::uint64_t number_of(const Fields&, std::string_view name);    // 0 if the field is absent or not a whole number

}  // namespace mycojobs
