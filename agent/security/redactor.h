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
  // State of a stream: the longest prefix of any text with which the stream ends, or 0 if there is no such prefix.
  using Node = std::uint32_t;
  struct Match {
    std::uint32_t length = 0;  // 0 if no text ends here
    std::uint32_t owner = 0;   // the number that was passed to add()
  };

  Matcher();
  // REQUIRES: the text is not empty. A text that was added before keeps its first owner.
  void add(std::string_view text, std::uint32_t owner);
  void finish();  // must be called once, after the last add()

  Node next(Node node, unsigned char byte) const {
    for (;;) {
      const NodeData& data = nodes_[node];
      if (data.row != kNoRow) return rows_[data.row + class_of_[byte]];
      if (const Node next_node = find_child(node, byte); next_node != 0) return next_node;
      node = data.fallback;
    }
  }
  std::uint32_t depth(Node node) const { return nodes_[node].depth; }           // length of the prefix in bytes
  const Match& match(Node node) const { return matches_[nodes_[node].match]; }  // the longest text that ends here
  // Returns the longest prefix that more bytes could complete, or 0.
  Node find_unfinished_prefix(Node) const;
  // Returns a text with this prefix. REQUIRES: the node is not 0.
  const Match& find_text_with_prefix(Node) const;
  bool has_match(Node node) const { return nodes_[node].match != 0; }
  bool starts_with(unsigned char byte) const { return root_[byte] != 0; }
  std::uint32_t max_length() const { return max_length_; }

 private:
  static constexpr std::uint32_t kNoRow = ~0U;
  static constexpr std::size_t kMaxRowEntries = 64U << 10;
  struct NodeData {
    Node fallback = 0;  // node of the longest proper suffix that is a prefix of a text
    std::uint32_t depth = 0;
    std::uint32_t match = 0;     // index in matches_
    std::uint32_t row = kNoRow;  // index of its first transition in rows_
    unsigned char byte = 0;
    bool next_is_child = false;  // the next node is its first child
    bool has_branches = false;   // the node has further children
  };
  Node find_child(Node, unsigned char byte) const;  // returns 0 if there is no such child
  Node make_child(Node, unsigned char byte);
  std::vector<Node> sort_nodes_by_depth() const;
  void assign_byte_classes();
  void add_row(Node);

  std::vector<NodeData> nodes_;
  std::vector<Match> matches_;
  std::array<Node, 256> root_{};
  std::unordered_map<std::uint64_t, Node> branches_;  // (node, byte) -> further children
  std::vector<Node> parents_;                         // used until finish()
  // Bytes that no text has are in class 0; any other byte has a class of its own.
  std::array<std::uint16_t, 256> class_of_{};
  std::uint32_t class_count_ = 1;
  std::vector<Node> rows_;
  std::uint32_t max_length_ = 0;
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
std::string make_plain_form(std::string_view value);
// Returns the same form for texts where + is a blank. It differs from make_plain_form() only if the value has a +.
std::string make_url_form(std::string_view value);
// Returns the forms to search in texts that are read as packed: base64 at each of the three offsets at which the value
// may be encoded, limited to characters that depend on the value alone, and also with its last bits and padding; and
// hex in lower and upper case. Up to four bits at either end of a value within a longer base64 text are not found.
std::vector<std::string> make_packed_forms(std::string_view value);

// The meaning of the bytes that were read of an escape. They are `invalid` if no escape begins with them.
struct EscapeMeaning {
  enum class State { incomplete, complete, invalid } state = State::invalid;
  std::array<char, 4> bytes{};  // meaning of a complete escape
  std::size_t size = 0;         // number of these bytes
};
EscapeMeaning unescape(Encoding, std::string_view escape);

inline bool is_blank(unsigned char byte) { return byte <= ' ' || byte == 0x7f; }

// Reads a stream byte by byte. At most kMaxSkipped consecutive bytes are skipped, which bounds the text that a decoder
// holds back.
class Decoder {
 public:
  static constexpr unsigned kMaxSkipped = 32;
  static constexpr unsigned kMinWrapped = 16;
  static constexpr unsigned kMinMatched = 4;
  static constexpr std::uint64_t kNoPosition = ~0ULL;

  // How a byte outside of an escape is read.
  struct Step {
    enum class Kind : unsigned char { character, separator, blank, escape, line_end } kind = Kind::character;
    unsigned char output = 0;  // the decoded byte
  };

