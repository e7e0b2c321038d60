// Takes secret values out of what a job hands out. Pure: no files, no clocks.
//
//   text --> read as plain, url, escapes, packed (encodings.h) --> every place of a value --> [secret NAME]
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
#include <vector>

#include "domain/encodings.h"
#include "domain/matcher.h"
#include "mycojobs/job_end.h"

namespace mycojobs {

struct Secret {
  std::string name;
  std::string value;  // any bytes
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
