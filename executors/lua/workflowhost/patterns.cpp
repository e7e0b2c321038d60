#include "executors/lua/workflowhost/patterns.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <string_view>

#include "executors/lua/workflowhost/budget.h"

namespace mycojobs::workflow {
namespace {

constexpr int kMaxCaptures = 32, kMaxMatchDepth = 200;

bool is_in_class(unsigned char c, unsigned char name) {
  bool found = false;
  switch (std::tolower(name)) {
    case 'a':
      found = std::isalpha(c) != 0;
      break;
    case 'c':
      found = std::iscntrl(c) != 0;
      break;
    case 'd':
      found = std::isdigit(c) != 0;
      break;
    case 'g':
      found = std::isgraph(c) != 0;
      break;
    case 'l':
      found = std::islower(c) != 0;
      break;
    case 'p':
      found = std::ispunct(c) != 0;
      break;
    case 's':
      found = std::isspace(c) != 0;
      break;
    case 'u':
      found = std::isupper(c) != 0;
      break;
    case 'w':
      found = std::isalnum(c) != 0;
      break;
    case 'x':
      found = std::isxdigit(c) != 0;
      break;
    default:
      return name == c;
  }
  return found != (std::isupper(name) != 0);
}

// Matches a pattern at positions of a subject. Positions are indexes from 0. The functions return the end of the match,
// or kNoMatch. In the private functions, `position` is an index of the subject, and `i` is an index of the pattern.
class PatternMatcher {
 public:
  static constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);

  PatternMatcher(lua_State* state, std::string_view subject, std::string_view pattern)
      : state_(state), subject_(subject), pattern_(pattern) {}

  // Matches the pattern from `pattern_begin` at the position `begin`.
  std::size_t match_at(std::size_t begin, std::size_t pattern_begin) {
    capture_count_ = depth_ = 0;
    return match(begin, pattern_begin);
  }
  // Pushes capture `i`. If the pattern has no captures, capture 0 is the whole match.
  void push_capture(int i, std::size_t begin, std::size_t end) const {
    if (i >= capture_count_) {
      if (i != 0) luaL_error(state_, "invalid capture index %%%d", i + 1);
      lua_pushlstring(state_, subject_.data() + begin, end - begin);
      return;
    }
    const Capture& capture = capture_list_[i];
    if (capture.kind == Capture::Kind::open) luaL_error(state_, "unfinished capture");
    if (capture.kind == Capture::Kind::position)
      return lua_pushinteger(state_, static_cast<lua_Integer>(capture.begin) + 1);
    lua_pushlstring(state_, subject_.data() + capture.begin, capture.size);
  }
  int push_captures(std::size_t begin, std::size_t end, bool include_match) const {
    const int count = capture_count_ == 0 && include_match ? 1 : capture_count_;
    luaL_checkstack(state_, count, "too many captures");
    for (int i = 0; i < count; ++i) push_capture(i, begin, end);
    return count;
  }

 private:
  struct Capture {
    enum class Kind : unsigned char { open, position, text };
    Kind kind = Kind::open;
    std::size_t begin = 0, size = 0;
  };

  unsigned char subject_byte(std::size_t i) const { return static_cast<unsigned char>(subject_[i]); }
  unsigned char pattern_byte(std::size_t i) const { return static_cast<unsigned char>(pattern_[i]); }
  bool is_pattern_end(std::size_t i) const { return i >= pattern_.size(); }