  explicit Decoder(Encoding encoding) : encoding_(encoding), steps_(&steps(encoding)) {}
  Step step(char byte) const { return (*steps_)[static_cast<unsigned char>(byte)]; }
  // Reports that the caller has read `count` bytes itself. REQUIRES: the bytes are characters, and no escape is open.
  void count_characters(std::size_t count) {
    if (count == 0) return;
    end_skipping();
    run_length_ = static_cast<unsigned>(std::min<std::size_t>(kMinWrapped, run_length_ + count));
  }
  // Calls sink(byte, begin, end) for each decoded byte (zero or more), with its position in the stream. matched() must
  // return how many of the last decoded bytes are a prefix of a value.
  template <class Sink, class Matched>
  void decode_byte(unsigned char byte, std::uint64_t position, const Sink& sink, const Matched& matched);
  // Ends the stream. An open escape counts as ordinary bytes.
  template <class Sink, class Matched>
  void finish(const Sink& sink, const Matched& matched);
  // Returns the position of the incomplete escape at the end, or kNoPosition.
  std::uint64_t open_escape_position() const { return escape_size_ == 0 ? kNoPosition : escape_position_; }
  bool has_open_escape() const { return escape_size_ > 0; }
  // Skips bytes that are not part of any value.
  void skip_bytes(std::string_view bytes);
  void reset() { skipped_count_ = run_length_ = 0; }
  // Returns whether a decoder for Encoding::plain would decode the bytes in the same way.
  bool decodes_as_plain(std::string_view bytes) const;
  // Continues at the position of the other decoder. REQUIRES: the other decoder has no open escape.
  void continue_from(const Decoder& other) { skipped_count_ = other.skipped_count_; }
  bool is_in_same_state_as(const Decoder& other) const {
    return !has_open_escape() && skipped_count_ == other.skipped_count_;
  }

 private:
  using Steps = std::array<Step, 256>;
  static const Steps& steps(Encoding);
  static Steps make_steps(Encoding);

  void end_skipping() {
    if (skipped_count_ == 0) return;
    skipped_count_ = 0;
    run_length_ = 0;
  }
  template <class Sink, class Matched>
  void emit(Step, std::uint64_t begin, std::uint64_t end, const Sink& sink, const Matched& matched);
  template <class Sink, class Matched>
  void emit_unmatched(const Sink& sink, const Matched& matched);

  Encoding encoding_;
  const Steps* steps_;
  unsigned skipped_count_ = 0;     // consecutive skipped blanks, including the first; or skipped line ends
  unsigned run_length_ = 0;        // consecutive characters on this line, at most kMinWrapped
  std::array<char, 12> escape_{};  // an incomplete escape
  std::size_t escape_size_ = 0;
  std::uint64_t escape_position_ = 0;
};

template <class Sink, class Matched>
void Decoder::emit(Step step, std::uint64_t begin, std::uint64_t end, const Sink& sink, const Matched& matched) {
  if (step.kind == Step::Kind::line_end) {
    const bool is_wrapped = run_length_ >= kMinWrapped || matched() >= kMinMatched;
    if (is_wrapped && ++skipped_count_ <= kMaxSkipped) return;
  } else if (step.kind == Step::Kind::blank) {
    if (skipped_count_++ % kMaxSkipped != 0) return;
  } else {
    end_skipping();
  }
  if (step.kind == Step::Kind::character) {
    if (run_length_ < kMinWrapped) ++run_length_;
  } else {
    run_length_ = 0;
  }
  sink(step.output, begin, end);
}

template <class Sink, class Matched>
void Decoder::decode_byte(unsigned char byte, std::uint64_t position, const Sink& sink, const Matched& matched) {
  const Step step = (*steps_)[byte];
  if (escape_size_ == 0 && step.kind != Step::Kind::escape) return emit(step, position, position + 1, sink, matched);
  if (escape_size_ == 0) escape_position_ = position;
  escape_[escape_size_++] = static_cast<char>(byte);
  if (escape_size_ == 1) return;
  const EscapeMeaning meaning = unescape(encoding_, {escape_.data(), escape_size_});
  if (meaning.state == EscapeMeaning::State::incomplete) return;
  if (meaning.state == EscapeMeaning::State::invalid) return emit_unmatched(sink, matched);
  escape_size_ = 0;
  for (std::size_t i = 0; i < meaning.size; ++i) {
    const auto decoded_byte = static_cast<unsigned char>(meaning.bytes[i]);
    const Step decoded =
        is_blank(decoded_byte) ? Step{Step::Kind::blank, ' '} : Step{Step::Kind::character, decoded_byte};
    emit(decoded, escape_position_, position + 1, sink, matched);
  }
}

