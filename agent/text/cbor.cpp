#include "text/cbor.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "text/cbor_items.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

Result<void> append_value(std::string& out, const json& value, std::size_t depth);

Result<void> append_text(std::string& out, const std::string& text) {
  if (!is_utf8(text)) return fail(Code::invalid, excerpt(text) + ": is not UTF-8");
  append_cbor_text(out, text);
  return {};
}

Result<void> append_map(std::string& out, const json& value, std::size_t depth) {
  std::vector<std::pair<std::string, const json*>> rows;
  for (const auto& [name, element] : value.items()) {
    std::string key;
    MJ_CHECK(append_text(key, name));
    rows.emplace_back(std::move(key), &element);
  }
  std::sort(rows.begin(), rows.end());
  append_cbor_head(out, CborMajor::map, rows.size());
  for (const auto& [key, element] : rows) {
    out += key;
    MJ_CHECK(append_value(out, *element, depth + 1));
  }
  return {};
}

Result<void> append_integer(std::string& out, const json& value) {
  if (const auto number = value.get<std::int64_t>(); !value.is_number_unsigned() && number < 0) {
    append_cbor_integer(out, number);
  } else {
    append_cbor_head(out, CborMajor::natural, value.get<std::uint64_t>());
  }
  return {};
}

Result<void> append_value(std::string& out, const json& value, std::size_t depth) {
  if (depth > kMaxCborDepth) return fail(Code::invalid, "is deeper than " + std::to_string(kMaxCborDepth) + " levels");
  switch (value.type()) {
    case json::value_t::null:
    case json::value_t::discarded:
      append_cbor_null(out);
      return {};
    case json::value_t::boolean:
      append_cbor_bool(out, value.get<bool>());
      return {};
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return append_integer(out, value);
    case json::value_t::number_float:
      append_cbor_float(out, value.get<double>());
      return {};
    case json::value_t::string:
      return append_text(out, value.get_ref<const std::string&>());
    case json::value_t::binary:
      if (value.get_binary().has_subtype()) return fail(Code::invalid, "a byte string has a subtype");
      append_cbor_head(out, CborMajor::bytes, value.get_binary().size());
      out.append(value.get_binary().begin(), value.get_binary().end());
      return {};
    case json::value_t::array:
      append_cbor_head(out, CborMajor::array, value.size());
      for (const json& element : value) MJ_CHECK(append_value(out, element, depth + 1));
      return {};
    case json::value_t::object:
      break;
  }
  return append_map(out, value, depth);
}

class CborParser {
 public:
  CborParser(std::string_view bytes, const CborLimits& limits) : items_(bytes), values_left_(limits.values) {}

  Result<json> read_document() {
    MJ_TRY(value, next(0));
    MJ_CHECK(items_.check_end());
    return std::move(value);
  }

 private:
  Result<json> next(std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    if (depth > kMaxCborDepth)
      return items_.make_error("it is deeper than " + std::to_string(kMaxCborDepth) + " levels");
    if (values_left_-- == 0) return fail(Code::too_large, "CBOR: it has too many values");
    MJ_TRY(item, items_.next());
    switch (item.kind) {
      case CborItem::Kind::natural:
        return json(item.argument);
      case CborItem::Kind::negative:
        return json(-1 - static_cast<std::int64_t>(item.argument));
      case CborItem::Kind::bytes:
        return json::binary(std::vector<std::uint8_t>(item.text.begin(), item.text.end()));
      case CborItem::Kind::text:
        return json(std::string(item.text));
      case CborItem::Kind::array:
        return array(item.argument, depth);
      case CborItem::Kind::map:
        return map(item.argument, depth);
      case CborItem::Kind::null:
        return json(nullptr);
      case CborItem::Kind::boolean:
        return json(item.argument != 0);
      case CborItem::Kind::number:
        break;
    }
    return json(item.number);
  }

  Result<json> array(std::uint64_t size, std::size_t depth) {
    json values = json::array();
    for (std::uint64_t i = 0; i < size; ++i) {
      MJ_TRY(value, next(depth + 1));
      values.push_back(std::move(value));
    }
    return values;
  }
  Result<json> map(std::uint64_t size, std::size_t depth) {
    json values = json::object();
    std::string_view previous_key;
    for (std::uint64_t i = 0; i < size; ++i) {
      MJ_TRY(name, items_.read_key(previous_key));
      MJ_TRY(value, next(depth + 1));
      values.emplace(std::string(name), std::move(value));
    }
    return values;
  }

  CborItems items_;
  std::size_t values_left_;
};

}  // namespace

Result<std::string> encode_cbor(const json& value) {
  std::string out;
  MJ_CHECK(append_value(out, value, 0));
  return out;
}

Result<json> decode_cbor(std::string_view bytes, const CborLimits& limits) {
  if (bytes.size() > limits.bytes)
    return fail(Code::too_large,
                "CBOR: " + std::to_string(bytes.size()) + " bytes; at most " + std::to_string(limits.bytes));
  return CborParser(bytes, limits).read_document();
}

}  // namespace mycojobs