  // Returns the position after the single item (character, class or set) that starts at `i`.
  std::size_t item_end(std::size_t i) const {
    const unsigned char first = pattern_byte(i++);
    if (first == '%') {
      if (is_pattern_end(i)) luaL_error(state_, "malformed pattern (ends with '%%')");
      return i + 1;
    }
    if (first != '[') return i;
    if (!is_pattern_end(i) && pattern_byte(i) == '^') ++i;
    do {  // a leading ] is a literal
      if (is_pattern_end(i)) luaL_error(state_, "malformed pattern (missing ']')");
      if (pattern_byte(i++) == '%') ++i;
    } while (is_pattern_end(i) || pattern_byte(i) != ']');
    return i + 1;
  }
  // Returns whether `c` is in the set from the [ at `i` to the ] at `last`.
  bool is_in_set(unsigned char c, std::size_t i, std::size_t last) const {
    const bool is_negated = pattern_byte(++i) == '^';
    if (is_negated) ++i;
    for (; i < last; ++i) {
      if (pattern_byte(i) == '%') {
        if (is_in_class(c, pattern_byte(++i))) return !is_negated;
      } else if (i + 2 < last && pattern_byte(i + 1) == '-') {
        if (pattern_byte(i) <= c && c <= pattern_byte(i + 2)) return !is_negated;
        i += 2;
      } else if (pattern_byte(i) == c) {
        return !is_negated;
      }
    }
    return is_negated;
  }
  bool matches_item(std::size_t position, std::size_t i, std::size_t end) const {
    if (position >= subject_.size()) return false;
    const unsigned char c = subject_byte(position);
    switch (pattern_byte(i)) {
      case '.':
        return true;
      case '%':
        return is_in_class(c, pattern_byte(i + 1));
      case '[':
        charge(state_, (end - i) / 8);
        return is_in_set(c, i, end - 1);
      default:
        return pattern_byte(i) == c;
    }
  }

  std::size_t match(std::size_t position, std::size_t i) {  // NOLINT(misc-no-recursion): depth is bounded
    if (++depth_ > kMaxMatchDepth) luaL_error(state_, "pattern too complex");
    const std::size_t end = match_items(position, i);
    --depth_;
    return end;
  }

  // Matches the items of the pattern in a loop as long as each has one possible match. For an item with several
  // alternatives, calls match() for each alternative.
  std::size_t match_items(std::size_t position, std::size_t i) {  // NOLINT(misc-no-recursion): depth is bounded
    while (!is_pattern_end(i)) {
      charge(state_, 1);
      const unsigned char first = pattern_byte(i);
      if (first == '(') {
        const bool is_position = !is_pattern_end(i + 1) && pattern_byte(i + 1) == ')';
        return open_capture(position, is_position ? i + 2 : i + 1,
                            is_position ? Capture::Kind::position : Capture::Kind::open);
      }
      if (first == ')') return close_capture(position, i + 1);
      if (first == '$' && is_pattern_end(i + 1)) return position == subject_.size() ? position : kNoMatch;
      const unsigned char second = first == '%' && !is_pattern_end(i + 1) ? pattern_byte(i + 1) : 0;
      if (second == 'b' || second == 'f' || std::isdigit(second) != 0) {
        position = second == 'b'   ? match_balanced(position, i)
                   : second == 'f' ? match_frontier(position, i)
                                   : match_back_reference(position, i);
        if (position == kNoMatch) return kNoMatch;
        continue;
      }
      const std::size_t end = item_end(i);
      charge_v2(state_, (end - i) / 8);
      const unsigned char quantifier = is_pattern_end(end) ? 0 : pattern_byte(end);
      if (quantifier == '*' || quantifier == '+') return match_greedy(position, i, end, quantifier == '+' ? 1 : 0);
      if (quantifier == '-') return match_lazy(position, i, end);
      const bool found = matches_item(position, i, end);
      if (quantifier == '?') {
        const std::size_t end_with_item = found ? match(position + 1, end + 1) : kNoMatch;
        if (end_with_item != kNoMatch) return end_with_item;
        i = end + 1;
        continue;
      }
      if (!found) return kNoMatch;
      ++position;
      i = end;
    }
    return position;
  }

  std::size_t match_greedy(std::size_t position, std::size_t i, std::size_t end,
                           std::size_t min) {  // NOLINT(misc-no-recursion)
    std::size_t count = 0;
    while (matches_item(position + count, i, end)) ++count;
    charge(state_, count / 4);
    for (++count; count-- > min;) {
      charge(state_, 1);
      const std::size_t found = match(position + count, end + 1);
      if (found != kNoMatch) return found;
    }
    return kNoMatch;
  }
  std::size_t match_lazy(std::size_t position, std::size_t i, std::size_t end) {  // NOLINT(misc-no-recursion)
    for (;;) {
      charge(state_, 1);
      const std::size_t found = match(position, end + 1);
      if (found != kNoMatch) return found;
      if (!matches_item(position, i, end)) return kNoMatch;
      ++position;
    }
  }

