#include "store/objects/object_index.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/parse.h"
#include "base/random.h"
#include "text/json.h"
#include "text/search_words.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFullText = 512, kTextPrefix = 256;

std::string escape(std::string_view text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (unsigned char c : text) {
    if (c >= 0x20 && c != 0x7f && c != '%') {
      out += static_cast<char>(c);
    } else {
      out += {'%', kDigits[c >> 4], kDigits[c & 15]};
    }
  }
  return out;
}

std::string encode_number(double number) {
  constexpr std::uint64_t kSign = 1ULL << 63;
  const auto bits = std::bit_cast<std::uint64_t>(number + 0.0);  // turns -0 into 0
  const std::uint64_t ascending_bits = (bits & kSign) != 0 ? ~bits : bits | kSign;
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(ascending_bits >> shift);
  return to_hex(bytes);
}

const json* find_at_path(const json& object, std::string_view path) {
  const json* value = &object;
  for (;;) {
    if (!value->is_object()) return nullptr;
    const auto dot = path.find('.');
    const auto member = value->find(std::string(path.substr(0, dot)));
    if (member == value->end()) return nullptr;
    value = &*member;
    if (dot == std::string_view::npos) return value;
    path.remove_prefix(dot + 1);
  }
}

std::optional<ObjectValue> to_object_value(const json* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>();
  return std::nullopt;
}

Result<json> parse_object(std::string_view text) {
  MJ_TRY(value, parse_json(text));
  if (!value.is_object()) return fail(Code::invalid, "is not a JSON object");
  return std::move(value);
}

}  // namespace

std::string index_value(const ObjectValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "b1" : "b0";
  if (const auto* number = std::get_if<double>(&value)) return "n" + encode_number(*number);
  const std::string& text = std::get<std::string>(value);
  if (text.size() <= kMaxFullText) return "t" + escape(text);
  return "l" + escape(text.substr(0, kTextPrefix)) + "%" + std::to_string(text.size());
}

Result<std::string> index_entries(std::string_view json_text, const DeclaredFields& declared) {
  MJ_TRY(object, parse_object(json_text));
  std::string entries;
  for (const std::string& field : declared.index) {
    const auto value = to_object_value(find_at_path(object, field));
    if (value) entries += field + '\2' + index_value(*value) + '\3';
  }
  std::set<std::string> words;
  for (const std::string& field : declared.text) {
    const json* value = find_at_path(object, field);
    if (value != nullptr && value->is_string()) add_search_words(value->get_ref<const std::string&>(), words);
  }
  for (const std::string& word : words) entries += '\2' + word + '\3';
  return entries;
}

bool has_value(std::string_view json_text, std::string_view field, const ObjectValue& expected) {
  const auto object = parse_object(json_text);
  return object && to_object_value(find_at_path(*object, field)) == expected;
}

Result<std::string> object_with_id(std::string_view json_text, const std::string& id) {
  MJ_TRY(object, parse_object(json_text));
  object["id"] = id;
  std::string out = dump_json(object);
  if (out.size() > kMaxObjectBytes) {
    return fail(Code::too_large, "is " + std::to_string(out.size()) + " bytes of JSON, and an object may have " +
                                     std::to_string(kMaxObjectBytes));
  }
  return out;
}

bool is_object_json(std::string_view json_text) { return parse_object(json_text).has_value(); }

Result<void> check_object_name(std::string_view subject, std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= 32 && name[0] >= 'a' && name[0] <= 'z' &&
      std::all_of(name.begin(), name.end(), is_allowed)) {
    return {};
  }
  return fail(Code::invalid, std::string(subject) + ": " + excerpt(name) +
                                 " is not a valid name: use 1 to 32 of a-z, 0-9, _ and -, with a letter first");
}

Result<void> check_object_id(std::string_view subject, std::string_view id) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (!id.empty() && id.size() <= kMaxObjectIdBytes && std::none_of(id.begin(), id.end(), is_control) && is_utf8(id)) {
    return {};
  }
  return fail(Code::invalid, std::string(subject) + ": " + excerpt(id) +
                                 " is not a valid id: use 1 to 128 bytes of UTF-8 without control characters");
}

Result<void> check_object_field(std::string_view subject, std::string_view field) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (!field.empty() && field.size() <= kMaxFieldBytes && std::none_of(field.begin(), field.end(), is_control) &&
      is_utf8(field) && field.front() != '.' && field.back() != '.' && field.find("..") == std::string_view::npos) {
    return {};
  }
  return fail(Code::invalid,
              std::string(subject) + ": " + excerpt(field) +
                  " is not a valid field: use a path like address.city of 1 to 128 bytes without control characters");
}

std::string make_object_id() {
  std::string hex = random_hex(16);
  hex[12] = '4';
  constexpr std::string_view kVariants = "89ab";
  hex[16] = kVariants[static_cast<unsigned char>(hex[16]) % 4];
  return hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" + hex.substr(16, 4) + "-" +
         hex.substr(20);
}

}  // namespace mycojobs
