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
std::uint64_t branch_key(Matcher::Node node, unsigned char byte) { return std::uint64_t{node} << 8 | byte; }
}  // namespace

Matcher::Matcher() : nodes_(1), matches_(1), parents_(1) {}

Matcher::Node Matcher::find_child(Node node, unsigned char byte) const {
  if (node == 0) return root_[byte];
  if (nodes_[node].next_is_child && nodes_[node + 1].byte == byte) return node + 1;
  if (!nodes_[node].has_branches) return 0;
  const auto branch_entry = branches_.find(branch_key(node, byte));
  return branch_entry == branches_.end() ? 0 : branch_entry->second;
}

Matcher::Node Matcher::make_child(Node node, unsigned char byte) {
  const Node new_node = static_cast<Node>(nodes_.size());
  if (node == 0) {
    root_[byte] = new_node;
  } else if (new_node == node + 1) {
    nodes_[node].next_is_child = true;
  } else {
    nodes_[node].has_branches = true;
    branches_[branch_key(node, byte)] = new_node;
  }
  NodeData data;
  data.depth = nodes_[node].depth + 1;
  data.byte = byte;
  nodes_.push_back(data);
  parents_.push_back(node);
  return new_node;
}

void Matcher::add(std::string_view text, std::uint32_t owner) {
  Node node = 0;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const Node next_node = find_child(node, byte);
    node = next_node != 0 ? next_node : make_child(node, byte);
  }
  if (node == 0 || nodes_[node].match != 0) return;
  nodes_[node].match = static_cast<std::uint32_t>(matches_.size());
  matches_.push_back({nodes_[node].depth, owner});
  max_length_ = std::max(max_length_, nodes_[node].depth);
}

std::vector<Matcher::Node> Matcher::sort_nodes_by_depth() const {
  std::vector<std::size_t> offsets(max_length_ + 2);
  for (const NodeData& data : nodes_) ++offsets[data.depth + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<Node> order(nodes_.size());
  for (Node node = 0; node < nodes_.size(); ++node) order[offsets[nodes_[node].depth]++] = node;
  return order;
}

void Matcher::assign_byte_classes() {
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    std::uint16_t& number = class_of_[nodes_[i].byte];
    if (number == 0) number = static_cast<std::uint16_t>(class_count_++);
  }
}

// REQUIRES: the fallback of the node has a row.
void Matcher::add_row(Node node) {
  const auto row = static_cast<std::uint32_t>(rows_.size());
  rows_.resize(row + class_count_);
  if (node != 0) std::copy_n(rows_.begin() + nodes_[nodes_[node].fallback].row, class_count_, rows_.begin() + row);
  const NodeData& data = nodes_[node];
  if (data.next_is_child) rows_[row + class_of_[nodes_[node + 1].byte]] = node + 1;
  for (unsigned byte = 0; byte < class_of_.size() && (node == 0 || data.has_branches); ++byte) {
    const Node next_node = find_child(node, static_cast<unsigned char>(byte));
    if (next_node != 0) rows_[row + class_of_[byte]] = next_node;
  }
  nodes_[node].row = row;
}

// Processes the nodes by depth, because the fallback of a node has a smaller depth than the node.
void Matcher::finish() {
  assign_byte_classes();
  for (Node node : sort_nodes_by_depth()) {
    NodeData& data = nodes_[node];
    if (data.depth > 1) data.fallback = next(nodes_[parents_[node]].fallback, data.byte);
    if (data.match == 0) data.match = nodes_[data.fallback].match;
    if (node == 0 || rows_.size() + class_count_ <= kMaxRowEntries) add_row(node);
  }
  std::vector<Node>().swap(parents_);
}

Matcher::Node Matcher::find_unfinished_prefix(Node node) const {
  while (node != 0 && !nodes_[node].next_is_child && !nodes_[node].has_branches) node = nodes_[node].fallback;
  return node;
}

// A text ends at each node without next_is_child, because texts are added as a whole.
const Matcher::Match& Matcher::find_text_with_prefix(Node node) const {
  while (nodes_[node].next_is_child) ++node;
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
  EscapeMeaning out{EscapeMeaning::State::complete};
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
  if (letter == 'x' || letter == 'u') return {State::incomplete};
  const std::size_t index = kLetters.find(letter);
  if (index == std::string_view::npos) return {};
  return {State::complete, {kMeanings[index]}, 1};
}