// The first byte was not the beginning of an escape. The following bytes may be another escape.
template <class Sink, class Matched>
void Decoder::emit_unmatched(const Sink& sink, const Matched& matched) {
  const auto bytes = escape_;
  const std::size_t size = std::exchange(escape_size_, 0);
  const std::uint64_t position = escape_position_;
  emit({Step::Kind::character, static_cast<unsigned char>(bytes[0])}, position, position + 1, sink, matched);
  for (std::size_t i = 1; i < size; ++i) decode_byte(static_cast<unsigned char>(bytes[i]), position + i, sink, matched);
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
  static std::string find_value_problem(std::string_view value);

  explicit Redactor(const std::vector<Secret>&);  // values with a problem are ignored

  // Redacts a whole text. If `is_truncated`, the end of the text may be missing, so a prefix of a value at its end
  // counts as a match.
  std::string redact(std::string_view text, bool is_truncated = false) const;
  bool is_empty() const { return replacements_.empty(); }

 private:
  friend class Redaction;
  using Bytes = std::array<bool, 256>;
  void add(std::string_view value, std::uint32_t owner);
  Bytes find_start_bytes(Encoding) const;
  const Matcher& matcher(Encoding encoding) const { return encoding == Encoding::packed ? packed_ : plain_; }

  std::vector<std::string> replacements_;  // "[secret NAME]" by owner, which is the index of the secret
  Matcher plain_, packed_;
  std::array<Bytes, 4> start_bytes_{};  // by encoding: bytes with which a match can begin
  Bytes any_start_bytes_{};             // bytes with which a match can begin in any encoding
};

// Redacts one stream. The Redactor must outlive it.
class Redaction {
 public:
  explicit Redaction(const Redactor&);
  // Returns the output that is final. Text that could still become a value is held back until more input arrives or the
  // stream ends. There is no time limit, because with a limit a slow writer could reveal a secret in two parts. At most
  // the length of the longest form of a value is held back. The view is valid until the next call.
  std::string_view feed(std::string_view bytes);
  // Ends the stream; the object can then be used for another stream. `is_truncated` as for Redactor::redact().
  std::string_view finish(bool is_truncated = false);

 private:
  // A part of the input that is replaced: one match, or several that overlap.
  struct MatchRange {
    std::uint64_t begin, end;
    std::uint64_t length;  // length of the longest match in the range
    std::uint32_t owner;   // owner of that match, whose name is written
  };
  // The stream as read in one encoding.
  struct View {
    View(Encoding, const Redactor&);
    Decoder decoder;
    const Matcher& matcher;
    const Redactor::Bytes& start_bytes;  // bytes with which a match can begin in this encoding
    Matcher::Node node = 0;
    std::uint64_t decoded_count = 0;
    std::vector<std::uint32_t> positions;  // positions of the latest decoded bytes, lower 32 bits; a ring buffer
    bool can_follow_plain;
    // True while this view decodes every byte as the plain view does. The plain view then finds all matches for both.
    bool follows_plain;
    bool is_idle() const { return node == 0 && !decoder.has_open_escape(); }
    // Returns where the last `count` decoded bytes begin. `end` is the current position.
    std::uint64_t find_begin(std::uint32_t count, std::uint64_t end) const;
    void stop_following(const View& plain);
    bool is_in_step_with(const View& plain, std::uint64_t end) const;
    void reset();
  };
  View& plain() { return views_.front(); }
  bool is_idle() const;
  static std::size_t count_unmatchable(std::string_view bytes, const Redactor::Bytes& start_bytes);
  void scan_bytes(View&, std::string_view bytes, std::uint64_t position);
  std::size_t scan(View&, std::string_view bytes, std::uint64_t position);
  void add_match(View&, std::uint64_t begin, std::uint64_t end);
  void process_decoded(View&, unsigned char byte, std::uint64_t begin, std::uint64_t end);
  void add_prefix_match(View&);
  static void add(std::vector<MatchRange>&, MatchRange);
  void write_output(std::uint64_t decided_end);

  const Redactor& redactor_;
  std::array<View, 4> views_;
  std::vector<MatchRange> view_matches_;     // matches of one view in the current call, disjoint and sorted
  std::vector<MatchRange> pending_matches_;  // matches of all views that are not written yet, disjoint and sorted
  std::string pending_input_;                // input from pending_begin_ on
  std::uint64_t pending_begin_ = 0;
  std::string output_;
};

// Redacts the result (keys and values), error and error_info. Fields that the job did not write are unchanged: detail,
// usage, layers, receipt.
void redact(const Redactor&, JobEnd&);

}  // namespace mycojobs
