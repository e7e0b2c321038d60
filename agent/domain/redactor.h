// Takes secret values out of what a job hands out. Pure: no files, no clocks.
//
//   text --> read as plain, url, escapes, packed (Decoder) --> every place of a value --> [secret NAME]
//
// Places that overlap are replaced together, under the name of the longest of them: no byte of any of them is left.
// What comes out does not depend on the pieces in which the text came in.
//
// This protects from accidents, not from a job that wants to reveal a value: it can spell it in ways that are not known
// here. Text is held back while it could become a value, and a job can observe that. So a redactor must know only the
// values that its job knows.
#pragma once

#include <algorithm>
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
// Nodes are the beginnings of texts; a text's nodes follow one another in memory. The shallowest nodes have a row each
// in a table of all transitions, up to kMaxRowEntries: these are the nodes that texts other than the secrets reach. So
// a byte of text costs 20 bytes of memory, and the table 256 KiB at most.

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

  Node next(Node node, unsigned char byte) const {
    for (;;) {
      const State& state = nodes_[node];
      if (state.row != kNoRow) return rows_[state.row + class_of_[byte]];
      if (const Node there = child(node, byte); there != 0) return there;
      node = state.fail;
    }
  }
  std::uint32_t depth(Node node) const { return nodes_[node].depth; }           // bytes of that beginning
  const Match& match(Node node) const { return matches_[nodes_[node].match]; }  // the longest text that ends here
  // The longest beginning that more bytes could still make a text. And a text that begins so, of one that is not 0.
  Node unfinished(Node) const;
  const Match& first_of(Node unfinished) const;
  bool has_match(Node node) const { return nodes_[node].match != 0; }
  bool starts_with(unsigned char byte) const { return root_[byte] != 0; }
  std::uint32_t longest() const { return longest_; }

 private:
  static constexpr std::uint32_t kNoRow = ~0U;
  static constexpr std::size_t kMaxRowEntries = 64U << 10;
  struct State {
    Node fail = 0;
    std::uint32_t depth = 0;
    std::uint32_t match = 0;     // in matches_
    std::uint32_t row = kNoRow;  // where its transitions begin in rows_
    unsigned char byte = 0;
    bool chained = false;  // the next node is its first child
    bool parts = false;    // it has other children
  };
  Node child(Node, unsigned char byte) const;  // 0: none
  Node make_child(Node, unsigned char byte);
  std::vector<Node> nodes_by_depth() const;
  void number_classes();
  void add_row(Node);

  std::vector<State> nodes_;
  std::vector<Match> matches_;
  std::array<Node, 256> root_{};
  std::unordered_map<std::uint64_t, Node> branches_;  // node and byte -> further children
  std::vector<Node> parents_;                         // until finish()
  std::array<std::uint16_t, 256> class_of_{};  // bytes that no text has are one class, 0; any other byte has its own
  std::uint32_t classes_ = 1;
  std::vector<Node> rows_;
  std::uint32_t longest_ = 0;
};

// How a value may be spelled in a text, and how to read a text so that few spellings are left to look for.
//
//   plain     as it is; a run of blanks and control characters counts as one blank, since one-line errors and indented
//             or wrapped prints change them
//   url       %XX as its byte, + as a blank; read on as plain
//   escapes   \n \" \/ \xNN \u00e9 ... of JSON strings, and what Python's repr() has beyond them; read on as plain
//   packed    base64 and hex: line ends are left out, the URL-safe letters are the standard ones
//
// A line end in base64 or hex is left out only where the line looks wrapped: behind kLeastWrapped characters in a row,
// or kLeastMatched of a value. Otherwise every line whose last character begins one of the forms of a value would wait.

enum class Encoding { plain, url, escapes, packed };

// What to look for in a text that is read as plain, url or escapes. No blanks at its ends; may be empty.
std::string plain_form(std::string_view value);
// The same where a + is a blank: differs if the value has one.
std::string url_form(std::string_view value);
// What to look for in one that is read as packed: base64 at each of the three offsets that a value may have in what is
// encoded, as far as the characters depend on the value alone, and with its last bits and padding; hex in lower and in
// upper case. Up to four bits at either end of a value inside of a longer base64 text are not found.
std::vector<std::string> packed_forms(std::string_view value);

// The meaning of an escape whose first bytes were read: incomplete, complete, or not an escape.
struct EscapeMeaning {
  enum class State { more, whole, none } state = State::none;
  std::array<char, 4> bytes{};  // meaning of a whole escape
  std::size_t size = 0;         // number of these bytes
};
EscapeMeaning unescape(Encoding, std::string_view begun);

inline bool is_blank(unsigned char byte) { return byte <= ' ' || byte == 0x7f; }

// Reads a stream byte by byte. At most kMostSkipped bytes in a row are left out, so that a reader never holds back more
// text than that.
class Decoder {
 public:
  static constexpr unsigned kMostSkipped = 32;
  static constexpr unsigned kLeastWrapped = 16;
  static constexpr unsigned kLeastMatched = 4;
  static constexpr std::uint64_t kNowhere = ~0ULL;

  // How a byte outside of an escape is read.
  struct Step {
    enum class Kind : unsigned char { character, separator, blank, escape, line_end } kind = Kind::character;
    unsigned char read = 0;
  };

