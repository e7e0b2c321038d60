#include "domain/cbor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "domain/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

enum Major : std::uint8_t { kUnsigned, kNegative, kBytes, kText, kArray, kMap, kTag, kSimple };
constexpr std::uint8_t kFalse = 0xf4, kTrue = 0xf5, kNull = 0xf6;
constexpr std::uint8_t kHalf = 25, kSingle = 26, kDouble = 27;  // additional information of a float, by its width

void put_big_endian(std::string& out, std::uint64_t value, unsigned bytes) {
  for (unsigned i = bytes; i-- > 0;) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_head(std::string& out, Major major, std::uint64_t argument) {
  const auto first = static_cast<unsigned>(major) << 5;
  if (argument < 24) {
    out += static_cast<char>(first | argument);
    return;
  }
  const unsigned width = argument <= 0xff ? 0 : argument <= 0xffff ? 1 : argument <= 0xffffffff ? 2 : 3;
  out += static_cast<char>(first | (24 + width));
  put_big_endian(out, argument, 1U << width);
}

// The half float that is this number; false: none is.
bool to_half(double value, std::uint16_t& out) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 48 & 0x8000);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (value == 0) return out = sign, true;
  if (std::isinf(value)) return out = static_cast<std::uint16_t>(sign | 0x7c00), true;
  if (exponent > 15 || exponent < -24) return false;
  const int dropped = exponent >= -14 ? 42 : 42 + (-14 - exponent);  // bits of the fraction that a half has no room for
  const std::uint64_t whole = exponent >= -14 ? fraction : fraction | std::uint64_t{1} << 52;
  if ((whole & ((std::uint64_t{1} << dropped) - 1)) != 0) return false;
  const auto kept = static_cast<std::uint16_t>(whole >> dropped);
  out = static_cast<std::uint16_t>(exponent >= -14 ? sign | (exponent + 15) << 10 | kept : sign | kept);
  return true;
}

double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double size = exponent == 0    ? std::ldexp(fraction, -24)
                      : exponent == 31 ? (fraction == 0 ? std::numeric_limits<double>::infinity()
                                                        : std::numeric_limits<double>::quiet_NaN())
                                       : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

void put_float(std::string& out, double value) {
  std::uint16_t half = 0x7e00;
  if (std::isnan(value) || to_half(value, half)) {
    out += static_cast<char>(kSimple << 5 | kHalf);
    return put_big_endian(out, half, 2);
  }
  if (static_cast<double>(static_cast<float>(value)) == value) {
    out += static_cast<char>(kSimple << 5 | kSingle);
    return put_big_endian(out, std::bit_cast<std::uint32_t>(static_cast<float>(value)), 4);
  }
  out += static_cast<char>(kSimple << 5 | kDouble);
  put_big_endian(out, std::bit_cast<std::uint64_t>(value), 8);
}

Result<void> put(std::string& out, const json& value, std::size_t depth);

Result<void> put_text(std::string& out, const std::string& text) {
  if (!is_utf8(text)) return fail(Code::invalid, shown(text) + ": is not UTF-8");
  put_head(out, kText, text.size());
  out += text;
  return {};
}

Result<void> put_map(std::string& out, const json& value, std::size_t depth) {
  std::vector<std::pair<std::string, const json*>> rows;
  for (const auto& [name, each] : value.items()) {
    std::string key;
    MJ_CHECK(put_text(key, name));
    rows.emplace_back(std::move(key), &each);
  }
  std::sort(rows.begin(), rows.end());
  put_head(out, kMap, rows.size());
  for (const auto& [key, each] : rows) {
    out += key;
    MJ_CHECK(put(out, *each, depth + 1));
  }
  return {};
}

Result<void> put_integer(std::string& out, const json& value) {
  if (const auto number = value.get<std::int64_t>(); !value.is_number_unsigned() && number < 0) {
    put_head(out, kNegative, static_cast<std::uint64_t>(-(number + 1)));
  } else {
    put_head(out, kUnsigned, value.get<std::uint64_t>());
  }
  return {};
}

Result<void> put(std::string& out, const json& value, std::size_t depth) {
  if (depth > kMaxCborDepth) return fail(Code::invalid, "is deeper than " + std::to_string(kMaxCborDepth) + " levels");
  switch (value.type()) {
    case json::value_t::null:
    case json::value_t::discarded:
      out += static_cast<char>(kNull);
      return {};
    case json::value_t::boolean:
      out += static_cast<char>(value.get<bool>() ? kTrue : kFalse);
      return {};
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return put_integer(out, value);
    case json::value_t::number_float:
      put_float(out, value.get<double>());
      return {};
    case json::value_t::string:
      return put_text(out, value.get_ref<const std::string&>());
    case json::value_t::binary:
      if (value.get_binary().has_subtype()) return fail(Code::invalid, "a byte string has a subtype");
      put_head(out, kBytes, value.get_binary().size());
      out.append(value.get_binary().begin(), value.get_binary().end());
      return {};
    case json::value_t::array:
      put_head(out, kArray, value.size());
      for (const json& each : value) MJ_CHECK(put(out, each, depth + 1));
      return {};
    case json::value_t::object:
      break;
  }
  return put_map(out, value, depth);
}

class Reading {
 public:
  Reading(std::string_view bytes, const CborLimits& limits) : bytes_(bytes), values_left_(limits.values) {}

