#include "security/redactor.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "text/json.h"

namespace mycojobs {
namespace {
std::uint64_t branch(Matcher::Node node, unsigned char byte) { return std::uint64_t{node} << 8 | byte; }
}  // namespace

Matcher::Matcher() : nodes_(1), matches_(1), parents_(1) {}

Matcher::Node Matcher::child(Node node, unsigned char byte) const {
  if (node == 0) return root_[byte];
  if (nodes_[node].chained && nodes_[node + 1].byte == byte) return node + 1;
  if (!nodes_[node].parts) return 0;
  const auto branch_entry = branches_.find(branch(node, byte));
  return branch_entry == branches_.end() ? 0 : branch_entry->second;
}

Matcher::Node Matcher::make_child(Node node, unsigned char byte) {
  const Node new_node = static_cast<Node>(nodes_.size());
  if (node == 0) {
    root_[byte] = new_node;
  } else if (new_node == node + 1) {
    nodes_[node].chained = true;
  } else {
    nodes_[node].parts = true;
    branches_[branch(node, byte)] = new_node;
  }
  State state;
  state.depth = nodes_[node].depth + 1;
  state.byte = byte;
  nodes_.push_back(state);
  parents_.push_back(node);
  return new_node;
}

void Matcher::add(std::string_view text, std::uint32_t owner) {
  Node node = 0;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const Node next_node = child(node, byte);
    node = next_node != 0 ? next_node : make_child(node, byte);
  }
  if (node == 0 || nodes_[node].match != 0) return;
  nodes_[node].match = static_cast<std::uint32_t>(matches_.size());
  matches_.push_back({nodes_[node].depth, owner});
  longest_ = std::max(longest_, nodes_[node].depth);
}

std::vector<Matcher::Node> Matcher::nodes_by_depth() const {
  std::vector<std::size_t> offsets(longest_ + 2);
  for (const State& state : nodes_) ++offsets[state.depth + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<Node> order(nodes_.size());
  for (Node node = 0; node < nodes_.size(); ++node) order[offsets[nodes_[node].depth]++] = node;
  return order;
}

void Matcher::number_classes() {
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    std::uint16_t& number = class_of_[nodes_[i].byte];
    if (number == 0) number = static_cast<std::uint16_t>(classes_++);
  }
}

// REQUIRES: the fallback of the node has a row.
void Matcher::add_row(Node node) {
  const auto row = static_cast<std::uint32_t>(rows_.size());
  rows_.resize(row + classes_);
  if (node != 0) std::copy_n(rows_.begin() + nodes_[nodes_[node].fail].row, classes_, rows_.begin() + row);
  const State& state = nodes_[node];
  if (state.chained) rows_[row + class_of_[nodes_[node + 1].byte]] = node + 1;
  for (unsigned byte = 0; byte < class_of_.size() && (node == 0 || state.parts); ++byte) {
    const Node next_node = child(node, static_cast<unsigned char>(byte));
    if (next_node != 0) rows_[row + class_of_[byte]] = next_node;
  }
  nodes_[node].row = row;
}

// Processes the nodes by depth, because the fallback of a node has a smaller depth than the node.
void Matcher::finish() {
  number_classes();
  for (Node node : nodes_by_depth()) {
    State& state = nodes_[node];
    if (state.depth > 1) state.fail = next(nodes_[parents_[node]].fail, state.byte);
    if (state.match == 0) state.match = nodes_[state.fail].match;
    if (node == 0 || rows_.size() + classes_ <= kMaxRowEntries) add_row(node);
  }
  std::vector<Node>().swap(parents_);
}

Matcher::Node Matcher::unfinished(Node node) const {
  while (node != 0 && !nodes_[node].chained && !nodes_[node].parts) node = nodes_[node].fail;
  return node;
}

// A node has a chained child unless its text ends there, because texts are added as a whole.
const Matcher::Match& Matcher::first_of(Node node) const {
  while (nodes_[node].chained) ++node;
  return match(node);
}

