// Random records for round trips. Every field of every record is filled, driven by the record's field table.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "model/enums.h"
#include "model/record_fields.h"

namespace mycojobs {

enum class Bytes { any, utf8 };

class RandomRecords {
 public:
  RandomRecords(unsigned seed, Bytes bytes) : random_(seed), bytes_(bytes) {}

  template <class R>
  R make() {
    R record;
    visit(record, [this](std::string_view, auto& member, Style style = Style::plain) {
      if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::string>) {
        member = style == Style::json_object ? json_object() : text(bytes_);
      } else {
        fill(member);
      }
    });
    if constexpr (requires { record.unknown; }) {
      if (below(2) == 0) record.unknown = {{"their_field", text(bytes_)}, {"another", "[1"}};
    }
    return record;
  }
  std::size_t below(std::size_t n) { return random_() % n; }
  std::string text(Bytes bytes) {
    static const std::vector<std::string> kCharacters = {
        "a", "\"",   "\\", "\n", std::string(1, '\0'), "\xC3\xA9", "{", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
        " ", "\x7F", "]"};
    std::string out;
    for (std::size_t n = below(12); n > 0; --n) {
      out +=
          bytes == Bytes::any ? std::string(1, static_cast<char>(below(256))) : kCharacters[below(kCharacters.size())];
    }
    return out;
  }

 private:
  template <class T>
  void fill(T& out) {
    if constexpr (std::is_same_v<T, bool>) {
      out = below(2) == 0;
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      out = static_cast<std::int32_t>(below(401)) - 200;
    } else if constexpr (std::is_unsigned_v<T>) {
      const T kept[] = {0, 1, static_cast<T>(~T{0}), static_cast<T>(random_())};
      out = kept[below(4)];
    } else if constexpr (std::is_enum_v<T>) {
      out = static_cast<T>(below(words<T>().size()));
    } else if constexpr (std::is_same_v<T, std::string>) {
      out = text(Bytes::utf8);  // UTF-8 only, since JSON encodes lists and maps
    } else {
      fill_many(out);
    }
  }
  template <class T>
  void fill_many(std::vector<T>& out) {
    out.resize(below(4));
    for (auto& item : out) {
      if constexpr (AnyRecord<T>) {
        item = RandomRecords(static_cast<unsigned>(random_()), Bytes::utf8).make<T>();
      } else {
        fill(item);
      }
    }
  }
  void fill_many(TextMap& out) {
    for (std::size_t n = below(4); n > 0; --n) out[text(Bytes::utf8)] = text(Bytes::utf8);
  }
  template <class T>
  void fill_many(std::optional<T>& out) {
    if (below(2) == 0) return;
    if constexpr (std::is_same_v<T, Flow>) {
      out = RandomRecords(static_cast<unsigned>(random_()), Bytes::utf8).make<Flow>();
    } else {
      fill(out.emplace());
    }
  }
  std::string json_object() {
    return below(3) == 0 ? "" : R"({"code":)" + std::to_string(below(100)) + R"(,"text":"\u00e9"})";
  }

  std::mt19937 random_;
  Bytes bytes_;
};

}  // namespace mycojobs