  Result<json> whole() {
    MJ_TRY(value, next(0));
    if (at_ != bytes_.size()) return wrong("something follows the value");
    return std::move(value);
  }

 private:
  struct Head {
    Major major = kUnsigned;
    std::uint8_t info = 0;
    std::uint64_t argument = 0;
  };

  tl::unexpected<Error> wrong(const std::string& why) const {
    return fail(Code::invalid, "CBOR, byte " + std::to_string(at_) + ": " + why);
  }
  std::size_t left() const { return bytes_.size() - at_; }

  Result<std::uint64_t> big_endian(unsigned width) {
    if (left() < width) return wrong("it ends early");
    std::uint64_t value = 0;
    for (unsigned i = 0; i < width; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes_[at_++]);
    return value;
  }

  Result<Head> head() {
    MJ_TRY(first, big_endian(1));
    Head head{static_cast<Major>(first >> 5), static_cast<std::uint8_t>(first & 0x1f), first & 0x1f};
    if (head.info < 24) return head;
    if (head.info > 27) return wrong("a length that is not given in front");
    MJ_TRY(argument, big_endian(1U << (head.info - 24)));
    head.argument = argument;
    if (head.major == kSimple) return head;
    constexpr std::uint64_t kLeast[] = {24, 0x100, 0x10000, 0x100000000};
    if (argument < kLeast[head.info - 24]) return wrong("a number in more bytes than it needs");
    return head;
  }

  Result<json> next(std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
    if (depth > kMaxCborDepth) return wrong("it is deeper than " + std::to_string(kMaxCborDepth) + " levels");
    if (values_left_-- == 0) return fail(Code::too_large, "CBOR: it has too many values");
    MJ_TRY(head, this->head());
    switch (head.major) {
      case kUnsigned:
        return json(head.argument);
      case kNegative:
        if (head.argument > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
          return wrong("an integer below -2^63");
        return json(-1 - static_cast<std::int64_t>(head.argument));
      case kBytes: {
        MJ_TRY(bytes, stretch(head.argument));
        return json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
      }
      case kText: {
        MJ_TRY(text, this->text(head));
        return json(std::move(text));
      }
      case kArray:
        return array(head.argument, depth);
      case kMap:
        return map(head.argument, depth);
      case kTag:
        return wrong("a tag");
      case kSimple:
        break;
    }
    return simple(head);
  }

  Result<std::string_view> stretch(std::uint64_t size) {
    if (size > left()) return wrong("it ends early");
    const std::string_view found = bytes_.substr(at_, size);
    at_ += size;
    return found;
  }
  Result<std::string> text(const Head& head) {
    MJ_TRY(bytes, stretch(head.argument));
    if (!is_utf8(bytes)) return wrong("a text that is not UTF-8");
    return std::string(bytes);
  }
  Result<json> array(std::uint64_t size, std::size_t depth) {
    if (size > left()) return wrong("it ends early");  // each has a byte at least
    json values = json::array();
    for (std::uint64_t i = 0; i < size; ++i) {
      MJ_TRY(value, next(depth + 1));
      values.push_back(std::move(value));
    }
    return values;
  }
  Result<json> map(std::uint64_t size, std::size_t depth) {
    if (size > left() / 2) return wrong("it ends early");
    json values = json::object();
    std::string_view last;
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::size_t begin = at_;
      MJ_TRY(head, this->head());
      if (head.major != kText) return wrong("a key that is no text");
      MJ_TRY(name, text(head));
      const std::string_view key = bytes_.substr(begin, at_ - begin);
      if (i > 0 && key <= last) return wrong(key == last ? "a key stands twice" : "keys are not in their order");
      last = key;
      MJ_TRY(value, next(depth + 1));
      values.emplace(std::move(name), std::move(value));
    }
    return values;
  }
  Result<json> simple(const Head& head) {
    const std::size_t end = at_;
    switch (head.info) {
      case kFalse & 0x1f:
        return json(false);
      case kTrue & 0x1f:
        return json(true);
      case kNull & 0x1f:
        return json(nullptr);
      case kHalf:
      case kSingle:
      case kDouble:
        break;
      default:
        return wrong("a simple value that JSON has not");
    }
    const double value = head.info == kHalf     ? from_half(static_cast<std::uint16_t>(head.argument))
                         : head.info == kSingle ? std::bit_cast<float>(static_cast<std::uint32_t>(head.argument))
                                                : std::bit_cast<double>(head.argument);
    std::string shortest;
    put_float(shortest, value);
    const std::size_t own = 1 + (std::size_t{1} << (head.info - 24));
    if (bytes_.substr(end - own, own) != shortest) return wrong("a float in more bytes than it needs");
    return json(value);
  }

  std::string_view bytes_;
  std::size_t at_ = 0, values_left_;
};

}  // namespace

Result<std::string> encode_cbor(const json& value) {
  std::string out;
  MJ_CHECK(put(out, value, 0));
  return out;
}

Result<json> decode_cbor(std::string_view bytes, const CborLimits& limits) {
  if (bytes.size() > limits.bytes)
    return fail(Code::too_large,
                "CBOR: " + std::to_string(bytes.size()) + " bytes; at most " + std::to_string(limits.bytes));
  return Reading(bytes, limits).whole();
}

}  // namespace mycojobs