bool is_high_surrogate(unsigned code) { return code >= 0xD800 && code <= 0xDBFF; }
bool is_low_surrogate(unsigned code) { return code >= 0xDC00 && code <= 0xDFFF; }

// Reads one escaped character, "\uXXXX", or a pair of surrogates, "\uXXXX\uXXXX".
EscapeMeaning decode_character(std::string_view escape) {
  constexpr std::size_t kSingleBytes = 6, kPairBytes = 12;
  const unsigned first = hex_value(escape.substr(2, 4));
  if (escape.size() == kSingleBytes) {
    if (is_high_surrogate(first)) return {State::incomplete};
    return is_low_surrogate(first) ? EscapeMeaning() : encode_utf8(first);
  }
  if (escape.size() < kPairBytes) return {State::incomplete};
  const unsigned second = hex_value(escape.substr(8, 4));
  if (!is_low_surrogate(second)) return {};
  return encode_utf8(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
}

std::string decode_plain(std::string_view text) {
  std::string form;
  Decoder reader(Encoding::plain);
  const auto sink = [&form](unsigned char byte, std::uint64_t, std::uint64_t) {
    form.push_back(static_cast<char>(byte));
  };
  for (char c : text) reader.decode_byte(static_cast<unsigned char>(c), 0, sink, [] { return 0U; });
  return form;
}

bool is_packed_character(unsigned char byte) {
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
      if (byte == '-') step.output = '+';
      if (byte == '_') step.output = '/';
      if (byte == '\n' || byte == '\r') step.kind = Kind::line_end;
      if (step.kind == Kind::character && !is_packed_character(step.output)) step.kind = Kind::separator;
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
  run_length_ =
      static_cast<unsigned>(std::min<std::size_t>(kMinWrapped, run == bytes.size() ? run_length_ + run : run));
}

bool Decoder::decodes_as_plain(std::string_view bytes) const {
  if (encoding_ == Encoding::escapes) return bytes.find('\\') == std::string_view::npos;
  return bytes.find('%') == std::string_view::npos && bytes.find('+') == std::string_view::npos;
}

EscapeMeaning unescape(Encoding encoding, std::string_view escape) {
  constexpr std::size_t kSecondBackslash = 7, kSecondLetter = 8;
  const std::size_t size = escape.size();
  const char last_character = escape.back();
  if (size == 1) return {State::incomplete};
  const bool is_url = encoding == Encoding::url;
  if (!is_url && size == 2) return decode_letter(last_character);
  if (size == kSecondBackslash) return {last_character == '\\' ? State::incomplete : State::invalid};
  if (size == kSecondLetter) return {last_character == 'u' ? State::incomplete : State::invalid};
  if (!is_hex_digit(last_character)) return {};
  const bool is_one_byte = is_url || escape[1] == 'x';
  if (is_one_byte && size < (is_url ? 3U : 4U)) return {State::incomplete};
  if (is_one_byte) return {State::complete, {static_cast<char>(hex_value(escape.substr(size - 2)))}, 1};
  return size < 6 ? EscapeMeaning{State::incomplete} : decode_character(escape);
}

std::string make_plain_form(std::string_view value) { return decode_plain(trim(value)); }

std::string make_url_form(std::string_view value) {
  std::string text(trim(value));
  std::replace(text.begin(), text.end(), '+', ' ');
  return decode_plain(text);
}

std::vector<std::string> make_packed_forms(std::string_view value) {
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

std::string Redactor::find_value_problem(std::string_view value) {
  if (make_plain_form(value).size() >= kMinBytes) return {};
  return "the value has fewer than " + std::to_string(kMinBytes) +
         " bytes (blanks and control characters in a row count as one)";
}

Redactor::Redactor(const std::vector<Secret>& secrets) {
  for (const Secret& secret : secrets) {
    if (!find_value_problem(secret.value).empty()) continue;
    const auto owner = static_cast<std::uint32_t>(replacements_.size());
    replacements_.push_back("[secret " + secret.name + "]");
    add(secret.value, owner);
    if (secret.value.find('\n') == std::string::npos) continue;
    for (std::string_view remaining = secret.value; !remaining.empty();) {
      const std::string_view line = remaining.substr(0, remaining.find('\n'));
      remaining.remove_prefix(std::min(remaining.size(), line.size() + 1));
      if (make_plain_form(line).size() >= kMinLineBytes) add(line, owner);
    }
  }
  plain_.finish();
  packed_.finish();
  for (const Encoding encoding : {Encoding::plain, Encoding::url, Encoding::escapes, Encoding::packed}) {
    const Bytes& bytes = start_bytes_[static_cast<std::size_t>(encoding)] = find_start_bytes(encoding);
    std::transform(bytes.begin(), bytes.end(), any_start_bytes_.begin(), any_start_bytes_.begin(), std::logical_or<>());
  }
}

Redactor::Bytes Redactor::find_start_bytes(Encoding encoding) const {
  Bytes starts{};
  for (unsigned byte = 0; byte < starts.size(); ++byte) {
    Decoder reader(encoding);
    const auto mark_start = [&](unsigned char character, std::uint64_t, std::uint64_t) {
      starts[byte] = matcher(encoding).starts_with(character);
    };
    reader.decode_byte(static_cast<unsigned char>(byte), 0, mark_start, [] { return 0U; });
    starts[byte] = starts[byte] || reader.has_open_escape();
  }
  return starts;
}

void Redactor::add(std::string_view value, std::uint32_t owner) {
  plain_.add(make_plain_form(value), owner);
  if (const std::string form = make_url_form(value); form.size() >= kMinBytes) plain_.add(form, owner);
  for (const std::string& form : make_packed_forms(value)) packed_.add(form, owner);
}

std::string Redactor::redact(std::string_view text, bool is_truncated) const {
  Redaction redaction(*this);
  std::string out(redaction.feed(text));
  out += redaction.finish(is_truncated);
  return out;
}

Redaction::View::View(Encoding encoding, const Redactor& redactor)
    : decoder(encoding),
      matcher(redactor.matcher(encoding)),
      start_bytes(redactor.start_bytes_[static_cast<std::size_t>(encoding)]),
      positions(std::bit_ceil(matcher.max_length() + 1U)),
      can_follow_plain(encoding == Encoding::url || encoding == Encoding::escapes),
      follows_plain(can_follow_plain) {}

// The ring buffer holds the lower 32 bits of each position. The upper 32 bits are those of the current position, or one
// less.
std::uint64_t Redaction::View::find_begin(std::uint32_t count, std::uint64_t end) const {
  const std::uint32_t low = positions[(decoded_count - count) & (positions.size() - 1)];
  return end - (static_cast<std::uint32_t>(end) - low);
}

// Copies the state of the plain view. From here on this view decodes the stream itself.
void Redaction::View::stop_following(const View& plain) {
  follows_plain = false;
  decoder.continue_from(plain.decoder);
  node = plain.node;
  decoded_count = plain.decoded_count;
  for (std::uint32_t count = matcher.depth(node); count > 0; --count) {
    const std::uint64_t slot = (decoded_count - count) & (positions.size() - 1);
    positions[slot] = plain.positions[slot];
  }
}

// Returns whether both views have the same prefix of a value at the same position, so that both find the same matches
// until the next escape.
bool Redaction::View::is_in_step_with(const View& plain, std::uint64_t end) const {
  if (node != plain.node || !decoder.is_in_same_state_as(plain.decoder)) return false;
  const std::uint32_t depth = matcher.depth(node);
  return depth == 0 || find_begin(depth, end) == plain.find_begin(depth, end);
}

void Redaction::View::reset() {
  node = 0;
  decoder.reset();
  follows_plain = can_follow_plain;
}

Redaction::Redaction(const Redactor& redactor)
    : redactor_(redactor),
      views_{View(Encoding::plain, redactor), View(Encoding::url, redactor), View(Encoding::escapes, redactor),
             View(Encoding::packed, redactor)} {}

bool Redaction::is_idle() const {
  return pending_input_.empty() && pending_matches_.empty() &&
         std::all_of(views_.begin(), views_.end(),
                     [](const View& view) { return view.follows_plain || view.is_idle(); });
}

// Adds a range and merges it with every range that it overlaps. REQUIRES: the ranges are added in the order of their
// beginnings or of their ends.
void Redaction::add(std::vector<MatchRange>& ranges, MatchRange range) {
  while (!ranges.empty() && ranges.back().end > range.begin) {
    const MatchRange& previous = ranges.back();
    if (previous.length > range.length || (previous.length == range.length && previous.owner < range.owner)) {
      range.length = previous.length;
      range.owner = previous.owner;
    }
    range.begin = std::min(range.begin, previous.begin);
    range.end = std::max(range.end, previous.end);
    ranges.pop_back();
  }
  ranges.push_back(range);
}

void Redaction::process_decoded(View& view, unsigned char byte, std::uint64_t begin, std::uint64_t end) {
  view.positions[view.decoded_count++ & (view.positions.size() - 1)] = static_cast<std::uint32_t>(begin);
  view.node = view.matcher.next(view.node, byte);
  add_match(view, begin, end);
}

// `begin` and `end` are the position of the last byte of the match.
void Redaction::add_match(View& view, std::uint64_t begin, std::uint64_t end) {
  if (!view.matcher.has_match(view.node)) return;
  const Matcher::Match& match = view.matcher.match(view.node);
  begin = view.find_begin(match.length, begin);
  add(view_matches_, {begin, end, end - begin, match.owner});
}

// Returns the number of leading bytes with which no match can begin. REQUIRES: the decoder is idle.
std::size_t Redaction::count_unmatchable(std::string_view bytes, const Redactor::Bytes& start_bytes) {
  const auto first =
      std::find_if(bytes.begin(), bytes.end(), [&](char c) { return start_bytes[static_cast<unsigned char>(c)]; });
  return static_cast<std::size_t>(first - bytes.begin());
}

// Reads bytes that are decoded as themselves, until another kind of byte, the end of a match, or a position without a
// prefix of a value. Most of the time of a redaction is spent here. Returns the number of bytes read.
std::size_t Redaction::scan(View& view, std::string_view bytes, std::uint64_t position) {
  const Matcher& matcher = view.matcher;
  const std::uint64_t mask = view.positions.size() - 1;
  std::uint32_t* const positions = view.positions.data();
  Matcher::Node node = view.node;
  std::size_t i = 0;
  for (bool stop = false; i < bytes.size() && !stop; ++i) {
    const Decoder::Step step = view.decoder.step(bytes[i]);
    if (step.kind != Decoder::Step::Kind::character) break;
    positions[(view.decoded_count + i) & mask] = static_cast<std::uint32_t>(position + i);
    node = matcher.next(node, step.output);
    stop = node == 0 || matcher.has_match(node);
  }
  view.node = node;
  view.decoded_count += i;
  view.decoder.count_characters(i);
  if (i > 0) add_match(view, position + i - 1, position + i);
  return i;
}

void Redaction::scan_bytes(View& view, std::string_view bytes, std::uint64_t position) {
  const auto sink = [&](auto... decoded) { process_decoded(view, decoded...); };
  const auto matched = [&view] { return view.matcher.depth(view.node); };
  for (std::size_t i = 0; i < bytes.size();) {
    if (view.is_idle()) {
      const std::size_t skipped_size = count_unmatchable(bytes.substr(i), view.start_bytes);
      view.decoder.skip_bytes(bytes.substr(i, skipped_size));
      i += skipped_size;
    }
    const std::size_t scanned_size = view.decoder.has_open_escape() ? 0 : scan(view, bytes.substr(i), position + i);
    i += scanned_size;
    if (i == bytes.size() || scanned_size > 0) continue;
    view.decoder.decode_byte(static_cast<unsigned char>(bytes[i]), position + i, sink, matched);
    ++i;
  }
}

std::string_view Redaction::feed(std::string_view bytes) {
  output_.clear();
  if (redactor_.is_empty()) return bytes;
  if (is_idle()) {
    const std::size_t skipped_size = count_unmatchable(bytes, redactor_.any_start_bytes_);
    pending_begin_ += skipped_size;
    for (View& view : views_) view.decoder.skip_bytes(bytes.substr(0, skipped_size));
    if (skipped_size == bytes.size()) return bytes;
    output_.append(bytes.substr(0, skipped_size));
    bytes.remove_prefix(skipped_size);
  }
  const std::uint64_t start = pending_begin_ + pending_input_.size();
  const std::uint64_t end = start + bytes.size();
  pending_input_.append(bytes);
  for (View& view : views_) {
    if (view.follows_plain && !view.decoder.decodes_as_plain(bytes)) view.stop_following(plain());
  }
  std::uint64_t decided_end = end;
  for (View& view : views_) {
    if (view.follows_plain) continue;
    scan_bytes(view, bytes, start);
    pending_matches_.insert(pending_matches_.end(), view_matches_.begin(), view_matches_.end());
    view_matches_.clear();
    decided_end = std::min(decided_end, view.decoder.open_escape_position());
    const std::uint32_t depth = view.matcher.depth(view.matcher.find_unfinished_prefix(view.node));
    if (depth > 0) decided_end = std::min(decided_end, view.find_begin(depth, end));
    view.follows_plain = view.can_follow_plain && view.is_in_step_with(plain(), end);
  }
  write_output(decided_end);
  return output_;
}

void Redaction::add_prefix_match(View& view) {
  const Matcher::Node node = view.matcher.find_unfinished_prefix(view.node);
  const std::uint32_t depth = view.matcher.depth(node);
  if (depth < Redactor::kMinBytes) return;
  const std::uint64_t end = pending_begin_ + pending_input_.size();
  const std::uint64_t begin = view.find_begin(depth, end);
  add(view_matches_, {begin, end, end - begin, view.matcher.find_text_with_prefix(node).owner});
}

std::string_view Redaction::finish(bool is_truncated) {
  output_.clear();
  for (View& view : views_) {
    if (!view.follows_plain) {
      const auto sink = [&](auto... decoded) { process_decoded(view, decoded...); };
      view.decoder.finish(sink, [&view] { return view.matcher.depth(view.node); });
      if (is_truncated) add_prefix_match(view);
      pending_matches_.insert(pending_matches_.end(), view_matches_.begin(), view_matches_.end());
      view_matches_.clear();
    }
  }
  for (View& view : views_) view.reset();
  write_output(pending_begin_ + pending_input_.size());
  return output_;
}

// Writes output that later bytes cannot change. REQUIRES: no match that begins before `decided_end` can still be
// found.
void Redaction::write_output(std::uint64_t decided_end) {
  std::vector<MatchRange> ranges;
  std::sort(pending_matches_.begin(), pending_matches_.end(),
            [](const MatchRange& a, const MatchRange& b) { return a.begin < b.begin; });
  for (const MatchRange& range : pending_matches_) add(ranges, range);
  pending_matches_.clear();
  std::uint64_t written = pending_begin_;
  const auto write_until = [&](std::uint64_t end) {
    if (end <= written) return;
    output_.append(pending_input_, written - pending_begin_, end - written);
    written = end;
  };
  for (const MatchRange& range : ranges) {
    if (range.end > decided_end) {
      if (pending_matches_.empty()) write_until(std::min(range.begin, decided_end));
      pending_matches_.push_back(range);
      continue;
    }
    write_until(range.begin);
    output_ += redactor_.replacements_[range.owner];
    written = range.end;
  }
  if (pending_matches_.empty()) write_until(decided_end);
  pending_input_.erase(0, decided_end - pending_begin_);  // bytes that a pending match covers are not needed any more
  pending_begin_ = decided_end;
}

// Removes secrets from the results and errors of a job.

namespace {

constexpr std::string_view kCutMark = "…";  // end of an `error` that was shortened

class TextRedactor {
 public:
  explicit TextRedactor(const Redactor& redactor) : redaction_(redactor) {}

  std::string redact_text(std::string_view text, bool is_truncated = false) {
    std::string out(redaction_.feed(text));
    out += redaction_.finish(is_truncated);
    return out;
  }
  void redact_json(nlohmann::json& value) {
    if (value.is_string()) value = redact_text(value.get_ref<const std::string&>());
    if (!value.is_structured()) return;
    for (nlohmann::json& item : value) redact_json(item);
  }
  // Keys that become equal are made different, so that no part of a result is lost. A value that is not valid JSON any
  // more becomes a text.
  void redact_result(JobEnd& end) {
    const TextMap& map = end.result;
    const std::set<std::string_view> old_json_keys(end.result_json.begin(), end.result_json.end());
    TextMap out;
    std::vector<std::string> json_keys;
    for (const auto& [key, value] : map) {
      const std::string name = redact_text(key);
      std::string unique_name = name;
      for (unsigned number = 2; out.contains(unique_name) || (unique_name != key && map.contains(unique_name));
           ++number) {
        unique_name = name + " " + std::to_string(number);
      }
      std::string text = redact_text(value);
      if (old_json_keys.contains(key) && is_json(text)) json_keys.push_back(unique_name);
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
  if (redactor.is_empty()) return;
  TextRedactor text_redactor(redactor);
  text_redactor.redact_result(end);
  const bool is_truncated = end.error.ends_with(kCutMark);
  if (is_truncated) end.error.resize(end.error.size() - kCutMark.size());
  end.error = text_redactor.redact_text(end.error, is_truncated);
  if (is_truncated) end.error += kCutMark;
  if (end.error_info.empty()) return;
  auto info = parse_json(end.error_info);
  if (info) text_redactor.redact_json(*info);
  end.error_info = info ? dump_json(*info) : "{}";  // an unreadable value was not written by the agent
}

}  // namespace mycojobs
