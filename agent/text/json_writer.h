// Writes JSON directly into a text, without a tree of values. The result is byte for byte that of dump_json(), if the
// members of each object are added in the order of their names.
#pragma once

#include <charconv>
#include <concepts>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace mycojobs {

// Appends the text in quotes. Bytes that are not UTF-8 become U+FFFD.
void append_json(std::string& out, std::string_view text);
void append_json(std::string& out, const std::map<std::string, std::string>&);
template <std::integral T>
void append_json(std::string& out, T value) {
  if constexpr (std::is_same_v<T, bool>) {
    out += value ? "true" : "false";
  } else {
    char digits[24];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
}
template <class T>
void append_json(std::string& out, const std::vector<T>& list) {
  out += '[';
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ',';
    append_json(out, list[i]);
  }
  out += ']';
}

class JsonObject {
 public:
  explicit JsonObject(std::string& out) : out_(out) { out_ += '{'; }
  // Begins a member. The caller appends the value to the returned text.
  std::string& append_member(std::string_view name) {
    if (has_members_) out_ += ',';
    has_members_ = true;
    append_json(out_, name);
    return out_ += ':';
  }
  template <class T>
  void add(std::string_view name, const T& value) {
    append_json(append_member(name), value);
  }
  void end() { out_ += '}'; }

 private:
  std::string& out_;
  bool has_members_ = false;
};

}  // namespace mycojobs
