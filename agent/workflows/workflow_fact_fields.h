// One table of fields for each part of a fact and of a snapshot, for writing and reading: visit(io, part) names the
// fields. Only workflow_facts.cpp and workflow_state.cpp include this file.
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

// Writes a map.
class FactEncoder {
 public:
  static constexpr bool kWrites = true;
  nlohmann::json map = nlohmann::json::object();

  void text(const char* name, const std::string& value) { map[name] = value; }
  void optional_text_field(const char* name, const std::string& value) {  // omitted if empty
    if (!value.empty()) map[name] = value;
  }
  void bytes(const char* name, const std::string& value) { map[name] = binary(value); }
  void spare_bytes(const char* name, const std::string& value) {
    if (!value.empty()) map[name] = binary(value);
  }
  void number(const char* name, std::uint64_t value) { map[name] = value; }
  void spare_number(const char* name, std::uint64_t value) {  // omitted if 0
    if (value != 0) map[name] = value;
  }
  void flag(const char* name, bool value) { map[name] = value; }
  template <class Words, class Parse>
  void word_of(const char* name, const Words& value, Parse) {
    map[name] = to_string(value);
  }
  void maybe_bytes(const char* name, const std::optional<std::string>& value) {
    if (value) map[name] = binary(*value);
  }
  void maybe_text(const char* name, const std::optional<std::string>& value) {
    if (value) map[name] = *value;
  }
  void texts(const char* name, const auto& all) { map[name] = nlohmann::json(all); }
  template <class T>
  void part(const char* name, const T& value) {
    FactEncoder inner;
    visit(inner, value);
    map[name] = std::move(inner.map);
  }
  template <class T>
  void optional_field(const char* name, const std::optional<T>& value) {
    if (value) part(name, *value);
  }
  template <class All>
  void parts(const char* name, const All& all) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& each : all) {
      FactEncoder inner;
      visit(inner, each);
      list.push_back(std::move(inner.map));
    }
    map[name] = std::move(list);
  }
};

// Reads a map. end() reports the first problem.
class FactDecoder {
 public:
  static constexpr bool kWrites = false;
  FactDecoder(const nlohmann::json& map, std::string path) : in_(map, std::move(path)) {}

  void text(const char* name, std::string& value) { value = in_.text(name); }
  void optional_text_field(const char* name, std::string& value) { value = in_.text_or(name, ""); }
  void bytes(const char* name, std::string& value) { value = in_.bytes(name); }
  void spare_bytes(const char* name, std::string& value) { value = in_.optional_bytes(name).value_or(""); }
  void number(const char* name, std::uint64_t& value) { value = in_.number(name); }
  void spare_number(const char* name, std::uint64_t& value) {
    if (in_.has(name)) value = in_.number(name);
  }
  void flag(const char* name, bool& value) { value = in_.flag(name); }
  template <class Words, class Parse>
  void word_of(const char* name, Words& value, Parse parse) {
    const auto parsed = parse(in_.text(name));
    if (parsed)
      value = *parsed;
    else
      in_.wrong(name, "is not a known word");
  }
  void maybe_bytes(const char* name, std::optional<std::string>& value) { value = in_.optional_bytes(name); }
  void maybe_text(const char* name, std::optional<std::string>& value) {
    if (in_.has(name)) value = in_.text(name);
  }
  void texts(const char* name, auto& all) {
    for (const auto& each : in_.list(name)) {
      if (!each.is_string()) return in_.wrong(name, "has something that is not a text");
      all.push_back(each.get<std::string>());
    }
  }
  template <class T>
  void part(const char* name, T& value) {
    inner(name, in_.map(name), value);
  }
  template <class T>
  void optional_field(const char* name, std::optional<T>& value) {
    if (in_.has(name)) part(name, value.emplace());
  }
  template <class All>
  void parts(const char* name, All& all) {
    for (const auto& each : in_.list(name)) inner(name, each, all.emplace_back());
  }
  Result<void> end() {
    auto outer = in_.end();
    return outer && !inner_.empty() ? fail(Code::invalid, inner_) : outer;
  }

 private:
  template <class T>
  void inner(const char* name, const nlohmann::json& map, T& value) {
    FactDecoder take(map, in_.path(name));
    visit(take, value);
    if (const auto read = take.end(); !read && inner_.empty()) inner_ = read.error().message;
  }

  MapReader in_;
  std::string inner_;
};

template <class IO, class T>
using VisitedType = std::conditional_t<IO::kWrites, const T, T>;

template <class IO>
void visit(IO& io, VisitedType<IO, InstanceId>& cell) {
  io.text("workflow", cell.workflow), io.spare_bytes("key", cell.key);
}
template <class IO>
void visit(IO& io, VisitedType<IO, MailId>& mail) {
  io.number("height", mail.height), io.number("slot", mail.slot);
}
template <class IO>
void visit(IO& io, VisitedType<IO, Sample>& sample) {
  io.number("now_ms", sample.now_ms), io.bytes("entropy", sample.entropy);
}
template <class IO>
void visit(IO& io, VisitedType<IO, StateRef>& state) {
  io.text("hash", state.hash), io.number("size", state.size), io.spare_bytes("bytes", state.bytes);
}
template <class IO>
void visit(IO& io, VisitedType<IO, Intent>& intent) {
  io.text("hash", intent.hash), io.text("effect", intent.effect), io.bytes("params", intent.params);
  io.number("index", intent.index), io.optional_text_field("issuer_ref", intent.issuer_ref);
}

}  // namespace mycojobs::workflows
