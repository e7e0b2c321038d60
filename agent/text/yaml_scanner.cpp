#include "text/yaml_scanner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace mycojobs {
namespace {

class YamlScanner {
 public:
  static constexpr char kEnd = '\x04';  // represents the end of the text, also in yaml-cpp

  YamlScanner(std::string_view text, const YamlBounds& bounds) : text_(text), bounds_(bounds) {
    if (text_.starts_with(kByteOrderMark)) position_ = line_start_ = kByteOrderMark.size();
  }

  Result<std::size_t> scan() {
    while (!is_stopped_ && !error_) {
      skip_to_token();
      end_blocks();
      if (keys_.empty()) unconfirmed_count_ = 0;
      if (position_ >= text_.size()) break;
      scan_token();
    }
    if (error_) return tl::unexpected<Error>(*error_);
    return is_stopped_ ? std::min(text_.size(), position_ + kReadAhead) : text_.size();
  }

 private:
  static constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  static constexpr std::size_t kMaxSimpleKeyBytes = 1024;  // limit from the beginning of the key to the colon
  // Number of bytes that yaml-cpp may read beyond the position of an error.
  static constexpr std::size_t kReadAhead = 4096;

  enum class BlockKind { root, sequence, map };
  struct Block {
    long column = 0;
    BlockKind kind = BlockKind::root;
    std::size_t id = 0;
    bool is_confirmed = true;  // a map is confirmed by the colon after its first key
    bool is_refuted = false;
  };
  struct SimpleKey {
    std::size_t line = 0, position = 0, flow_level = 0;
    std::size_t block = 0;  // id of the map that the key may begin, or 0
  };

  // Characters.
  char peek(std::size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : kEnd; }
  static bool is_blank(char c) { return c == ' ' || c == '\t'; }
  bool is_break(std::size_t ahead = 0) const {
    return peek(ahead) == '\n' || (peek(ahead) == '\r' && peek(ahead + 1) == '\n');
  }
  bool is_blank_or_break(std::size_t ahead) const { return is_blank(peek(ahead)) || is_break(ahead); }
  bool is_separator(std::size_t ahead) const { return is_blank_or_break(ahead) || peek(ahead) == kEnd; }
  long column() const { return static_cast<long>(position_ - line_start_); }
  void advance() {
    if (text_[position_++] != '\n') return;
    line_start_ = position_;
    ++line_;
  }
  void skip_break() {
    if (peek() == '\r') advance();
    advance();
  }
  bool at_end() const { return position_ >= text_.size(); }
  bool in_flow() const { return !open_flows_.empty(); }
  bool is_document_mark() const {
    const std::string_view mark = text_.substr(position_, 3);
    return column() == 0 && (mark == "---" || mark == "...") && is_separator(3);
  }

  void stop() { is_stopped_ = true; }
  void refuse(const std::string& reason) {
    error_ = Error{Code::invalid,
                   "line " + std::to_string(line_ + 1) + ", column " + std::to_string(column() + 1) + ": " + reason};
  }

  void count_node() {
    if (++node_count_ > bounds_.max_nodes)
      refuse("more than " + std::to_string(bounds_.max_nodes) + " keys and values");
    if (++unconfirmed_count_ > bounds_.max_unconfirmed) {
      refuse("more than " + std::to_string(bounds_.max_unconfirmed) +
             " keys and values in one line, or in one list or map in brackets: write one key or value per line");
    }
    item_is_empty_ = false;
  }

