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
    visit(record, [this](std::string_view, auto& member, JsonTextStyle style = JsonTextStyle::plain) {
      if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::string>) {
        member = style == JsonTextStyle::json_object ? make_json_object() : make_text(bytes_);
      } else {
        fill(member);
      }
    });
    if constexpr (requires { record.unknown; }) {
      if (choose_below(2) == 0) record.unknown = {{"their_field", make_text(bytes_)}, {"another", "[1"}};
    }
    return record;
  }
  std::size_t choose_below(std::size_t n) { return random_() % n; }
  std::string make_text(Bytes bytes) {
    static const std::vector<std::string> kCharacters = {
        "a", "\"",   "\\", "\n", std::string(1, '\0'), "\xC3\xA9", "{", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
        " ", "\x7F", "]"};
    std::string text;
    for (std::size_t n = choose_below(12); n > 0; --n) {
      text += bytes == Bytes::any ? std::string(1, static_cast<char>(choose_below(256)))
                                  : kCharacters[choose_below(kCharacters.size())];
    }
    return text;
  }

 private:
  template <class T>
  void fill(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = choose_below(2) == 0;
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      value = static_cast<std::int32_t>(choose_below(401)) - 200;
    } else if constexpr (std::is_unsigned_v<T>) {
      const T special_values[] = {0, 1, static_cast<T>(~T{0}), static_cast<T>(random_())};
      value = special_values[choose_below(4)];
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(choose_below(enum_names<T>().size()));
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = make_text(Bytes::utf8);  // UTF-8 only, since JSON encodes lists and maps
    } else {
      fill_many(value);
    }
  }
  template <class T>
  void fill_many(std::vector<T>& value) {
    value.resize(choose_below(4));
    for (auto& item : value) {
      if constexpr (AnyRecord<T>) {
        item = RandomRecords(static_cast<unsigned>(random_()), Bytes::utf8).make<T>();
      } else {
        fill(item);
      }
    }
  }
  void fill_many(TextMap& value) {
    for (std::size_t n = choose_below(4); n > 0; --n) value[make_text(Bytes::utf8)] = make_text(Bytes::utf8);
  }
  template <class T>
  void fill_many(std::optional<T>& value) {
    if (choose_below(2) == 0) return;
    if constexpr (std::is_same_v<T, Flow>) {
      value = RandomRecords(static_cast<unsigned>(random_()), Bytes::utf8).make<Flow>();
    } else {
      fill(value.emplace());
    }
  }
  std::string make_json_object() {
    return choose_below(3) == 0 ? "" : R"({"code":)" + std::to_string(choose_below(100)) + R"(,"text":"\u00e9"})";
  }

  std::mt19937 random_;
  Bytes bytes_;
};

}  // namespace mycojobs