namespace {

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string_view trim(std::string_view text) {
  const auto is_blank_character = [](char c) { return is_blank(static_cast<unsigned char>(c)); };
  while (!text.empty() && is_blank_character(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank_character(text.back())) text.remove_suffix(1);
  return text;
}

// Returns the characters of the base64 form that depend only on the value. `offset` is the number of bytes before the
// value in the encoded data. `end` receives the last characters, which also depend on the padding.
std::string base64_core(std::string_view value, std::size_t offset, std::string& end) {
  std::string bytes(offset, '\0');
  bytes += value;
  const std::size_t bits = bytes.size() * 8;
  bytes.append(3, '\0');
  const auto encode_sextet = [&bytes](std::size_t i) {
    const std::size_t bit = i * 6;
    const auto byte = [&bytes](std::size_t index) {
      return static_cast<unsigned>(static_cast<unsigned char>(bytes[index]));
    };
    const unsigned two_bytes = byte(bit / 8) << 8 | byte(bit / 8 + 1);
    return kBase64[two_bytes >> (10 - bit % 8) & 63];
  };
  std::string core;
  for (std::size_t i = (offset * 8 + 5) / 6; i < bits / 6; ++i) core.push_back(encode_sextet(i));
  end.clear();
  if (bits % 6 != 0) end = encode_sextet(bits / 6) + std::string(bits % 6 == 2 ? 2 : 1, '=');
  return core;
}

bool is_hex_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Returns the value of a text of hexadecimal digits.
unsigned hex_value(std::string_view digits) {
  unsigned value = 0;
  for (char c : digits) value = value * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  return value;
}

EscapeMeaning encode_utf8(unsigned code) {
  EscapeMeaning out{EscapeMeaning::State::whole};
  const auto add = [&out](unsigned byte) { out.bytes[out.size++] = static_cast<char>(byte); };
  if (code < 0x80) return add(code), out;
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12), add(0x80 | (code >> 6 & 0x3F));
  } else {
    add(0xF0 | code >> 18), add(0x80 | (code >> 12 & 0x3F)), add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
  return out;
}

using State = EscapeMeaning::State;

EscapeMeaning decode_letter(char letter) {
  constexpr std::string_view kLetters = "\"'\\/bfnrt";
  constexpr std::string_view kMeanings = "\"'\\/\b\f\n\r\t";
  if (letter == 'x' || letter == 'u') return {State::more};
  const std::size_t index = kLetters.find(letter);
  if (index == std::string_view::npos) return {};
  return {State::whole, {kMeanings[index]}, 1};
}

bool is_high_surrogate(unsigned code) { return code >= 0xD800 && code <= 0xDBFF; }
bool is_low_surrogate(unsigned code) { return code >= 0xDC00 && code <= 0xDFFF; }

// Reads one escaped character, "\uXXXX", or a pair of surrogates, "\uXXXX\uXXXX".
EscapeMeaning decode_character(std::string_view escape) {
  constexpr std::size_t kSingleBytes = 6, kPairBytes = 12;
  const unsigned first = hex_value(escape.substr(2, 4));
  if (escape.size() == kSingleBytes) {
    if (is_high_surrogate(first)) return {State::more};
    return is_low_surrogate(first) ? EscapeMeaning() : encode_utf8(first);
  }
  if (escape.size() < kPairBytes) return {State::more};
  const unsigned second = hex_value(escape.substr(8, 4));
  if (!is_low_surrogate(second)) return {};
  return encode_utf8(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
}

std::string read_plain(std::string_view text) {
  std::string form;
  Decoder reader(Encoding::plain);
  const auto sink = [&form](unsigned char byte, std::uint64_t, std::uint64_t) {
    form.push_back(static_cast<char>(byte));
  };
  for (char c : text) reader.take_byte(static_cast<unsigned char>(c), 0, sink, [] { return 0U; });
  return form;
}

bool is_packed(unsigned char byte) {
  return byte == '=' || kBase64.find(static_cast<char>(byte)) != std::string_view::npos;
}

}  // namespace

Decoder::Steps Decoder::make_steps(Encoding encoding) {
  using Kind = Step::Kind;
  Steps steps{};
  for (unsigned i = 0; i < steps.size(); ++i) {
    const auto byte = static_cast<unsigned char>(i);
    Step& step = steps[i] = {Kind::character, byte};
    if (encoding == Encoding::packed) {
      if (byte == '-') step.read = '+';
      if (byte == '_') step.read = '/';
      if (byte == '\n' || byte == '\r') step.kind = Kind::line_end;
      if (step.kind == Kind::character && !is_packed(step.read)) step.kind = Kind::separator;
    } else if (is_blank(byte) || (encoding == Encoding::url && byte == '+')) {
      step = {Kind::blank, ' '};
    } else if (byte == (encoding == Encoding::url ? '%' : '\\') && encoding != Encoding::plain) {
      step.kind = Kind::escape;
    }
  }
  return steps;
}

const Decoder::Steps& Decoder::steps(Encoding encoding) {
  static const std::array<Steps, 4> kSteps = {make_steps(Encoding::plain), make_steps(Encoding::url),
                                              make_steps(Encoding::escapes), make_steps(Encoding::packed)};
  return kSteps[static_cast<std::size_t>(encoding)];
}

void Decoder::skip_bytes(std::string_view bytes) {
  if (bytes.empty()) return;
  end_skipping();
  std::size_t run = 0;
  while (run < bytes.size() && run < kMinWrapped &&
         (*steps_)[static_cast<unsigned char>(bytes[bytes.size() - 1 - run])].kind == Step::Kind::character)
    ++run;
  run_ = static_cast<unsigned>(std::min<std::size_t>(kMinWrapped, run == bytes.size() ? run_ + run : run));
}

bool Decoder::reads_as_plain(std::string_view bytes) const {
  if (reading_ == Encoding::escapes) return bytes.find('\\') == std::string_view::npos;
  return bytes.find('%') == std::string_view::npos && bytes.find('+') == std::string_view::npos;
}

EscapeMeaning unescape(Encoding encoding, std::string_view escape) {
  constexpr std::size_t kSecondBackslash = 7, kSecondLetter = 8;
  const std::size_t size = escape.size();
  const char last_character = escape.back();
  if (size == 1) return {State::more};
  const bool url = encoding == Encoding::url;
  if (!url && size == 2) return decode_letter(last_character);
  if (size == kSecondBackslash) return {last_character == '\\' ? State::more : State::none};
  if (size == kSecondLetter) return {last_character == 'u' ? State::more : State::none};
  if (!is_hex_digit(last_character)) return {};
  const bool one_byte = url || escape[1] == 'x';
  if (one_byte && size < (url ? 3U : 4U)) return {State::more};
  if (one_byte) return {State::whole, {static_cast<char>(hex_value(escape.substr(size - 2)))}, 1};
  return size < 6 ? EscapeMeaning{State::more} : decode_character(escape);
}

std::string plain_form(std::string_view value) { return read_plain(trim(value)); }

std::string url_form(std::string_view value) {
  std::string text(trim(value));
  std::replace(text.begin(), text.end(), '+', ' ');
  return read_plain(text);
}

std::vector<std::string> packed_forms(std::string_view value) {
  std::vector<std::string> forms;
  for (std::size_t offset = 0; offset < 3; ++offset) {
    std::string end;
    const std::string core = base64_core(value, offset, end);
    forms.push_back(core);
    if (end.empty()) continue;
    forms.push_back(core + end[0]);
    forms.push_back(core + end);
  }
  for (const std::string_view digits : {"0123456789abcdef", "0123456789ABCDEF"}) {
    std::string hex;
    for (char c : value) {
      hex.push_back(digits[static_cast<unsigned char>(c) >> 4]);
      hex.push_back(digits[static_cast<unsigned char>(c) & 15]);
    }
    forms.push_back(std::move(hex));
  }
  return forms;
}

std::string Redactor::problem_with(std::string_view value) {
  if (plain_form(value).size() >= kMinBytes) return {};
  return "the value has fewer than " + std::to_string(kMinBytes) +
         " bytes (blanks and control characters in a row count as one)";
}

Redactor::Redactor(const std::vector<Secret>& secrets) {
  for (const Secret& secret : secrets) {
    if (!problem_with(secret.value).empty()) continue;
    const auto owner = static_cast<std::uint32_t>(marks_.size());
    marks_.push_back("[secret " + secret.name + "]");
    add(secret.value, owner);
    if (secret.value.find('\n') == std::string::npos) continue;
    for (std::string_view remaining = secret.value; !remaining.empty();) {
      const std::string_view line = remaining.substr(0, remaining.find('\n'));
      remaining.remove_prefix(std::min(remaining.size(), line.size() + 1));
      if (plain_form(line).size() >= kMinLineBytes) add(line, owner);
    }
  }
  plain_.finish();
  packed_.finish();
  for (const Encoding encoding : {Encoding::plain, Encoding::url, Encoding::escapes, Encoding::packed}) {
    const Bytes& bytes = begins_[static_cast<std::size_t>(encoding)] = possible_starts(encoding);
    std::transform(bytes.begin(), bytes.end(), begins_any_.begin(), begins_any_.begin(), std::logical_or<>());
  }
}

Redactor::Bytes Redactor::possible_starts(Encoding encoding) const {
  Bytes starts{};
  for (unsigned byte = 0; byte < starts.size(); ++byte) {
    Decoder reader(encoding);
    const auto mark_start = [&](unsigned char character, std::uint64_t, std::uint64_t) {
      starts[byte] = matcher(encoding).starts_with(character);
    };
    reader.take_byte(static_cast<unsigned char>(byte), 0, mark_start, [] { return 0U; });
    starts[byte] = starts[byte] || reader.is_open();
  }
  return starts;
}

void Redactor::add(std::string_view value, std::uint32_t owner) {
  plain_.add(plain_form(value), owner);
  if (const std::string form = url_form(value); form.size() >= kMinBytes) plain_.add(form, owner);
  for (const std::string& form : packed_forms(value)) packed_.add(form, owner);
}

std::string Redactor::redact(std::string_view text, bool cut) const {
  Redaction redaction(*this);
  std::string out(redaction.feed(text));
  out += redaction.finish(cut);
  return out;
}

Redaction::View::View(Encoding encoding, const Redactor& redactor)
    : reader(encoding),
      matcher(redactor.matcher(encoding)),
      begins(redactor.begins_[static_cast<std::size_t>(encoding)]),
      where(std::bit_ceil(matcher.longest() + 1U)),
      may_follow(encoding == Encoding::url || encoding == Encoding::escapes),
      follows_plain(may_follow) {}

// The ring buffer holds the lower 32 bits of each position. The upper 32 bits are those of the current position, or one
// less.
std::uint64_t Redaction::View::begin_of_last(std::uint32_t count, std::uint64_t now) const {
  const std::uint32_t low = where[(read - count) & (where.size() - 1)];
  return now - (static_cast<std::uint32_t>(now) - low);
}

// Called at an escape. After the escape this view decodes the stream itself.
void Redaction::View::leave_match(const View& plain) {
  follows_plain = false;
  reader.continue_from(plain.reader);
  node = plain.node;
  read = plain.read;
  for (std::uint32_t count = matcher.depth(node); count > 0; --count) {
    const std::uint64_t slot = (read - count) & (where.size() - 1);
    where[slot] = plain.where[slot];
  }
}

// Returns whether both views have the same prefix of a value at the same position, so that both find the same matches
// until the next escape.
bool Redaction::View::is_in_step_with(const View& plain, std::uint64_t now) const {
  if (node != plain.node || !reader.continues_like(plain.reader)) return false;
  const std::uint32_t depth = matcher.depth(node);
  return depth == 0 || begin_of_last(depth, now) == plain.begin_of_last(depth, now);
}

void Redaction::View::reset() {
  node = 0;
  reader.reset();
  follows_plain = may_follow;
}

Redaction::Redaction(const Redactor& redactor)
    : redactor_(redactor),
      views_{View(Encoding::plain, redactor), View(Encoding::url, redactor), View(Encoding::escapes, redactor),
             View(Encoding::packed, redactor)} {}

bool Redaction::idle() const {
  return held_.empty() && matches_.empty() &&
         std::all_of(views_.begin(), views_.end(), [](const View& view) { return view.follows_plain || view.idle(); });
}

// Adds a place and keeps the places disjoint: `place` ends after all others and is merged with every place that it
// overlaps.
void Redaction::add(std::vector<Place>& places, Place place) {
  while (!places.empty() && places.back().end > place.begin) {
    const Place& previous = places.back();
    if (previous.length > place.length || (previous.length == place.length && previous.owner < place.owner)) {
      place.length = previous.length;
      place.owner = previous.owner;
    }
    place.begin = std::min(place.begin, previous.begin);
    place.end = std::max(place.end, previous.end);
    places.pop_back();
  }
  places.push_back(place);
}

void Redaction::note(View& view, unsigned char byte, std::uint64_t begin, std::uint64_t end) {
  view.where[view.read++ & (view.where.size() - 1)] = static_cast<std::uint32_t>(begin);
  view.node = view.matcher.next(view.node, byte);
  note_match(view, begin, end);
}

// `begin` and `end` are the position of the last byte of the match.
void Redaction::note_match(View& view, std::uint64_t begin, std::uint64_t end) {
  if (!view.matcher.has_match(view.node)) return;
  const Matcher::Match& match = view.matcher.match(view.node);
  begin = view.begin_of_last(match.length, begin);
  add(found_, {begin, end, end - begin, match.owner});
}

// Returns the number of leading bytes with which no match can begin. REQUIRES: the decoder is idle.
std::size_t Redaction::plain_prefix(std::string_view bytes, const Redactor::Bytes& begins) {
  const auto first =
      std::find_if(bytes.begin(), bytes.end(), [&](char c) { return begins[static_cast<unsigned char>(c)]; });
  return static_cast<std::size_t>(first - bytes.begin());
}

// Reads bytes that stand for themselves, until another kind of byte, the end of a match, or a position without a prefix
// of a value. Most of the time of a redaction is spent here. Returns the number of bytes read.
std::size_t Redaction::scan(View& view, std::string_view bytes, std::uint64_t position) {
  const Matcher& matcher = view.matcher;
  const std::uint64_t mask = view.where.size() - 1;
  std::uint32_t* const where = view.where.data();
  Matcher::Node node = view.node;
  std::size_t i = 0;
  for (bool stop = false; i < bytes.size() && !stop; ++i) {
    const Decoder::Step step = view.reader.step(bytes[i]);
    if (step.kind != Decoder::Step::Kind::character) break;
    where[(view.read + i) & mask] = static_cast<std::uint32_t>(position + i);
    node = matcher.next(node, step.read);
    stop = node == 0 || matcher.has_match(node);
  }
  view.node = node;
  view.read += i;
  view.reader.count_characters(i);
  if (i > 0) note_match(view, position + i - 1, position + i);
  return i;
}

void Redaction::scan_bytes(View& view, std::string_view bytes, std::uint64_t position) {
  const auto sink = [&](auto... read) { note(view, read...); };
  const auto matched = [&view] { return view.matcher.depth(view.node); };
  for (std::size_t i = 0; i < bytes.size();) {
    if (view.idle()) {
      const std::size_t passed = plain_prefix(bytes.substr(i), view.begins);
      view.reader.skip_bytes(bytes.substr(i, passed));
      i += passed;
    }
    const std::size_t scanned = view.reader.is_open() ? 0 : scan(view, bytes.substr(i), position + i);
    i += scanned;
    if (i == bytes.size() || scanned > 0) continue;
    view.reader.take_byte(static_cast<unsigned char>(bytes[i]), position + i, sink, matched);
    ++i;
  }
}

std::string_view Redaction::feed(std::string_view bytes) {
  out_.clear();
  if (redactor_.finds_nothing()) return bytes;
  if (idle()) {
    const std::size_t passed = plain_prefix(bytes, redactor_.begins_any_);
    base_ += passed;
    for (View& view : views_) view.reader.skip_bytes(bytes.substr(0, passed));
    if (passed == bytes.size()) return bytes;
    out_.append(bytes.substr(0, passed));
    bytes.remove_prefix(passed);
  }
  const std::uint64_t start = base_ + held_.size();
  const std::uint64_t end = start + bytes.size();
  held_.append(bytes);
  for (View& view : views_) {
    if (view.follows_plain && !view.reader.reads_as_plain(bytes)) view.leave_match(plain());
  }
  std::uint64_t certain = end;
  for (View& view : views_) {
    if (view.follows_plain) continue;
    scan_bytes(view, bytes, start);
    matches_.insert(matches_.end(), found_.begin(), found_.end());
    found_.clear();
    certain = std::min(certain, view.reader.open_since());
    const std::uint32_t depth = view.matcher.depth(view.matcher.unfinished(view.node));
    if (depth > 0) certain = std::min(certain, view.begin_of_last(depth, end));
    view.follows_plain = view.may_follow && view.is_in_step_with(plain(), end);
  }
  emit_decided(certain);
  return out_;
}

void Redaction::mark_match_start(View& view) {
  const Matcher::Node node = view.matcher.unfinished(view.node);
  const std::uint32_t depth = view.matcher.depth(node);
  if (depth < Redactor::kMinBytes) return;
  const std::uint64_t end = base_ + held_.size();
  const std::uint64_t begin = view.begin_of_last(depth, end);
  add(found_, {begin, end, end - begin, view.matcher.first_of(node).owner});
}

std::string_view Redaction::finish(bool cut) {
  out_.clear();
  for (View& view : views_) {
    if (!view.follows_plain) {
      const auto sink = [&](auto... read) { note(view, read...); };
      view.reader.finish(sink, [&view] { return view.matcher.depth(view.node); });
      if (cut) mark_match_start(view);
      matches_.insert(matches_.end(), found_.begin(), found_.end());
      found_.clear();
    }
  }
  for (View& view : views_) view.reset();
  emit_decided(base_ + held_.size());
  return out_;
}

// Writes output that later bytes cannot change. REQUIRES: no match that begins before `certain` can still be found.
void Redaction::emit_decided(std::uint64_t certain) {
  std::vector<Place> places;
  std::sort(matches_.begin(), matches_.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  for (const Place& place : matches_) add(places, place);
  matches_.clear();
  std::uint64_t written = base_;
  const auto write_until = [&](std::uint64_t end) {
    if (end <= written) return;
    out_.append(held_, written - base_, end - written);
    written = end;
  };
  for (const Place& place : places) {
    if (place.end > certain) {
      if (matches_.empty()) write_until(std::min(place.begin, certain));
      matches_.push_back(place);
      continue;
    }
    write_until(place.begin);
    out_ += redactor_.marks_[place.owner];
    written = place.end;
  }
  if (matches_.empty()) write_until(certain);
  held_.erase(0, certain - base_);  // bytes that a pending place covers are not needed any more
  base_ = certain;
}

// Removes secrets from the results and errors of a job.

namespace {

constexpr std::string_view kCutMark = "…";  // end of an `error` that was shortened

class TextRedactor {
 public:
  explicit TextRedactor(const Redactor& redactor) : redaction_(redactor) {}

  std::string clean(std::string_view text, bool cut = false) {
    std::string out(redaction_.feed(text));
    out += redaction_.finish(cut);
    return out;
  }
  void clean_texts(nlohmann::json& value) {
    if (value.is_string()) value = clean(value.get_ref<const std::string&>());
    if (!value.is_structured()) return;
    for (nlohmann::json& item : value) clean_texts(item);
  }
  // Keys that become equal are made different, so that no part of a result is lost. A value that is not valid JSON any
  // more becomes a text.
  void clean_result(JobEnd& end) {
    const TextMap& map = end.result;
    const std::set<std::string_view> typed(end.result_json.begin(), end.result_json.end());
    TextMap out;
    std::vector<std::string> json_keys;
    for (const auto& [key, value] : map) {
      const std::string name = clean(key);
      std::string unique_name = name;
      for (unsigned number = 2; out.contains(unique_name) || (unique_name != key && map.contains(unique_name));
           ++number) {
        unique_name = name + " " + std::to_string(number);
      }
      std::string text = clean(value);
      if (typed.contains(key) && is_json(text)) json_keys.push_back(unique_name);
      out.emplace(std::move(unique_name), std::move(text));
    }
    end.result = std::move(out);
    end.result_json = std::move(json_keys);
  }

 private:
  Redaction redaction_;
};

}  // namespace

void redact(const Redactor& redactor, JobEnd& end) {
  if (redactor.finds_nothing()) return;
  TextRedactor cleaner(redactor);
  cleaner.clean_result(end);
  const bool cut = end.error.ends_with(kCutMark);
  if (cut) end.error.resize(end.error.size() - kCutMark.size());
  end.error = cleaner.clean(end.error, cut);
  if (cut) end.error += kCutMark;
  if (end.error_info.empty()) return;
  auto info = parse_json(end.error_info);
  if (info) cleaner.clean_texts(*info);
  end.error_info = info ? dump_json(*info) : "{}";  // an unreadable value was not written by the agent
}

}  // namespace mycojobs