  // Simple keys and blocks.
  bool has_active_key() const { return !keys_.empty() && keys_.back().flow_level == open_flows_.size(); }
  Block* find_block(const SimpleKey& key) {
    const auto match = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                    [&](const Block& block) { return key.block != 0 && block.id == key.block; });
    return match == blocks_.rend() ? nullptr : &*match;
  }
  void resolve_key(const SimpleKey& key, bool is_valid) {
    if (Block* block = find_block(key)) (is_valid ? block->is_confirmed : block->is_refuted) = true;
  }
  void refute_key() {
    if (!has_active_key()) return;
    const SimpleKey key = keys_.back();
    keys_.pop_back();
    resolve_key(key, false);
  }
  bool confirm_key() {
    if (!has_active_key()) return false;
    const SimpleKey key = keys_.back();
    keys_.pop_back();
    const bool is_valid = line_ == key.line && position_ - key.position <= kMaxSimpleKeyBytes;
    resolve_key(key, is_valid);
    return is_valid;
  }
  void begin_key() {
    if (!is_key_allowed_ || has_active_key()) return;
    SimpleKey key{line_, position_, open_flows_.size(), 0};
    if (!in_flow() && begin_block(BlockKind::map)) {
      blocks_.back().is_confirmed = false;
      key.block = blocks_.back().id;
    }
    keys_.push_back(key);
  }

  bool begin_block(BlockKind kind) {
    if (in_flow()) return false;
    const Block& innermost = blocks_.back();
    const bool is_deeper = column() > innermost.column;
    const bool is_list_in_map =
        column() == innermost.column && kind == BlockKind::sequence && innermost.kind == BlockKind::map;
    if (!is_deeper && !is_list_in_map) return false;
    blocks_.push_back({column(), kind, ++last_block_id_});
    return true;
  }
  void end_block() {
    const bool is_confirmed = blocks_.back().is_confirmed && !blocks_.back().is_refuted;
    blocks_.pop_back();
    if (!is_confirmed) refute_key();
  }
  void end_blocks() {
    if (in_flow()) return;
    while (blocks_.size() > 1) {
      const Block& block = blocks_.back();
      if (block.column < column()) break;
      const bool ends_list = block.kind == BlockKind::sequence && !(peek() == '-' && is_separator(1));
      if (block.column == column() && !ends_list) break;
      end_block();
    }
    while (blocks_.size() > 1 && blocks_.back().is_refuted) end_block();
  }
  void end_all_blocks() {
    while (!in_flow() && blocks_.size() > 1) end_block();
    keys_.clear();
  }

  void skip_to_token() {
    for (;;) {
      while (!at_end() && is_blank(peek())) {
        if (!in_flow() && peek() == '\t') is_key_allowed_ = false;
        ++position_;
      }
      if (peek() == '#') skip_line();
      if (!is_break()) return;
      skip_break();
      refute_key();
      if (!in_flow()) is_key_allowed_ = true;
    }
  }
  void skip_line() {
    while (!at_end() && !is_break()) ++position_;
  }

  void scan_token() {
    const char c = peek();
    if (column() == 0 && c == '%') return scan_directive();
    if (is_document_mark()) return scan_document_mark();
    if (c == '[' || c == '{') return scan_flow_start();
    if (c == ']' || c == '}') return scan_flow_end();
    if (c == ',') return scan_flow_entry();
    if (c == '-' && is_separator(1)) return scan_block_entry();
    if (c == '?' && is_blank_or_break(1)) return scan_explicit_key();
    if (is_value_mark()) return scan_value_mark();
    if (c == '&') return refuse("anchors (&name) are not supported: repeat the value where it is used");
    if (c == '*') return refuse("aliases (*name) are not supported: repeat the value");
    if (c == '!') return scan_tag();
    if (!in_flow() && (c == '|' || c == '>')) return scan_block_scalar();
    if (c == '\'' || c == '"') return scan_quoted_scalar();
    if (begins_plain_scalar()) return scan_plain_scalar();
    stop();
  }

  bool is_value_mark() const {
    if (peek() != ':') return false;
    if (!in_flow()) return is_separator(1);
    return is_after_json_value_ || is_blank_or_break(1) || (peek(1) == ',' || peek(1) == ']' || peek(1) == '}');
  }
  bool begins_plain_scalar() const {
    const char c = peek();
    if (is_blank_or_break(0) || std::string_view(",[]{}#&*!|>'\"%@`").find(c) != std::string_view::npos) return false;
    if (in_flow()) return c != '?' && !((c == '-' || c == ':') && (is_blank(peek(1)) || peek(1) == kEnd));
    return !((c == '-' || c == '?' || c == ':') && is_separator(1));
  }