  std::size_t open_capture(std::size_t position, std::size_t i, Capture::Kind kind) {  // NOLINT(misc-no-recursion)
    if (capture_count_ >= kMaxCaptures) luaL_error(state_, "too many captures");
    capture_list_[capture_count_++] = {kind, position, 0};
    const std::size_t end = match(position, i);
    if (end == kNoMatch) --capture_count_;
    return end;
  }
  std::size_t close_capture(std::size_t position, std::size_t i) {  // NOLINT(misc-no-recursion)
    int level = capture_count_ - 1;
    while (level >= 0 && capture_list_[level].kind != Capture::Kind::open) --level;
    if (level < 0) luaL_error(state_, "invalid pattern capture");
    Capture& capture = capture_list_[level];
    capture.kind = Capture::Kind::text;
    capture.size = position - capture.begin;
    const std::size_t end = match(position, i);
    if (end == kNoMatch) capture_list_[level].kind = Capture::Kind::open;
    return end;
  }

  // Matches %bxy, %f[set] and %1. Returns the end of the match and sets `i` after the pattern item.
  std::size_t match_balanced(std::size_t position, std::size_t& i) const {
    if (i + 3 >= pattern_.size()) luaL_error(state_, "malformed pattern (missing arguments to '%%b')");
    const unsigned char open_byte = pattern_byte(i + 2), close_byte = pattern_byte(i + 3);
    i += 4;
    if (position >= subject_.size() || subject_byte(position) != open_byte) return kNoMatch;
    for (std::size_t depth = 1, end = position + 1; end < subject_.size(); ++end) {
      charge(state_, 1);
      if (subject_byte(end) == close_byte) {
        if (--depth == 0) return end + 1;
      } else if (subject_byte(end) == open_byte) {
        ++depth;
      }
    }
    return kNoMatch;
  }
  std::size_t match_frontier(std::size_t position, std::size_t& i) const {
    const std::size_t set = i + 2;
    if (is_pattern_end(set) || pattern_byte(set) != '[') luaL_error(state_, "missing '[' after '%%f' in pattern");
    i = item_end(set);
    charge_v2(state_, (i - set) / 4);
    const unsigned char left = position == 0 ? 0 : subject_byte(position - 1),
                        right = position < subject_.size() ? subject_byte(position) : 0;
    return !is_in_set(left, set, i - 1) && is_in_set(right, set, i - 1) ? position : kNoMatch;
  }
  std::size_t match_back_reference(std::size_t position, std::size_t& i) const {
    const int level = pattern_byte(i + 1) - '1';
    i += 2;
    if (level < 0 || level >= capture_count_ || capture_list_[level].kind == Capture::Kind::open)
      luaL_error(state_, "invalid capture index %%%d in pattern", level + 1);
    const std::size_t size = capture_list_[level].size;
    charge(state_, size / 64);
    const bool same = subject_.substr(position, size) == subject_.substr(capture_list_[level].begin, size);
    return same ? position + size : kNoMatch;
  }

