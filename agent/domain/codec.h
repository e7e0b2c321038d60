// Records to and from Redis hashes and JSON, from one table of fields per record (codec.cpp).
// Reading survives whatever another client wrote: a field that cannot be read keeps its default and is named in
// `problems`; the caller decides whether that matters. Nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct FieldProblem {
  std::string field;
  std::string message;  // "timeout: -1 is not a whole number from 1 to 4294967295"
};

template <class Record>
struct Decoded {
  Record record;
  std::vector<FieldProblem> problems;
  bool ok() const { return problems.empty(); }
};

// R is one of the six records, FlowNode or Log (JSON only).
template <class R>
Decoded<R> decode(const Fields& hash);
template <class R>
Fields encode(const R&);  // fields that are empty, absent or 0 are left out; enums, booleans and unknown ones are kept
template <class R>
Decoded<R> decode_json(const nlohmann::json&);  // accepts typed values and, where a hash would have text, text
template <class R>
nlohmann::json to_json(const R&);  // the same fields, typed; bytes that are not UTF-8 become U+FFFD

// Caps depth (64), size and number of values (a short value takes many times its bytes of memory) before parsing,
// refuses duplicate keys; the error names line and column or the limit.
Result<nlohmann::json> parse_json(std::string_view text, std::size_t max_bytes = 16U << 20,
                                  std::size_t max_values = SIZE_MAX);
// The first integer of a JSON text that fits neither int64 nor uint64, which parse_json() can only round to a double.
// Empty: there is none.
std::string_view integer_beyond_64_bits(std::string_view json_text);
// parse_json(), but such an integer is an error that names its digits.
Result<nlohmann::json> parse_exact_json(std::string_view text, std::size_t max_bytes = 16U << 20,
                                        std::size_t max_values = SIZE_MAX);
bool is_json(std::string_view text);  // parse_json() would take it; keys that come twice are not looked for
// Never throws: replaces what is not UTF-8.
std::string dump_json(const nlohmann::json&, int indent = -1);

// What must hold beyond types before a job may run: ids above 0, script and script_type present, timeout not 0,
// names in env_vars without '=' or NUL, ... Empty: fine.
std::vector<FieldProblem> validate(const Job&);
// The part of it that a script host needs: ids, script, script_type, timeout, name, env_vars.
std::vector<FieldProblem> validate_script(const Job&);
std::string_view field_of(const Fields&, std::string_view name);  // empty: it is not there
std::uint64_t number_of(const Fields&, std::string_view name);    // 0: it is not there, or no whole number
std::string join(const std::vector<FieldProblem>&);               // one line

}  // namespace mycojobs
