#include "text/cbor_items.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "text/cbor.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::uint8_t kFalse = 0xf4, kTrue = 0xf5, kNull = 0xf6;
constexpr std::uint8_t kHalf = 25, kSingle = 26, kDouble = 27;  // values of Head::info of a float, by width
constexpr unsigned kSimpleBits = static_cast<unsigned>(CborMajor::simple) << 5;

void append_big_endian(std::string& out, std::uint64_t value, unsigned bytes) {
  for (unsigned i = bytes; i-- > 0;) out += static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace

void append_cbor_head(std::string& out, CborMajor major, std::uint64_t argument) {
  const auto first = static_cast<unsigned>(major) << 5;
  if (argument < 24) {
    out += static_cast<char>(first | argument);
    return;
  }
  const unsigned width = argument <= 0xff ? 0 : argument <= 0xffff ? 1 : argument <= 0xffffffff ? 2 : 3;
  out += static_cast<char>(first | (24 + width));
  append_big_endian(out, argument, 1U << width);
}

namespace {

// Converts the number to a half float. Returns false if a half float cannot represent the number exactly.
bool to_half(double value, std::uint16_t& out) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 48 & 0x8000);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (value == 0) return out = sign, true;
  if (std::isinf(value)) return out = static_cast<std::uint16_t>(sign | 0x7c00), true;
  if (exponent > 15 || exponent < -24) return false;
  const int dropped = exponent >= -14 ? 42 : 42 + (-14 - exponent);  // fraction bits that do not fit into a half float
  const std::uint64_t significand = exponent >= -14 ? fraction : fraction | std::uint64_t{1} << 52;
  if ((significand & ((std::uint64_t{1} << dropped) - 1)) != 0) return false;
  const auto rounded = static_cast<std::uint16_t>(significand >> dropped);
  out = static_cast<std::uint16_t>(exponent >= -14 ? sign | (exponent + 15) << 10 | rounded : sign | rounded);
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

}  // namespace

void append_cbor_float(std::string& out, double value) {
  std::uint16_t half = 0x7e00;
  if (std::isnan(value) || to_half(value, half)) {
    out += static_cast<char>(kSimpleBits | kHalf);
    return append_big_endian(out, half, 2);
  }
  if (static_cast<double>(static_cast<float>(value)) == value) {
    out += static_cast<char>(kSimpleBits | kSingle);
    return append_big_endian(out, std::bit_cast<std::uint32_t>(static_cast<float>(value)), 4);
  }
  out += static_cast<char>(kSimpleBits | kDouble);
  append_big_endian(out, std::bit_cast<std::uint64_t>(value), 8);
}

void append_cbor_integer(std::string& out, std::int64_t value) {
  if (value < 0) return append_cbor_head(out, CborMajor::negative, static_cast<std::uint64_t>(-(value + 1)));
  append_cbor_head(out, CborMajor::natural, static_cast<std::uint64_t>(value));
}

void append_cbor_bytes(std::string& out, std::string_view bytes) {
  append_cbor_head(out, CborMajor::bytes, bytes.size());
  out += bytes;
}

void append_cbor_text(std::string& out, std::string_view text) {
  append_cbor_head(out, CborMajor::text, text.size());
  out += text;
}

void append_cbor_bool(std::string& out, bool value) { out += static_cast<char>(value ? kTrue : kFalse); }
void append_cbor_null(std::string& out) { out += static_cast<char>(kNull); }

tl::unexpected<Error> CborItems::make_error(const std::string& reason) const {
  return fail(Code::invalid, "CBOR, byte " + std::to_string(position_) + ": " + reason);
}

Result<std::uint64_t> CborItems::read_big_endian(unsigned width) {
  if (remaining() < width) return make_error("it ends early");
  std::uint64_t value = 0;
  for (unsigned i = 0; i < width; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes_[position_++]);
  return value;
}

Result<CborItems::Head> CborItems::read_head() {
  MJ_TRY(first, read_big_endian(1));
  Head head{static_cast<CborMajor>(first >> 5), static_cast<std::uint8_t>(first & 0x1f), first & 0x1f};
  if (head.info < 24) return head;
  if (head.info > 27) return make_error("a length that is not given in front");
  MJ_TRY(argument, read_big_endian(1U << (head.info - 24)));
  head.argument = argument;
  if (head.major == CborMajor::simple) return head;
  constexpr std::uint64_t kMinValues[] = {24, 0x100, 0x10000, 0x100000000};
  if (argument < kMinValues[head.info - 24]) return make_error("a number in more bytes than it needs");
  return head;
}