  lua_State* state_;
  std::string_view subject_, pattern_;
  int capture_count_ = 0, depth_ = 0;
  Capture capture_list_[kMaxCaptures];
};

std::string_view get_string_argument(lua_State* state, int index) {
  std::size_t size = 0;
  const char* const text = luaL_checklstring(state, index, &size);
  return {text, size};
}

// Parses the start of a search, an argument that counts from 1, or from the end of the subject if it is negative.
// Returns false if the start is after the end of the subject.
bool parse_start(lua_State* state, int index, std::size_t size, std::size_t& out) {
  const lua_Integer start = luaL_optinteger(state, index, 1);
  const auto length = static_cast<lua_Integer>(size);
  const lua_Integer begin = start > 0 ? start : start == 0 || start < -length ? 1 : length + start + 1;
  out = static_cast<std::size_t>(begin - 1);
  return begin <= length + 1;
}

// Searches in linear time. Counting version 1 keeps the original search, so that its charges stay the same.
std::size_t find_literal(std::string_view subject, std::string_view pattern, std::size_t at) {
  if (budget().counting_version < 2) return subject.find(pattern, at);
  const void* const found = ::memmem(subject.data() + at, subject.size() - at, pattern.data(), pattern.size());
  return found == nullptr ? subject.npos : static_cast<std::size_t>(static_cast<const char*>(found) - subject.data());
}

int search(lua_State* state, bool find) {
  const std::string_view subject = get_string_argument(state, 1), pattern = get_string_argument(state, 2);
  std::size_t at = 0;
  if (!parse_start(state, 3, subject.size(), at)) return lua_pushnil(state), 1;
  charge_v2(state, pattern.size() / 4);
  const bool is_literal = find && (lua_toboolean(state, 4) != 0 || pattern.find_first_of("^$*+?.([%-") == pattern.npos);
  if (is_literal) {
    charge(state, subject.size() / 16 + 1);
    charge_v2(state, (subject.size() - at) / 8);
    const std::size_t found = find_literal(subject, pattern, at);
    if (found == subject.npos) return lua_pushnil(state), 1;
    lua_pushinteger(state, static_cast<lua_Integer>(found) + 1);
    lua_pushinteger(state, static_cast<lua_Integer>(found) + static_cast<lua_Integer>(pattern.size()));
    return 2;
  }
  const bool is_anchored = !pattern.empty() && pattern[0] == '^';
  PatternMatcher matcher(state, subject, pattern);
  for (; at <= subject.size(); ++at) {
    charge(state, 1);
    const std::size_t end = matcher.match_at(at, is_anchored ? 1 : 0);
    if (end != PatternMatcher::kNoMatch) {
      if (!find) return matcher.push_captures(at, end, true);
      lua_pushinteger(state, static_cast<lua_Integer>(at) + 1);
      lua_pushinteger(state, static_cast<lua_Integer>(end));
      return 2 + matcher.push_captures(at, end, false);
    }
    if (is_anchored) break;
  }
  return lua_pushnil(state), 1;
}

int find(lua_State* state) { return search(state, true); }
int match(lua_State* state) { return search(state, false); }

// Iterator of gmatch(). Upvalues: subject, pattern, position of the next search, end of the last match (-1: no match).
int next_match(lua_State* state) {
  const std::string_view subject = get_string_argument(state, lua_upvalueindex(1)),
                         pattern = get_string_argument(state, lua_upvalueindex(2));
  auto at = static_cast<std::size_t>(lua_tointeger(state, lua_upvalueindex(3)));
  const auto last = static_cast<std::size_t>(lua_tointeger(state, lua_upvalueindex(4)));
  PatternMatcher matcher(state, subject, pattern);
  for (; at <= subject.size(); ++at) {
    charge(state, 1);
    const std::size_t end = matcher.match_at(at, 0);
    if (end == PatternMatcher::kNoMatch || end == last) continue;
    for (int i : {3, 4}) {
      lua_pushinteger(state, static_cast<lua_Integer>(end));
      lua_replace(state, lua_upvalueindex(i));
    }
    return matcher.push_captures(at, end, true);
  }
  return 0;
}

int gmatch(lua_State* state) {
  const std::size_t size = get_string_argument(state, 1).size();
  get_string_argument(state, 2);
  std::size_t at = 0;
  if (!parse_start(state, 3, size, at)) at = size + 1;
  lua_settop(state, 2);
  lua_pushinteger(state, static_cast<lua_Integer>(at));
  lua_pushinteger(state, -1);
  lua_pushcclosure(state, next_match, 4);
  return 1;
}

// Appends the replacement text, with %0 to %9 replaced by captures.
void append_text(lua_State* state, const PatternMatcher& matcher, std::size_t begin, std::size_t end,
                 std::string& out) {
  const std::string_view text = get_string_argument(state, 3);
  charge_v2(state, text.size() / 8);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const char digit = ++i < text.size() ? text[i] : '\0';
    if (digit == '%') {
      out += '%';
    } else if (digit == '0') {
      out.append(get_string_argument(state, 1).substr(begin, end - begin));
    } else if (digit >= '1' && digit <= '9') {
      matcher.push_capture(digit - '1', begin, end);
      out += get_string_argument(state, -1);
      lua_pop(state, 1);
    } else {
      luaL_error(state, "invalid use of '%%' in replacement string");
    }
  }
}

