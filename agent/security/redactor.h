// Removes secret values from the output of a job. Pure: no files, no clocks.
//
//   text --> read as plain, url, escapes, packed (Decoder) --> every match of a value --> [secret NAME]
//
// Overlapping matches are replaced together, under the name of the longest of them: all their bytes are removed. The
// output does not depend on how the input was divided.
//
// The redactor protects from accidents, not from a job that wants to reveal a value: the job can use an encoding that
// the redactor does not know. Text is held back while it could become a value, and a job can observe the delay.
// Therefore a redactor must contain only values that its job knows.
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

#include "model/job_end.h"
#include "security/secret.h"

namespace mycojobs {

// Finds many texts at once in a stream of bytes (Aho and Corasick, 1975). The average cost per byte is bounded, for all
// texts and for hostile input. After finish(), any thread may read it.
//
// A node is a prefix of a text; the nodes of one text are adjacent in memory. The shallowest nodes have rows in a table
// of all transitions, up to kMaxRowEntries, because most input that contains no secret reaches only these nodes. Each
// byte of text needs 20 bytes of memory, and the table at most 256 KiB.

class Matcher {
 public:
  // State of a stream: the longest prefix of any text with which the stream ends. 0: no prefix.
  using Node = std::uint32_t;
  struct Match {
    std::uint32_t length = 0;  // 0: no text ends here
    std::uint32_t owner = 0;
  };

  Matcher();
  // REQUIRES: the text is not empty. A text that was added before keeps its first owner.
  void add(std::string_view text, std::uint32_t owner);
  void finish();  // must be called once, after the last add()

  Node next(Node node, unsigned char byte) const {
    for (;;) {
      const State& state = nodes_[node];
      if (state.row != kNoRow) return rows_[state.row + class_of_[byte]];
      if (const Node there = child(node, byte); there != 0) return there;
      node = state.fail;
    }
  }
  std::uint32_t depth(Node node) const { return nodes_[node].depth; }           // length of the prefix in bytes
  const Match& match(Node node) const { return matches_[nodes_[node].match]; }  // the longest text that ends here
  // unfinished() returns the longest prefix that more bytes could complete. first_of() returns a text with such a
  // prefix; its argument must not be 0.
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
    std::uint32_t match = 0;     // index in matches_
    std::uint32_t row = kNoRow;  // where its transitions begin in rows_
    unsigned char byte = 0;
    bool chained = false;  // the next node is its first child
    bool parts = false;    // the node has further children
  };
  Node child(Node, unsigned char byte) const;  // 0: none
  Node make_child(Node, unsigned char byte);
  std::vector<Node> nodes_by_depth() const;
  void number_classes();
  void add_row(Node);

  std::vector<State> nodes_;
  std::vector<Match> matches_;
  std::array<Node, 256> root_{};
  std::unordered_map<std::uint64_t, Node> branches_;  // (node, byte) -> further children
  std::vector<Node> parents_;                         // used until finish()
  // Bytes that no text has are in class 0; any other byte has a class of its own.
  std::array<std::uint16_t, 256> class_of_{};
  std::uint32_t classes_ = 1;
  std::vector<Node> rows_;
  std::uint32_t longest_ = 0;
};

// The encodings in which a value may occur in a text. Each is a way to read the text, so that few forms of a value must
// be searched.
//
//   plain     as it is; a run of blanks and control characters counts as one blank, since one-line errors and indented
//             or wrapped prints change them
//   url       %XX as its byte, + as a blank; then as plain
//   escapes   \n \" \/ \xNN \u00e9 ... of JSON strings, and the further escapes of Python's repr(); then as plain
//   packed    base64 and hex: line ends are skipped, and URL-safe letters count as the standard letters
//
// A line end in base64 or hex is skipped only where the line appears to be wrapped: after kMinWrapped consecutive
// characters, or after kMinMatched characters of a value. Otherwise every line whose last character begins a form of
// a value would be held back.

enum class Encoding { plain, url, escapes, packed };

// Returns the form to search in texts that are read as plain, url or escapes. It has no blanks at its ends, and may be
// empty.
std::string plain_form(std::string_view value);
// Returns the same form for texts where + is a blank. It differs from plain_form() only if the value has a +.
std::string url_form(std::string_view value);
// Returns the forms to search in texts that are read as packed: base64 at each of the three offsets at which the value
// may be encoded, limited to characters that depend on the value alone, and also with its last bits and padding; and
// hex in lower and upper case. Up to four bits at either end of a value within a longer base64 text are not found.
std::vector<std::string> packed_forms(std::string_view value);