  void scan_directive() {
    end_all_blocks();
    is_key_allowed_ = is_after_json_value_ = false;
    const std::size_t start = position_;
    skip_line();
    if (position_ - start <= bounds_.max_directive_bytes) return;
    position_ = start;
    refuse("a directive is longer than " + std::to_string(bounds_.max_directive_bytes) + " bytes");
  }
  void scan_document_mark() {
    end_all_blocks();
    is_key_allowed_ = is_after_json_value_ = false;
    position_ += 3;
  }
  void scan_flow_start() {
    begin_key();
    if (open_flows_.size() >= bounds_.max_nesting)
      return refuse("nests deeper than " + std::to_string(bounds_.max_nesting) + " levels");
    is_key_allowed_ = true;
    is_after_json_value_ = false;
    open_flows_.push_back(peek());
    count_node();
    item_is_empty_ = true;
    ++position_;
  }
  void end_flow_item() {
    if (!in_flow()) return;
    if (open_flows_.back() == '{') {
      (void)confirm_key();
    } else {
      refute_key();
    }
  }
  void scan_flow_end() {
    if (!in_flow()) return stop();
    end_flow_item();
    is_key_allowed_ = false;
    is_after_json_value_ = true;
    if ((open_flows_.back() == '[') != (peek() == ']')) return stop();
    open_flows_.pop_back();
    item_is_empty_ = false;
    ++position_;
  }
  void scan_flow_entry() {
    end_flow_item();
    is_key_allowed_ = true;
    is_after_json_value_ = false;
    if (item_is_empty_) count_node();  // "[,,,,": yaml-cpp rejects it only after it has read the whole list
    item_is_empty_ = true;
    ++position_;
  }
  void scan_block_entry() {
    if (in_flow() || !is_key_allowed_) return stop();
    if (begin_block(BlockKind::sequence)) count_node();
    is_key_allowed_ = true;
    is_after_json_value_ = false;
    ++position_;
  }
  // Begins a block map if needed and counts the entry. Returns false where no key is allowed.
  bool begin_map_entry() {
    if (!in_flow()) {
      if (!is_key_allowed_) return stop(), false;
      (void)begin_block(BlockKind::map);
    }
    is_key_allowed_ = !in_flow();
    count_node();
    return true;
  }
  void scan_explicit_key() {
    if (begin_map_entry()) ++position_;
  }
  void scan_value_mark() {
    const bool is_simple_key = confirm_key();
    is_after_json_value_ = false;
    if (is_simple_key) is_key_allowed_ = false;
    if (is_simple_key || begin_map_entry()) ++position_;
  }
  void scan_tag() {
    std::size_t length = 1;
    while (length < 100 && !is_separator(length)) ++length;
    if (length > 1)
      return refuse("tags (" + excerpt(text_.substr(position_, length)) +
                    ") are not supported: quote text, and write other values plainly");
    begin_key();
    is_key_allowed_ = is_after_json_value_ = false;
    count_node();
    ++position_;
  }

  void scan_quoted_scalar() {
    const char quote = peek();
    begin_key();
    count_node();
    advance();
    for (; !at_end(); advance()) {
      if (peek() == quote && quote == '\'' && peek(1) == '\'') {
        advance();
      } else if (peek() == quote) {
        break;
      } else if (column() == 0 && is_document_mark()) {
        return stop();
      } else if (peek() == '\\' && quote == '"' && position_ + 1 < text_.size()) {
        advance();
        if (peek() == '\r' && peek(1) == '\n') advance();
      }
    }
    if (!at_end()) ++position_;
    is_key_allowed_ = false;
    is_after_json_value_ = true;
  }