Result<std::string_view> CborItems::read_bytes(std::uint64_t size) {
  if (size > remaining()) return make_error("it ends early");
  const std::string_view bytes = bytes_.substr(position_, size);
  position_ += size;
  return bytes;
}

Result<CborItem> CborItems::next() {
  MJ_TRY(head, read_head());
  CborItem item{CborItem::Kind::natural, head.argument, 0, {}};
  switch (head.major) {
    case CborMajor::natural:
      return item;
    case CborMajor::negative:
      if (head.argument > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return make_error("an integer below -2^63");
      item.kind = CborItem::Kind::negative;
      return item;
    case CborMajor::bytes:
    case CborMajor::text: {
      MJ_TRY(text, read_bytes(head.argument));
      item.kind = head.major == CborMajor::text ? CborItem::Kind::text : CborItem::Kind::bytes;
      item.text = text;
      if (head.major == CborMajor::text && !is_utf8(text)) return make_error("a text that is not UTF-8");
      return item;
    }
    case CborMajor::array:
    case CborMajor::map:
      item.kind = head.major == CborMajor::array ? CborItem::Kind::array : CborItem::Kind::map;
      // Each value has at least one byte.
      if (head.argument > remaining() / (head.major == CborMajor::map ? 2 : 1)) return make_error("it ends early");
      return item;
    case CborMajor::tag:
      return make_error("a tag");
    case CborMajor::simple:
      break;
  }
  return decode_simple(head);
}

Result<CborItem> CborItems::decode_simple(const Head& head) {
  const std::size_t end = position_;
  switch (head.info) {
    case kFalse & 0x1f:
    case kTrue & 0x1f:
      return CborItem{CborItem::Kind::boolean, head.info == (kTrue & 0x1f) ? 1U : 0U, 0, {}};
    case kNull & 0x1f:
      return CborItem{};
    case kHalf:
    case kSingle:
    case kDouble:
      break;
    default:
      return make_error("a simple value that JSON has not");
  }
  const double value = head.info == kHalf     ? from_half(static_cast<std::uint16_t>(head.argument))
                       : head.info == kSingle ? std::bit_cast<float>(static_cast<std::uint32_t>(head.argument))
                                              : std::bit_cast<double>(head.argument);
  std::string shortest;
  append_cbor_float(shortest, value);
  const std::size_t size = 1 + (std::size_t{1} << (head.info - 24));
  if (bytes_.substr(end - size, size) != shortest) return make_error("a float in more bytes than it needs");
  return CborItem{CborItem::Kind::number, 0, value, {}};
}

Result<std::string_view> CborItems::read_key(std::string_view& previous_key) {
  const std::size_t begin = position_;
  MJ_TRY(head, read_head());
  if (head.major != CborMajor::text) return make_error("a key that is no text");
  MJ_TRY(name, read_bytes(head.argument));
  if (!is_utf8(name)) return make_error("a text that is not UTF-8");
  const std::string_view encoded = bytes_.substr(begin, position_ - begin);
  if (encoded <= previous_key)
    return make_error(encoded == previous_key ? "a key stands twice" : "keys are not in their order");
  previous_key = encoded;
  return name;
}

Result<void> CborItems::check_end() const {
  if (remaining() != 0) return make_error("something follows the value");
  return {};
}

namespace {

Result<void> check_value(CborItems& items, std::size_t depth) {  // NOLINT(misc-no-recursion): depth is bounded
  if (depth > kMaxCborDepth) return items.make_error("it is deeper than " + std::to_string(kMaxCborDepth) + " levels");
  MJ_TRY(item, items.next());
  std::string_view previous_key;
  const bool is_map = item.kind == CborItem::Kind::map;
  if (!is_map && item.kind != CborItem::Kind::array) return {};
  for (std::uint64_t i = 0; i < item.argument; ++i) {
    if (is_map) {
      if (auto key = items.read_key(previous_key); !key) return tl::unexpected(std::move(key).error());
    }
    MJ_CHECK(check_value(items, depth + 1));
  }
  return {};
}

}  // namespace

Result<void> check_cbor(std::string_view bytes) {
  CborItems items(bytes);
  MJ_CHECK(check_value(items, 0));
  return items.check_end();
}

}  // namespace mycojobs
