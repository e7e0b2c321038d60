// Only this file uses yaml-cpp and handles its exceptions.
#include "text/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "text/json.h"
#include "text/utf8.h"
#include "text/yaml_scanner.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNesting = 64;
constexpr std::size_t kMaxValuePathBytes = 4096;  // limit for one value
// Positions that are kept for messages; the same limit applies to spellings.
constexpr std::size_t kMaxAllPathsBytes = 8U << 20;

// Returns whether the text is a number as JSON writes numbers. Other YAML numbers are texts: 0x1f, 007, .5, 1_000,
// .inf.
bool is_plain_number(std::string_view text) {
  const auto skip_digits = [&text] {
    const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool has_leading_zero = text.starts_with('0');
  const std::size_t integer_digits = skip_digits();
  if (integer_digits == 0 || (has_leading_zero && integer_digits > 1)) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (skip_digits() == 0) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
    if (skip_digits() == 0) return false;
  }
  return text.empty();
}

json parse_plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (!is_plain_number(text) || text.size() > 40) return text;
  auto number = parse_exact_json(text);  // an integer beyond 64 bits stays text, with all its digits
  return number ? std::move(*number) : json(text);
}

// Returns a hint if a line near the error is indented by a tab, which the parser's message does not mention.
std::string describe_tab_near(std::string_view text, int error_line) {
  for (int line = 0; line <= error_line && !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view blanks = text.substr(0, std::min(text.find_first_not_of(" \t"), end));
    if (line + 1 >= error_line && blanks.find('\t') != std::string_view::npos)
      return "; line " + std::to_string(line + 1) + " is indented by a tab: YAML allows only spaces";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return "";
}

std::string describe_position(const YAML::Mark& mark) {
  return "line " + std::to_string(mark.line + 1) + ", column " + std::to_string(mark.column + 1) + ": ";
}

// Input that this reader rejects. Thrown to leave the parser, and caught in this file.
struct RejectedYaml {
  std::string message;
};

class YamlToJsonBuilder : public YAML::EventHandler {
 public:
  explicit YamlToJsonBuilder(YamlText& yaml_text) : yaml_text_(yaml_text) {}
  json release_root() { return std::move(root_); }
  // Returns whether the last scalar was quoted or a block scalar.
  bool ends_with_quoted_scalar() const { return ends_with_quoted_scalar_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++document_count_ > 1) refuse(mark, "a second document begins: give one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add_value(mark, nullptr, "");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "aliases (*name) are not supported: repeat the value");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    // yaml-cpp gives the tag "?" to a plain scalar, and "!" to a quoted or block scalar.
    if (!tag.empty() && tag != "?" && tag != "!") refuse_tag(mark, tag);
    ends_with_quoted_scalar_ = tag == "!";
    if (expects_key()) return add_key(mark, value);
    json parsed = tag == "!" ? json(value) : parse_plain_scalar(value);
    if ((parsed.is_number() || parsed.is_boolean()) && dump_json(parsed) != value) record_spelling(mark, value);
    add_value(mark, std::move(parsed), value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open_container(mark, tag, anchor, json::array());
  }
  void OnSequenceEnd() override { levels_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open_container(mark, tag, anchor, json::object());
  }
  void OnMapEnd() override { levels_.pop_back(); }

 private:
  struct Level {
    json* value;
    std::string path;
    std::string key;  // key of the next value of a map
    bool has_key = false;
  };

  [[noreturn]] static void refuse(const YAML::Mark& mark, const std::string& reason) {
    throw RejectedYaml{describe_position(mark) + reason};
  }
  static void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) refuse(mark, "anchors (&name) are not supported: repeat the value where it is used");
  }
  static void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    refuse(mark, "tags (" + excerpt(tag) + ") are not supported: quote text, and write other values plainly");
  }

  bool expects_key() const { return !levels_.empty() && levels_.back().value->is_object() && !levels_.back().has_key; }

  void add_key(const YAML::Mark& mark, const std::string& text) {
    Level& level = levels_.back();
    if (level.value->contains(text)) refuse(mark, "the key " + excerpt(text) + " is a duplicate key of this map");
    level.key = text;
    level.has_key = true;
    if (next_path_bytes() > kMaxValuePathBytes)
      refuse(mark, "the path of this value is longer than " + std::to_string(kMaxValuePathBytes) +
                       " bytes: use shorter keys");
    record_position(mark);
  }

  // Positions are used only in messages, so they are omitted for a text with very many long paths.
  void record_position(const YAML::Mark& mark) {
    if ((position_bytes_ += next_path_bytes()) <= kMaxAllPathsBytes)
      yaml_text_.positions.emplace(next_path(), to_position(mark));
  }
  void record_spelling(const YAML::Mark& mark, const std::string& value) {
    if ((spelling_bytes_ += next_path_bytes() + value.size()) > kMaxAllPathsBytes)
      refuse(mark, "numbers with a spelling of their own (1.50, 1e3) have paths of more than " +
                       std::to_string(kMaxAllPathsBytes) + " bytes together: use shorter keys, or quotes");
    yaml_text_.spellings.emplace(next_path(), value);
  }
  std::size_t next_path_bytes() const {
    return levels_.empty() ? 0 : levels_.back().path.size() + levels_.back().key.size() + 1;
  }

  static std::pair<std::size_t, std::size_t> to_position(const YAML::Mark& mark) {
    return {static_cast<std::size_t>(mark.line) + 1, static_cast<std::size_t>(mark.column) + 1};
  }
  // Returns the path of the next value.
  std::string next_path() const {
    if (levels_.empty()) return "";
    const Level& level = levels_.back();
    if (level.value->is_array()) return level.path + '[' + std::to_string(level.value->size()) + ']';
    return level.path.empty() ? level.key : level.path + '.' + level.key;
  }

  json* add_value(const YAML::Mark& mark, json value, const std::string& text) {
    if (expects_key()) {
      add_key(mark, text);
      return nullptr;
    }
    record_position(mark);
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::move(value));
      return &level.value->back();
    }
    level.has_key = false;
    return &((*level.value)[level.key] = std::move(value));
  }

  void open_container(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, json empty) {
    refuse_anchor(mark, anchor);
    if (!tag.empty() && tag != "?" && tag != "!") refuse_tag(mark, tag);
    ends_with_quoted_scalar_ = tag == "!";
    if (expects_key()) refuse(mark, "a key is a text, not a list or a map");
    if (levels_.size() >= kMaxNesting) refuse(mark, "nests deeper than " + std::to_string(kMaxNesting) + " levels");
    std::string value_path = next_path();
    // While an item of a list is open, no other item is added to the list, so pointers to the item remain valid.
    json* value = add_value(mark, std::move(empty), "");
    levels_.push_back({value, std::move(value_path), {}, false});
  }

  YamlText& yaml_text_;
  json root_;
  std::vector<Level> levels_;
  std::size_t position_bytes_ = 0, spelling_bytes_ = 0;
  int document_count_ = 0;
  bool ends_with_quoted_scalar_ = false;
};