// The meaning of an escape whose first bytes were read: incomplete, complete, or not an escape.
struct EscapeMeaning {
  enum class State { more, whole, none } state = State::none;
  std::array<char, 4> bytes{};  // meaning of a whole escape
  std::size_t size = 0;         // number of these bytes
};
EscapeMeaning unescape(Encoding, std::string_view begun);

inline bool is_blank(unsigned char byte) { return byte <= ' ' || byte == 0x7f; }

// Reads a stream byte by byte. At most kMaxSkipped consecutive bytes are skipped, which bounds the text that a decoder
// holds back.
class Decoder {
 public:
  static constexpr unsigned kMaxSkipped = 32;
  static constexpr unsigned kMinWrapped = 16;
  static constexpr unsigned kMinMatched = 4;
  static constexpr std::uint64_t kNowhere = ~0ULL;

  // How a byte outside of an escape is read.
  struct Step {
    enum class Kind : unsigned char { character, separator, blank, escape, line_end } kind = Kind::character;
    unsigned char read = 0;
  };

  explicit Decoder(Encoding reading) : reading_(reading), steps_(&steps(reading)) {}
  Step step(char byte) const { return (*steps_)[static_cast<unsigned char>(byte)]; }
  // Reports that the caller has read `count` bytes itself. REQUIRES: the bytes are characters, and no escape is open.
  void count_characters(std::size_t count) {
    if (count == 0) return;
    end_skipping();
    run_ = static_cast<unsigned>(std::min<std::size_t>(kMinWrapped, run_ + count));
  }
  // Calls sink(byte, begin, end) for each decoded byte (zero or more), with its position in the stream. matched() must
  // return how many of the last decoded bytes are a prefix of a value.
  template <class Sink, class Matched>
  void take_byte(unsigned char byte, std::uint64_t at, const Sink& sink, const Matched& matched);
  // Ends the stream. An open escape counts as ordinary bytes.
  template <class Sink, class Matched>
  void finish(const Sink& sink, const Matched& matched);
  // Position of the open escape, or kNowhere.
  std::uint64_t open_since() const { return escape_size_ == 0 ? kNowhere : escape_at_; }
  bool is_open() const { return escape_size_ > 0; }
  // Skips bytes that are not part of any value.
  void skip_bytes(std::string_view bytes);
  void reset() { skipped_ = run_ = 0; }
  // Returns whether the bytes are decoded as in the plain encoding.
  bool reads_as_plain(std::string_view bytes) const;
  // Continues at the position of the other decoder. REQUIRES: the other decoder has no open escape.
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
  void emit(Step, std::uint64_t begin, std::uint64_t end, const Sink& sink, const Matched& matched);
  template <class Sink, class Matched>
  void emit_unmatched(const Sink& sink, const Matched& matched);

  Encoding reading_;
  const Steps* steps_;
  unsigned skipped_ = 0;           // consecutive skipped blanks, including the first; or skipped line ends
  unsigned run_ = 0;               // consecutive characters on this line, at most kMinWrapped
  std::array<char, 12> escape_{};  // an incomplete escape
  std::size_t escape_size_ = 0;
  std::uint64_t escape_at_ = 0;
};

template <class Sink, class Matched>
void Decoder::emit(Step step, std::uint64_t begin, std::uint64_t end, const Sink& sink, const Matched& matched) {
  if (step.kind == Step::Kind::line_end) {
    const bool is_wrapped = run_ >= kMinWrapped || matched() >= kMinMatched;
    if (is_wrapped && ++skipped_ <= kMaxSkipped) return;
  } else if (step.kind == Step::Kind::blank) {
    if (skipped_++ % kMaxSkipped != 0) return;
  } else {
    end_skipping();
  }
  if (step.kind == Step::Kind::character) {
    if (run_ < kMinWrapped) ++run_;
  } else {
    run_ = 0;
  }
  sink(step.read, begin, end);
}

template <class Sink, class Matched>
void Decoder::take_byte(unsigned char byte, std::uint64_t at, const Sink& sink, const Matched& matched) {
  const Step step = (*steps_)[byte];
  if (escape_size_ == 0 && step.kind != Step::Kind::escape) return emit(step, at, at + 1, sink, matched);
  if (escape_size_ == 0) escape_at_ = at;
  escape_[escape_size_++] = static_cast<char>(byte);
  if (escape_size_ == 1) return;
  const EscapeMeaning meant = unescape(reading_, {escape_.data(), escape_size_});
  if (meant.state == EscapeMeaning::State::more) return;
  if (meant.state == EscapeMeaning::State::none) return emit_unmatched(sink, matched);
  escape_size_ = 0;
  for (std::size_t i = 0; i < meant.size; ++i) {
    const auto read = static_cast<unsigned char>(meant.bytes[i]);
    const bool blank = is_blank(read);
    const Step each{blank ? Step::Kind::blank : Step::Kind::character, blank ? static_cast<unsigned char>(' ') : read};
    emit(each, escape_at_, at + 1, sink, matched);
  }
}