void append_replacement(lua_State* state, const PatternMatcher& matcher, std::size_t begin, std::size_t end,
                        std::string& out) {
  const int type = lua_type(state, 3);
  if (type == LUA_TSTRING || type == LUA_TNUMBER) return append_text(state, matcher, begin, end, out);
  if (type == LUA_TFUNCTION) {
    lua_pushvalue(state, 3);
    lua_call(state, matcher.push_captures(begin, end, true), 1);
  } else {
    matcher.push_capture(0, begin, end);
    lua_gettable(state, 3);
  }
  if (lua_toboolean(state, -1) == 0) {
    out.append(get_string_argument(state, 1).substr(begin, end - begin));
  } else if (lua_isstring(state, -1) == 0) {
    luaL_error(state, "invalid replacement value (a %s)", luaL_typename(state, -1));
  } else {
    out += get_string_argument(state, -1);
  }
  lua_pop(state, 1);
}

// A string under construction. It is allocated outside of the Lua heap, but its bytes are charged to the budget. The
// sum of all strings that are under construction at the same time is limited to half of the heap limit.
class ChargedString {
 public:
  explicit ChargedString(lua_State* state) : state_(state) {}
  ChargedString(const ChargedString&) = delete;
  ChargedString& operator=(const ChargedString&) = delete;
  ~ChargedString() { budget().external_bytes -= charged_bytes_; }

  std::string text;
  void charge_growth() {
    if (text.capacity() == charged_bytes_) return;
    budget().external_bytes += text.capacity() - charged_bytes_;
    budget().allocated_bytes += text.capacity() - charged_bytes_;
    charged_bytes_ = text.capacity();
    if (budget().external_bytes > heap().limit() / 2) end_step(state_, EndReason::memory);
  }

 private:
  lua_State* state_;
  std::size_t charged_bytes_ = 0;
};

int gsub(lua_State* state) {
  const std::string_view subject = get_string_argument(state, 1), pattern = get_string_argument(state, 2);
  const int type = lua_type(state, 3);
  luaL_argexpected(state, type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION || type == LUA_TTABLE, 3,
                   "string/function/table");
  const lua_Integer max = luaL_optinteger(state, 4, static_cast<lua_Integer>(subject.size()) + 1);
  const bool is_anchored = !pattern.empty() && pattern[0] == '^';
  PatternMatcher matcher(state, subject, pattern);
  ChargedString result(state);
  std::string& out = result.text;
  std::size_t at = 0, last = PatternMatcher::kNoMatch;
  lua_Integer count = 0;
  while (count < max) {
    charge(state, 1);
    const std::size_t end = matcher.match_at(at, is_anchored ? 1 : 0);
    if (end != PatternMatcher::kNoMatch && end != last) {
      ++count;
      append_replacement(state, matcher, at, end, out);
      at = last = end;
    } else if (at < subject.size()) {
      out += subject[at++];
    } else {
      break;
    }
    result.charge_growth();
    if (is_anchored) break;
  }
  if (at < subject.size()) out += subject.substr(at);
  lua_pushlstring(state, out.data(), out.size());
  lua_pushinteger(state, count);
  return 2;
}

}  // namespace

void add_patterns(lua_State* state) {
  const luaL_Reg rows[] = {{"find", find}, {"match", match}, {"gmatch", gmatch}, {"gsub", gsub}, {nullptr, nullptr}};
  lua_pushnil(state);
  luaL_setfuncs(state, rows, 1);
}

}  // namespace mycojobs::workflow
