// How a value may be spelled in a text, and how to read a text so that few spellings are left to look for.
//
//   plain     as it is; a run of blanks and control characters counts as one blank, since one-line errors and indented
//             or wrapped prints change them
//   url       %XX as its byte, + as a blank; read on as plain
//   escapes   \n \" \/ \xNN \u00e9 ... of JSON strings, and what Python's repr() has beyond them; read on as plain
//   packed    base64 and hex: line ends are left out, the URL-safe letters are the standard ones
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mycojobs {

enum class Encoding { plain, url, escapes, packed };

// What to look for in a text that is read as plain, url or escapes. No blanks at its ends; may be empty.
std::string plain_form(std::string_view value);
// The same where a + is a blank: differs if the value has one.
std::string url_form(std::string_view value);
// What to look for in one that is read as packed: base64 at each of the three offsets that a value may have in what is
// encoded, as far as the characters depend on the value alone, and with its last bits and padding; hex in lower and in
// upper case. Up to four bits at either end of a value inside of a longer base64 text are not found.
std::vector<std::string> packed_forms(std::string_view value);

// Reads a stream byte by byte. At most kMostSkipped bytes in a row are left out, so that what a reader waits for is
// never far away.
class Decoder {
 public:
  static constexpr unsigned kMostSkipped = 32;
  static constexpr std::uint64_t kNowhere = ~0ULL;

  explicit Decoder(Encoding reading) : reading_(reading) {}
  // sink(byte, begin, end), for none, one or several bytes: what was read, and where in the stream it stands.
  template <class Sink>
  void take(unsigned char byte, std::uint64_t at, const Sink& sink);
  // No more comes: an escape that was begun is none.
  template <class Sink>
  void finish(const Sink& sink);
  std::uint64_t open_since() const { return escape_.empty() ? kNowhere : escape_at_; }  // of an escape that is begun
  void rest() { skipped_ = 0; }  // bytes that mean nothing were passed by

 private:
  template <class Sink>
  void give(unsigned char byte, std::uint64_t begin, std::uint64_t end, const Sink& sink);
  template <class Sink>
  void give_up(const Sink& sink);

  Encoding reading_;
  unsigned skipped_ = 0;  // in this run of blanks, itself included; or of line ends
  std::string escape_;    // begun, not yet whole
  std::uint64_t escape_at_ = 0;
};

// What an escape means so far.
struct Unescaped {
  enum class Is { more, whole, none } is = Is::none;
  std::string bytes;  // if whole
};
Unescaped unescape(Encoding, std::string_view begun);

inline bool is_blank(unsigned char byte) { return byte <= ' ' || byte == 0x7f; }

template <class Sink>
void Decoder::give(unsigned char byte, std::uint64_t begin, std::uint64_t end, const Sink& sink) {
  if (reading_ == Encoding::packed) {
    const bool line_end = byte == '\n' || byte == '\r';
    if (line_end && ++skipped_ <= kMostSkipped) return;
    if (!line_end) skipped_ = 0;
    if (byte == '-') byte = '+';
    if (byte == '_') byte = '/';
  } else if (is_blank(byte)) {
    if (skipped_++ % kMostSkipped != 0) return;
    byte = ' ';
  } else {
    skipped_ = 0;
  }
  sink(byte, begin, end);
}

template <class Sink>
void Decoder::take(unsigned char byte, std::uint64_t at, const Sink& sink) {
  const bool begins = (reading_ == Encoding::url && byte == '%') || (reading_ == Encoding::escapes && byte == '\\');
  if (escape_.empty() && !begins) {
    if (reading_ == Encoding::url && byte == '+') byte = ' ';
    return give(byte, at, at + 1, sink);
  }
  if (escape_.empty()) escape_at_ = at;
  escape_.push_back(static_cast<char>(byte));
  const Unescaped meant = unescape(reading_, escape_);
  if (meant.is == Unescaped::Is::more) return;
  if (meant.is == Unescaped::Is::none) return give_up(sink);
  escape_.clear();
  for (char c : meant.bytes) give(static_cast<unsigned char>(c), escape_at_, at + 1, sink);
}

// The first byte stands for itself; what follows may be an escape of its own.
template <class Sink>
void Decoder::give_up(const Sink& sink) {
  const std::string begun = std::exchange(escape_, {});
  const std::uint64_t at = escape_at_;
  give(static_cast<unsigned char>(begun[0]), at, at + 1, sink);
  for (std::size_t i = 1; i < begun.size(); ++i) take(static_cast<unsigned char>(begun[i]), at + i, sink);
}

template <class Sink>
void Decoder::finish(const Sink& sink) {
  while (!escape_.empty()) give_up(sink);
}

}  // namespace mycojobs