  bool ends_plain_scalar() const {
    if (is_blank(peek()) && peek(1) == '#') return true;
    if (peek() == '\n' && peek(1) == '#') return true;
    if (peek() == '\r' && peek(1) == '\n' && peek(2) == '#') return true;
    if (peek() == ':' && is_separator(1)) return true;
    if (!in_flow()) return false;
    if (peek() == ':' && (peek(1) == ',' || peek(1) == ']' || peek(1) == '}')) return true;
    return std::string_view(",?[]{}").find(peek()) != std::string_view::npos;
  }
  void scan_plain_scalar() {
    const long indent = in_flow() ? 0 : top_indent() + 1;
    begin_key();
    count_node();
    is_key_allowed_ = false;
    is_after_json_value_ = false;
    while (!at_end()) {
      while (!at_end() && !ends_plain_scalar() && !is_break() && !is_document_mark()) ++position_;
      if (at_end() || is_document_mark() || ends_plain_scalar()) return;
      skip_break();
      while (peek() == ' ' && column() < indent && !ends_plain_scalar()) ++position_;
      for (; is_blank(peek()); ++position_) {
        if (peek() == '\t' && column() < indent) return stop();
        if (ends_plain_scalar()) break;
      }
      if (!is_break() && column() < indent) {
        is_key_allowed_ = true;
        return;
      }
    }
  }

  // Reads the indicators of a block scalar's first line: at most a digit and a sign. Returns false for any other
  // content.
  bool scan_block_header(long& indent, bool& detects_indent) {
    ++position_;
    bool has_sign = false;
    for (int i = 0; i < 2; ++i) {
      const char c = peek();
      if ((c == '+' || c == '-') && !has_sign) {
        has_sign = true;
      } else if (c >= '0' && c <= '9' && detects_indent) {
        if (c == '0') return false;
        indent = c - '0';
        detects_indent = false;
      } else {
        break;
      }
      ++position_;
    }
    while (is_blank(peek())) ++position_;
    if (peek() == '#') skip_line();
    return at_end() || is_break();
  }
  void scan_block_scalar() {
    long indent = 1;
    bool detects_indent = true;
    if (!scan_block_header(indent, detects_indent)) return stop();
    count_node();
    indent += std::max(top_indent(), 0L);
    bool has_text = false;
    while (!at_end()) {
      has_text = has_text || !is_break();
      skip_line();
      if (at_end()) break;
      skip_break();
      while (peek() == ' ' && (column() < indent || (detects_indent && !has_text))) ++position_;
      if (detects_indent && !has_text) indent = std::max(indent, column());
      if (peek() == '\t' && column() < indent) return stop();
      if (!is_break() && column() < indent) break;
    }
    is_key_allowed_ = true;
    is_after_json_value_ = false;
  }

  long top_indent() const { return blocks_.back().column; }

  const std::string_view text_;
  const YamlBounds bounds_;
  std::size_t position_ = 0, line_start_ = 0, line_ = 0;
  std::size_t node_count_ = 0, unconfirmed_count_ = 0, last_block_id_ = 0;
  bool is_key_allowed_ = true;        // a simple key may begin here
  bool is_after_json_value_ = false;  // after a quoted scalar or a flow collection, a colon needs no blank
  bool item_is_empty_ = true;         // no token since the beginning of this item of a flow collection
  bool is_stopped_ = false;
  std::optional<Error> error_;
  std::vector<Block> blocks_{{-1, BlockKind::root, 0}};
  std::vector<SimpleKey> keys_;
  std::vector<char> open_flows_;  // opening brackets of the open flow collections
};

}  // namespace

Result<std::size_t> scan_yaml(std::string_view text, const YamlBounds& bounds) {
  if (const std::size_t end = text.find(YamlScanner::kEnd); end != std::string_view::npos) {
    const auto preceding = text.substr(0, end);
    const auto line = std::count(preceding.begin(), preceding.end(), '\n') + 1;
    return fail(Code::invalid,
                "line " + std::to_string(line) + ": has the control character U+0004, which ends a text");
  }
  return YamlScanner(text, bounds).scan();
}

}  // namespace mycojobs
