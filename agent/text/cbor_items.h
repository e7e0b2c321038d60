// Items of deterministic CBOR (cbor.h), for code that walks over values: JSON in this library, Lua in the workflow
// engine. The writer functions append heads, numbers and texts. The reader returns one item after another and checks
// that each has its only allowed encoding. The caller checks the order of map keys with CborItems::key() and limits the
// depth. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

enum class CborMajor : std::uint8_t { natural, negative, bytes, text, array, map, tag, simple };

// Appends the head of an item. argument: the number, the length of a text, or the size of an array or map.
void append_cbor_head(std::string& out, CborMajor, std::uint64_t argument);
void append_cbor_integer(std::string& out, std::int64_t);
void append_cbor_float(std::string& out, double);  // in the shortest form that keeps the value; NaN is 7e00
void append_cbor_bytes(std::string& out, std::string_view);
void append_cbor_text(std::string& out, std::string_view);  // REQUIRES: the text is UTF-8
void append_cbor_bool(std::string& out, bool);
void append_cbor_null(std::string& out);

struct CborItem {
  enum class Kind : std::uint8_t { natural, negative, bytes, text, array, map, null, boolean, number };
  Kind kind = Kind::null;
  // natural: the value; negative: -1 minus the value; array, map: the number of entries; boolean: 0 or 1.
  std::uint64_t argument = 0;
  double number = 0;
  std::string_view text;  // for bytes and text: a view of the input
};

class CborItems {
 public:
  explicit CborItems(std::string_view bytes) : bytes_(bytes) {}

  // Error invalid: the input ends early, is not deterministic, or has a tag, a simple value or an integer that JSON
  // lacks.
  Result<CborItem> next();
  // Returns the next key of a map. `last` holds the encoded previous key, or is empty before the first. Error invalid:
  // the keys are not in ascending order.
  Result<std::string_view> key(std::string_view& last);
  Result<void> end() const;  // Error invalid: bytes follow the last item.
  tl::unexpected<Error> set_error(const std::string& why) const;

 private:
  struct Head {
    CborMajor major = CborMajor::natural;
    std::uint8_t info = 0;
    std::uint64_t argument = 0;
  };
  std::size_t remaining() const { return bytes_.size() - at_; }
  Result<std::uint64_t> big_endian(unsigned width);
  Result<Head> head();
  Result<std::string_view> stretch(std::uint64_t size);
  Result<CborItem> simple(const Head&);

  std::string_view bytes_;
  std::size_t at_ = 0;
};

// Checks that the bytes are the deterministic encoding of one value, at most kMaxCborDepth deep. Errors as
// decode_cbor().
Result<void> check_cbor(std::string_view bytes);

}  // namespace mycojobs
