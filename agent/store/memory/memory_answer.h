// A reply of the imitated Redis as a value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/result.h"
#include "store/link.h"

namespace mycojobs::memory {

using Words = std::span<const std::string_view>;  // of a command

struct Answer {
  enum class Kind { nil, status, error, number, text, list };
  Kind kind = Kind::nil;
  std::string text;  // of a status, an error, a text
  std::int64_t number = 0;
  std::vector<Answer> items;
};

inline Answer nil() { return {}; }
Answer status(std::string_view line);  // blanks for what would end the line
Answer error(std::string_view line);
inline Answer text_of(std::string_view text) { return {Answer::Kind::text, std::string(text), 0, {}}; }
inline Answer list_of(std::vector<Answer> items) { return {Answer::Kind::list, {}, 0, std::move(items)}; }
template <class Number>
Answer number_of(Number number) {
  return {Answer::Kind::number, {}, static_cast<std::int64_t>(number), {}};
}
template <class Texts>
Answer texts_of(const Texts& texts) {
  std::vector<Answer> items;
  items.reserve(texts.size());
  for (const auto& each : texts) items.push_back(text_of(each));
  return list_of(std::move(items));
}

// An error reply; the text is all that a client sees of it.
[[nodiscard]] inline tl::unexpected<Error> refuse(std::string_view text) {
  return fail(Code::invalid, std::string(text));
}
[[nodiscard]] inline tl::unexpected<Error> syntax_error() { return refuse("ERR syntax error"); }
// An option that Redis has and we have not: a test that needs it should say so.
[[nodiscard]] inline tl::unexpected<Error> not_imitated(std::string_view what) {
  return refuse("ERR not imitated: " + std::string(what));
}

// As a client of Redis gets it: through the protocol's text and hiredis' reader.
Reply to_reply(const Answer&);

}  // namespace mycojobs::memory
