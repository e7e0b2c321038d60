// The items that deterministic CBOR (cbor.h) is made of, for those who walk over values: JSON here, Lua in the engine
// of workflows. Writing: heads, numbers, texts. Reading: one item after another, each held to the one encoding of its
// value. Who walks holds maps to the order of their keys (CborItems::key) and counts the depth. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

enum class CborMajor : std::uint8_t { natural, negative, bytes, text, array, map, tag, simple };

// The head of an item: a number, the length of a text, of an array or of a map.
void put_cbor_head(std::string& out, CborMajor, std::uint64_t argument);
void put_cbor_integer(std::string& out, std::int64_t);
void put_cbor_float(std::string& out, double);  // in as few bytes as it fits into; a NaN is 7e00
void put_cbor_bytes(std::string& out, std::string_view);
void put_cbor_text(std::string& out, std::string_view);  // which is UTF-8
void put_cbor_bool(std::string& out, bool);
void put_cbor_null(std::string& out);

struct CborItem {
  enum class Kind : std::uint8_t { natural, negative, bytes, text, array, map, null, boolean, number };
  Kind kind = Kind::null;
  std::uint64_t argument =
      0;  // of natural: itself; of negative: -1 less it; of array and map: how many; of boolean: 0, 1
  double number = 0;
  std::string_view text;  // of bytes and text, within what is read
};

class CborItems {
 public:
  explicit CborItems(std::string_view bytes) : bytes_(bytes) {}

  // Error invalid: it ends early, is not deterministic, a tag, a simple value or an integer that JSON has not.
  Result<CborItem> next();
  // The next key of a map, and which bytes the last one was encoded as: they only rise. Empty: it is the first.
  Result<std::string_view> key(std::string_view& last);
  Result<void> end() const;  // error invalid: something follows
  tl::unexpected<Error> wrong(const std::string& why) const;

 private:
  struct Head {
    CborMajor major = CborMajor::natural;
    std::uint8_t info = 0;
    std::uint64_t argument = 0;
  };
  std::size_t left() const { return bytes_.size() - at_; }
  Result<std::uint64_t> big_endian(unsigned width);
  Result<Head> head();
  Result<std::string_view> stretch(std::uint64_t size);
  Result<CborItem> simple(const Head&);

  std::string_view bytes_;
  std::size_t at_ = 0;
};

// Whether bytes are the deterministic encoding of one value, no deeper than kMaxCborDepth. Error as of decode_cbor().
Result<void> check_cbor(std::string_view bytes);

}  // namespace mycojobs