class IgnoringEventHandler : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// yaml-cpp accepts an open quote at the end of the text if a line end precedes the end, so a truncated text would pass.
// Without the line end it reports the error.
void check_last_quote(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  std::istringstream in{std::string(text)};
  YAML::Parser parser(in);
  IgnoringEventHandler handler;
  (void)parser.HandleNextDocument(handler);
}

}  // namespace

Result<json> yaml_to_json(std::string_view text, std::size_t max_bytes, YamlText& yaml_text) {
  if (text.size() > max_bytes) {
    return fail(Code::too_large, "YAML of " + std::to_string(text.size()) + " bytes is over the limit of " +
                                     std::to_string(max_bytes) + " bytes");
  }
  if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
    return fail(Code::invalid, "is not text in UTF-8: save it as UTF-8");
  }
  yaml_text = {};
  MJ_TRY(readable_bytes, scan_yaml(text));
  try {
    std::istringstream in{std::string(text.substr(0, readable_bytes))};
    YAML::Parser parser(in);
    YamlToJsonBuilder builder(yaml_text);
    if (!parser.HandleNextDocument(builder)) return fail(Code::invalid, "line 1, column 1: is empty");
    (void)parser.HandleNextDocument(builder);  // rejects a second document at its beginning
    if (builder.ends_with_quoted_scalar()) check_last_quote(text);
    if (readable_bytes < text.size())
      return fail(Code::invalid, "line 1, column 1: is not YAML that can be read as a whole");
    return builder.release_root();
  } catch (const RejectedYaml& refused) {
    return fail(Code::invalid, refused.message);
  } catch (const YAML::Exception& error) {
    return fail(Code::invalid, describe_position(error.mark) + error.msg + describe_tab_near(text, error.mark.line));
  } catch (const std::bad_alloc&) {
    return fail(Code::too_large, "YAML needs more memory than there is");
  }
}

}  // namespace mycojobs