// The first byte was not the beginning of an escape. The following bytes may be another escape.
template <class Sink, class Matched>
void Decoder::emit_unmatched(const Sink& sink, const Matched& matched) {
  const auto begun = escape_;
  const std::size_t size = std::exchange(escape_size_, 0);
  const std::uint64_t at = escape_at_;
  emit({Step::Kind::character, static_cast<unsigned char>(begun[0])}, at, at + 1, sink, matched);
  for (std::size_t i = 1; i < size; ++i) take_byte(static_cast<unsigned char>(begun[i]), at + i, sink, matched);
}

template <class Sink, class Matched>
void Decoder::finish(const Sink& sink, const Matched& matched) {
  while (escape_size_ > 0) emit_unmatched(sink, matched);
}

class Redactor {
 public:
  static constexpr std::size_t kMinBytes = Decoder::kMinMatched;  // shorter values would match in most texts
  static constexpr std::size_t kMinLineBytes = 8;  // minimum length of a line of a value that is searched separately
  // Returns why the value must not be searched, or an empty text. A value must have at least kMinBytes, where
  // consecutive blanks count as one.
  static std::string problem_with(std::string_view value);

  explicit Redactor(const std::vector<Secret>&);  // values with a problem are ignored

  // Redacts a whole text. cut: the end of the text may be missing, so a prefix of a value at the end counts as a match.
  std::string redact(std::string_view text, bool cut = false) const;
  bool finds_nothing() const { return marks_.empty(); }

 private:
  friend class Redaction;
  using Bytes = std::array<bool, 256>;
  void add(std::string_view value, std::uint32_t owner);
  Bytes possible_starts(Encoding) const;
  const Matcher& matcher(Encoding reading) const { return reading == Encoding::packed ? packed_ : plain_; }

  std::vector<std::string> marks_;  // by owner
  Matcher plain_, packed_;
  std::array<Bytes, 4> begins_{};  // by encoding: bytes with which a match can begin
  Bytes begins_any_{};             // bytes with which a match can begin in any encoding
};

// Redacts one stream. The Redactor must outlive it.
class Redaction {
 public:
  explicit Redaction(const Redactor&);
  // Returns the output that is final. Text that could still become a value is held back until more input arrives or the
  // stream ends. There is no time limit, because with a limit a slow writer could reveal a secret in two parts. At most
  // the length of the longest form of a value is held back. The view is valid until the next call.
  std::string_view feed(std::string_view bytes);
  std::string_view finish(bool cut = false);  // ends the stream; the object can then be used for another stream

 private:
  struct Place {
    std::uint64_t begin, end;
    std::uint64_t length;  // length of the longest match in it, which determines the name
    std::uint32_t owner;
  };
  struct View {
    View(Encoding, const Redactor&);
    Decoder reader;
    const Matcher& matcher;
    const Redactor::Bytes& begins;
    Matcher::Node node = 0;
    std::uint64_t read = 0;            // number of decoded bytes
    std::vector<std::uint32_t> where;  // positions of the latest decoded bytes, lower 32 bits; a ring buffer
    bool may_follow;
    // True while this view decodes every byte as the plain view does. The plain view then finds all matches for both.
    bool follows_plain;
    bool idle() const { return node == 0 && !reader.is_open(); }
    std::uint64_t begin_of_last(std::uint32_t count, std::uint64_t now) const;
    void leave_match(const View& plain);
    bool is_in_step_with(const View& plain, std::uint64_t now) const;
    void reset();
  };
  View& plain() { return views_.front(); }
  bool idle() const;
  static std::size_t plain_prefix(std::string_view bytes, const Redactor::Bytes& begins);
  void scan_bytes(View&, std::string_view bytes, std::uint64_t at);
  std::size_t scan(View&, std::string_view bytes, std::uint64_t at);
  void note_match(View&, std::uint64_t begin, std::uint64_t end);
  void note(View&, unsigned char byte, std::uint64_t begin, std::uint64_t end);
  void mark_match_start(View&);
  static void add(std::vector<Place>&, Place);
  void emit_decided(std::uint64_t certain);

  const Redactor& redactor_;
  std::array<View, 4> views_;
  std::vector<Place> found_;    // matches of one view in the current call, disjoint and sorted
  std::vector<Place> matches_;  // matches of all views that are not written yet, disjoint and sorted
  std::string held_;            // input from base_ on
  std::uint64_t base_ = 0;
  std::string out_;
};

// Redacts the result (keys and values), error and error_info. Fields that the job did not write are unchanged: detail,
// usage, layers, receipt.
void redact(const Redactor&, JobEnd&);

}  // namespace mycojobs
