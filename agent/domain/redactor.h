// Takes secret values out of what a job hands out. Pure: no files, no clocks.
//
//   text --> read as plain, url, escapes, packed (Decoder) --> every place of a value --> [secret NAME]
//
// Places that overlap are replaced together, under the name of the longest of them: no byte of any of them is left.
// What comes out does not depend on the pieces in which the text came in.
//
// This protects from accidents, not from a job that wants to tell: it can spell a value in ways that nobody looks for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mycojobs/job_end.h"

namespace mycojobs {

// Finds many texts at once in a stream of bytes (Aho and Corasick, 1975): each byte costs a bounded number of steps on
// average, whatever the texts and whatever a hostile writer sends. Built once, then read by any thread.
//
// Nodes are the beginnings of texts; a text's nodes follow one another in memory, and only where texts part is there a
// table to look into. So a byte of text costs 16 bytes of memory.

class Matcher {
 public:
  using Node = std::uint32_t;  // where a stream is: the longest beginning of any text that it ends with. 0: none
  struct Match {
    std::uint32_t length = 0;  // 0: no text ends here
    std::uint32_t owner = 0;
  };

  Matcher();
  // Not empty. A text that is there already keeps its first owner.
  void add(std::string_view text, std::uint32_t owner);
  void finish();  // once, after the last add()

  Node next(Node, unsigned char byte) const;
  std::uint32_t depth(Node node) const { return nodes_[node].depth; }           // bytes of that beginning
  const Match& match(Node node) const { return matches_[nodes_[node].match]; }  // the longest text that ends here
  // The longest beginning that more bytes could still make a text. And a text that begins so, of one that is not 0.
  Node unfinished(Node) const;
  const Match& first_of(Node unfinished) const;
  bool starts_with(unsigned char byte) const { return root_[byte] != 0; }
  std::uint32_t longest() const { return longest_; }

 private:
  struct State {
    Node fail = 0;
    std::uint32_t depth = 0;
    std::uint32_t match = 0;  // in matches_
    unsigned char byte = 0;
    bool chained = false;  // the next node is its first child
    bool parts = false;    // it has other children
  };
  Node child(Node, unsigned char byte) const;  // 0: none
  Node make_child(Node, unsigned char byte);

  std::vector<State> nodes_;
  std::vector<Match> matches_;
  std::array<Node, 256> root_{};
  std::unordered_map<std::uint64_t, Node> branches_;  // node and byte -> further children
  std::vector<Node> parents_;                         // until finish()
  std::uint32_t longest_ = 0;
};

// How a value may be spelled in a text, and how to read a text so that few spellings are left to look for.
//
//   plain     as it is; a run of blanks and control characters counts as one blank, since one-line errors and indented
//             or wrapped prints change them
//   url       %XX as its byte, + as a blank; read on as plain
//   escapes   \n \" \/ \xNN \u00e9 ... of JSON strings, and what Python's repr() has beyond them; read on as plain
//   packed    base64 and hex: line ends are left out, the URL-safe letters are the standard ones

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

struct Secret {
  std::string name;
  std::string value;  // any bytes
  bool operator==(const Secret&) const = default;
};

class Redactor {
 public:
  static constexpr std::size_t kLeastBytes = 4;      // shorter ones would black out half of every text
  static constexpr std::size_t kLeastLineBytes = 8;  // of a line of a value, which is looked for on its own
  // A value that must not be looked for: shorter than kLeastBytes, blanks in a row counted as one. Empty: it is fine.
  static std::string problem_with(std::string_view value);

  explicit Redactor(const std::vector<Secret>&);  // those with a problem are passed over

  // A whole text. cut: its end may be missing, so the beginning of a value at its end is taken for one.
  std::string redact(std::string_view text, bool cut = false) const;
  bool finds_nothing() const { return marks_.empty(); }

 private:
  friend class Redaction;
  using Bytes = std::array<bool, 256>;
  void add(std::string_view value, std::uint32_t owner);
  Bytes beginnings(Encoding) const;
  const Matcher& matcher(Encoding reading) const { return reading == Encoding::packed ? packed_ : plain_; }

  std::vector<std::string> marks_;  // by owner
  Matcher plain_, packed_;
  std::array<Bytes, 4> begins_{};  // by reading: with other bytes nothing begins
  Bytes begins_any_{};             // however it is read
};

// One stream through a redactor, which must live as long.
class Redaction {
 public:
  explicit Redaction(const Redactor&);
  // What is certain by now. What could still become a value is held back until more comes or the stream ends, however
  // long that takes: a time limit would let a slow writer's secret out in two parts. At most the longest value, as it
  // is spelled, is held. The view is good until the next call.
  std::string_view feed(std::string_view bytes);
  std::string_view finish(bool cut = false);  // then it is ready for another stream

 private:
  struct Place {
    std::uint64_t begin, end;
    std::uint64_t length;  // of the longest one in it, which it is named after
    std::uint32_t owner;
  };
  struct View {
    View(Encoding, const Redactor&);
    Decoder reader;
    const Matcher& matcher;
    const Redactor::Bytes& begins;
    Matcher::Node node = 0;
    std::uint64_t read = 0;            // bytes so far
    std::vector<std::uint32_t> where;  // the latest ones stand: the low half of it; a ring
    bool idle() const { return node == 0 && reader.open_since() == Decoder::kNowhere; }
    std::uint64_t begin_of_last(std::uint32_t count, std::uint64_t now) const;
  };
  bool idle() const;
  static std::size_t dull(std::string_view bytes, const Redactor::Bytes& begins);
  void look(View&, std::string_view bytes, std::uint64_t at);
  void note(View&, unsigned char byte, std::uint64_t begin, std::uint64_t end);
  void take_beginning(View&);
  static void add(std::vector<Place>&, Place);
  void settle(std::uint64_t certain);

  const Redactor& redactor_;
  std::array<View, 4> views_;
  std::vector<Place> found_;   // by this look, of one view: apart and in order
  std::vector<Place> places_;  // of all views, not yet written: apart and in order
  std::string held_;           // from base_ on
  std::uint64_t base_ = 0;
  std::string out_;
};

// Results (keys and values), error and error_info. What the job did not write is left alone: detail, usage, layers,
// receipt.
void redact(const Redactor&, JobEnd&);

}  // namespace mycojobs
