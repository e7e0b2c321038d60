// Items of deterministic CBOR (cbor.h), for code that walks over values: JSON in this library, Lua in the workflow
// engine. The writer functions append heads, numbers and texts. The reader returns one item after another and checks
// that each has its only allowed encoding. The caller checks the order of map keys with CborItems::read_key() and
// limits the depth. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

enum class CborMajor : std::uint8_t { natural, negative, bytes, text, array, map, tag, simple };

// Appends the head of an item. `argument` is the number, the length of a text, or the size of an array or map.
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
  // The value of a natural number; -1 minus the value of a negative number; the number of entries of an array or map; 0
  // or 1 for a boolean.
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
  // Returns the next key of a map. `previous_key` is the encoded previous key, or is empty before the first key; it is
  // set to the encoded returned key. Error invalid: the keys are not in ascending order.
  Result<std::string_view> read_key(std::string_view& previous_key);
  Result<void> check_end() const;  // Error invalid: bytes follow the last item.
  // Returns an error with the current byte offset.
  tl::unexpected<Error> make_error(const std::string& reason) const;

 private:
  struct Head {
    CborMajor major = CborMajor::natural;
    std::uint8_t info = 0;  // the lower 5 bits of the first byte
    std::uint64_t argument = 0;
  };
  std::size_t remaining() const { return bytes_.size() - position_; }
  Result<std::uint64_t> read_big_endian(unsigned width);
  Result<Head> read_head();
  Result<std::string_view> read_bytes(std::uint64_t size);
  Result<CborItem> decode_simple(const Head&);

  std::string_view bytes_;
  std::size_t position_ = 0;
};

// Checks that the bytes are the deterministic encoding of one value, at most kMaxCborDepth deep. Errors as
// decode_cbor().
Result<void> check_cbor(std::string_view bytes);

}  // namespace mycojobs
