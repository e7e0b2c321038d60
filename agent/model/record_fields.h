// The fields of the records, from agent/model/fields.toml. visit(record, visitor) calls visitor(name, member) or
// visitor(name, member, JsonTextStyle) for each field, in the order in which fields are written. Only codec.cpp
// includes this file.
#pragma once

#include <array>
#include <string_view>
#include <type_traits>
#include <utility>

#include "model/records.h"

namespace mycojobs {

// The JSON form of a field whose value is text.
enum class JsonTextStyle {
  plain,        // text, or the form of the type if the field is not text
  json_object,  // text in the record and in the hash, an object in JSON
  json_any,     // text in the record and in the hash, an object or a list in JSON
};

template <class R, class Record>
concept IsRecord = std::is_same_v<std::remove_const_t<R>, Record>;
template <class R>
concept AnyRecord = IsRecord<R, Actor> || IsRecord<R, Context> || IsRecord<R, Job> || IsRecord<R, FlowNode> ||
    IsRecord<R, Flow> || IsRecord<R, Log> || IsRecord<R, Message> || IsRecord<R, Runner>;

#include "model/record_visitors.inc"

// A log line is written with all fields, including empty ones, because readers of a stream expect every field in each
// line.
template <class R>
inline constexpr bool kWritesEmptyFields = std::is_same_v<R, Log>;

// Alternative field names that requests may use, with the real names.
template <class R>
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 0> kAliases{};
template <>
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kAliases<Job>{{
    {"payload", "script"},
    {"executor", "script_type"},
    {"depends", "dependends"},
    {"depends_on", "dependends"},
}};

}  // namespace mycojobs