  explicit Decoder(Encoding reading) : reading_(reading), steps_(&steps(reading)) {}
  Step step(char byte) const { return (*steps_)[static_cast<unsigned char>(byte)]; }
  // The caller has read so many bytes itself. REQUIRES: they are characters, and no escape is open.
  void count_characters(std::size_t count) {
    if (count == 0) return;
    end_skipping();
    run_ = static_cast<unsigned>(std::min<std::size_t>(kLeastWrapped, run_ + count));
  }
  // sink(byte, begin, end), for none, one or several bytes: what was read, and where in the stream it stands.
  // matched(): how many of the last bytes are the beginning of a value.
  template <class Sink, class Matched>
  void take(unsigned char byte, std::uint64_t at, const Sink& sink, const Matched& matched);
  // No more comes: an escape that was begun is none.
  template <class Sink, class Matched>
  void finish(const Sink& sink, const Matched& matched);
  std::uint64_t open_since() const { return escape_size_ == 0 ? kNowhere : escape_at_; }  // of an escape that is begun
  bool is_open() const { return escape_size_ > 0; }
  // These bytes were passed over: no value begins with any of them.
  void pass_over(std::string_view bytes);
  void reset() { skipped_ = run_ = 0; }
  // Whether the bytes read like plain ones.
  bool reads_as_plain(std::string_view bytes) const;
  // Continues where the other reader is, which has no escape open.
  void continue_from(const Decoder& other) { skipped_ = other.skipped_; }
  bool continues_like(const Decoder& other) const { return !is_open() && skipped_ == other.skipped_; }

 private:
  using Steps = std::array<Step, 256>;
  static const Steps& steps(Encoding);
  static Steps make_steps(Encoding);

  void end_skipping() {
    if (skipped_ == 0) return;
    skipped_ = 0;
    run_ = 0;
  }
  template <class Sink, class Matched>
  void give(Step, std::uint64_t begin, std::uint64_t end, const Sink& sink, const Matched& matched);
  template <class Sink, class Matched>
  void give_up(const Sink& sink, const Matched& matched);

  Encoding reading_;
  const Steps* steps_;
  unsigned skipped_ = 0;           // in this run of blanks, itself included; or of line ends
  unsigned run_ = 0;               // characters in a row on this line, kLeastWrapped at most
  std::array<char, 12> escape_{};  // begun, not yet whole
  std::size_t escape_size_ = 0;
  std::uint64_t escape_at_ = 0;
};

template <class Sink, class Matched>
void Decoder::give(Step step, std::uint64_t begin, std::uint64_t end, const Sink& sink, const Matched& matched) {
  if (step.kind == Step::Kind::line_end) {
    const bool is_wrapped = run_ >= kLeastWrapped || matched() >= kLeastMatched;
    if (is_wrapped && ++skipped_ <= kMostSkipped) return;
  } else if (step.kind == Step::Kind::blank) {
    if (skipped_++ % kMostSkipped != 0) return;
  } else {
    end_skipping();
  }
  if (step.kind == Step::Kind::character) {
    if (run_ < kLeastWrapped) ++run_;
  } else {
    run_ = 0;
  }
  sink(step.read, begin, end);
}

template <class Sink, class Matched>
void Decoder::take(unsigned char byte, std::uint64_t at, const Sink& sink, const Matched& matched) {
  const Step step = (*steps_)[byte];
  if (escape_size_ == 0 && step.kind != Step::Kind::escape) return give(step, at, at + 1, sink, matched);
  if (escape_size_ == 0) escape_at_ = at;
  escape_[escape_size_++] = static_cast<char>(byte);
  if (escape_size_ == 1) return;
  const EscapeMeaning meant = unescape(reading_, {escape_.data(), escape_size_});
  if (meant.state == EscapeMeaning::State::more) return;
  if (meant.state == EscapeMeaning::State::none) return give_up(sink, matched);
  escape_size_ = 0;
  for (std::size_t i = 0; i < meant.size; ++i) {
    const auto read = static_cast<unsigned char>(meant.bytes[i]);
    const bool blank = is_blank(read);
    const Step each{blank ? Step::Kind::blank : Step::Kind::character, blank ? static_cast<unsigned char>(' ') : read};
    give(each, escape_at_, at + 1, sink, matched);
  }
}

// The first byte stands for itself; what follows may be an escape of its own.
template <class Sink, class Matched>
void Decoder::give_up(const Sink& sink, const Matched& matched) {
  const auto begun = escape_;
  const std::size_t size = std::exchange(escape_size_, 0);
  const std::uint64_t at = escape_at_;
  give({Step::Kind::character, static_cast<unsigned char>(begun[0])}, at, at + 1, sink, matched);
  for (std::size_t i = 1; i < size; ++i) take(static_cast<unsigned char>(begun[i]), at + i, sink, matched);
}

template <class Sink, class Matched>
void Decoder::finish(const Sink& sink, const Matched& matched) {
  while (escape_size_ > 0) give_up(sink, matched);
}

struct Secret {
  std::string name;
  std::string value;  // any bytes
  bool operator==(const Secret&) const = default;
};

class Redactor {
 public:
  static constexpr std::size_t kLeastBytes = Decoder::kLeastMatched;  // shorter ones would black out half of every text
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
    bool may_follow;
    // True while this view would read every byte as the plain view does. The plain view then finds all matches for
    // both.
    bool follows_plain;
    bool idle() const { return node == 0 && !reader.is_open(); }
    std::uint64_t begin_of_last(std::uint32_t count, std::uint64_t now) const;
    void leave(const View& plain);
    bool is_in_step_with(const View& plain, std::uint64_t now) const;
    void reset();
  };
  View& plain() { return views_.front(); }
  bool idle() const;
  static std::size_t dull(std::string_view bytes, const Redactor::Bytes& begins);
  void look(View&, std::string_view bytes, std::uint64_t at);
  std::size_t scan(View&, std::string_view bytes, std::uint64_t at);
  void note_match(View&, std::uint64_t begin, std::uint64_t end);
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
