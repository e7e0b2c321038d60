// Encoding of facts and snapshots as CBOR maps. For each structure, visit(io, structure) lists the fields once;
// FactEncoder and FactDecoder are the two kinds of `io`. Only workflow_facts.cpp and workflow_state.cpp include this
// file.
//
// An optional field is omitted if its value is empty, 0 or absent.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "text/cbor_map_reader.h"
#include "workflows/workflow_facts.h"

namespace mycojobs::workflows {

class FactEncoder {
 public:
  static constexpr bool kWrites = true;
  nlohmann::json map = nlohmann::json::object();

  void text_field(const char* name, const std::string& value) { map[name] = value; }
  void optional_text_field(const char* name, const std::string& value) {
    if (!value.empty()) map[name] = value;
  }
  void bytes_field(const char* name, const std::string& value) { map[name] = to_binary(value); }
  void optional_bytes_field(const char* name, const std::string& value) {
    if (!value.empty()) map[name] = to_binary(value);
  }
  void number_field(const char* name, std::uint64_t value) { map[name] = value; }
  void optional_number_field(const char* name, std::uint64_t value) {
    if (value != 0) map[name] = value;
  }
  void flag_field(const char* name, bool value) { map[name] = value; }
  template <class Enum, class Parse>
  void enum_field(const char* name, const Enum& value, Parse) {
    map[name] = to_string(value);
  }
  void optional_bytes_field(const char* name, const std::optional<std::string>& value) {
    if (value) map[name] = to_binary(*value);
  }
  void optional_text_field(const char* name, const std::optional<std::string>& value) {
    if (value) map[name] = *value;
  }
  void text_list(const char* name, const auto& values) { map[name] = nlohmann::json(values); }
  template <class T>
  void object_field(const char* name, const T& value) {
    FactEncoder inner;
    visit(inner, value);
    map[name] = std::move(inner.map);
  }
  template <class T>
  void optional_object_field(const char* name, const std::optional<T>& value) {
    if (value) object_field(name, *value);
  }
  template <class List>
  void object_list(const char* name, const List& values) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& value : values) {
      FactEncoder inner;
      visit(inner, value);
      list.push_back(std::move(inner.map));
    }
    map[name] = std::move(list);
  }
};

// end() returns the first problem: a field that is missing, unknown or of another type.
class FactDecoder {
 public:
  static constexpr bool kWrites = false;
  FactDecoder(const nlohmann::json& map, std::string path) : reader_(map, std::move(path)) {}

  void text_field(const char* name, std::string& value) { value = reader_.text(name); }
  void optional_text_field(const char* name, std::string& value) { value = reader_.text_or(name, ""); }
  void bytes_field(const char* name, std::string& value) { value = reader_.bytes(name); }
  void optional_bytes_field(const char* name, std::string& value) { value = reader_.optional_bytes(name).value_or(""); }
  void number_field(const char* name, std::uint64_t& value) { value = reader_.number(name); }
  void optional_number_field(const char* name, std::uint64_t& value) {
    if (reader_.has(name)) value = reader_.number(name);
  }
  void flag_field(const char* name, bool& value) { value = reader_.flag(name); }
  template <class Enum, class Parse>
  void enum_field(const char* name, Enum& value, Parse parse) {
    const auto parsed = parse(reader_.text(name));
    if (parsed)
      value = *parsed;
    else
      reader_.add_problem(name, "is not a known word");
  }
  void optional_bytes_field(const char* name, std::optional<std::string>& value) {
    value = reader_.optional_bytes(name);
  }
  void optional_text_field(const char* name, std::optional<std::string>& value) {
    if (reader_.has(name)) value = reader_.text(name);
  }
  void text_list(const char* name, auto& values) {
    for (const auto& item : reader_.list(name)) {
      if (!item.is_string()) return reader_.add_problem(name, "has something that is not a text");
      values.push_back(item.get<std::string>());
    }
  }
  template <class T>
  void object_field(const char* name, T& value) {
    decode_object(name, reader_.map(name), value);
  }
  template <class T>
  void optional_object_field(const char* name, std::optional<T>& value) {
    if (reader_.has(name)) object_field(name, value.emplace());
  }
  template <class List>
  void object_list(const char* name, List& values) {
    for (const auto& item : reader_.list(name)) decode_object(name, item, values.emplace_back());
  }
  Result<void> end() {
    auto result = reader_.end();
    return result && !nested_error_.empty() ? fail(Code::invalid, nested_error_) : result;
  }

 private:
  template <class T>
  void decode_object(const char* name, const nlohmann::json& map, T& value) {
    FactDecoder decoder(map, reader_.path(name));
    visit(decoder, value);
    if (const auto result = decoder.end(); !result && nested_error_.empty()) nested_error_ = result.error().message;
  }

  MapReader reader_;
  std::string nested_error_;
};

template <class IO, class T>
using VisitedType = std::conditional_t<IO::kWrites, const T, T>;

template <class IO>
void visit(IO& io, VisitedType<IO, InstanceId>& instance) {
  io.text_field("workflow", instance.workflow);
  io.optional_bytes_field("key", instance.key);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InboxEventId>& id) {
  io.number_field("height", id.height);
  io.number_field("slot", id.slot);
}
template <class IO>
void visit(IO& io, VisitedType<IO, Sample>& sample) {
  io.number_field("now_ms", sample.now_ms);
  io.bytes_field("entropy", sample.entropy);
}
template <class IO>
void visit(IO& io, VisitedType<IO, StateRef>& state) {
  io.text_field("hash", state.hash);
  io.number_field("size", state.size);
  io.optional_bytes_field("bytes", state.bytes);
}
template <class IO>
void visit(IO& io, VisitedType<IO, Intent>& intent) {
  io.text_field("hash", intent.hash);
  io.text_field("effect", intent.effect);
  io.bytes_field("params", intent.params);
  io.number_field("index", intent.index);
  io.optional_text_field("issuer_ref", intent.issuer_ref);
}

}  // namespace mycojobs::workflows
