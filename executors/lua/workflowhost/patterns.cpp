#include "executors/lua/workflowhost/patterns.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <string_view>

#include "executors/lua/workflowhost/budget.h"

namespace mycojobs::workflow {
namespace {

constexpr int kMaxCaptures = 32, kMaxDepth = 200;

bool in_class(unsigned char c, unsigned char name) {
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

// Matches a pattern at given positions of a subject. Positions are indexes; kNone: no match.
class PatternMatcher {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  PatternMatcher(lua_State* state, std::string_view subject, std::string_view pattern)
      : state_(state), subject_(subject), pattern_(pattern) {}

  // Returns the end of the match that starts at `at`.
  std::size_t attempt(std::size_t at, std::size_t pattern_at) {
    captures_ = depth_ = 0;
    return match(at, pattern_at);
  }
  int captures() const { return captures_; }
  // Pushes the capture, or the whole match if the pattern has no captures.
  void push(int i, std::size_t begin, std::size_t end) const {
    if (i >= captures_) {
      if (i != 0) luaL_error(state_, "invalid capture index %%%d", i + 1);
      lua_pushlstring(state_, subject_.data() + begin, end - begin);
      return;
    }
    const Capture& capture = capture_[i];
    if (capture.kind == Capture::Kind::open) luaL_error(state_, "unfinished capture");
    if (capture.kind == Capture::Kind::place)
      return lua_pushinteger(state_, static_cast<lua_Integer>(capture.begin) + 1);
    lua_pushlstring(state_, subject_.data() + capture.begin, capture.size);
  }
  int push_all(std::size_t begin, std::size_t end, bool whole_if_none) const {
    const int count = captures_ == 0 && whole_if_none ? 1 : captures_;
    luaL_checkstack(state_, count, "too many captures");
    for (int i = 0; i < count; ++i) push(i, begin, end);
    return count;
  }

 private:
  struct Capture {
    enum class Kind : unsigned char { open, place, text };
    Kind kind = Kind::open;
    std::size_t begin = 0, size = 0;
  };

  unsigned char at(std::size_t i) const { return static_cast<unsigned char>(subject_[i]); }
  unsigned char item(std::size_t i) const { return static_cast<unsigned char>(pattern_[i]); }
  bool ends(std::size_t pattern_at) const { return pattern_at >= pattern_.size(); }

  // Returns the position after the single item (character, class or set) that starts at `i`.
  std::size_t item_end(std::size_t i) const {
    const unsigned char first = item(i++);
    if (first == '%') {
      if (ends(i)) luaL_error(state_, "malformed pattern (ends with '%%')");
      return i + 1;
    }
    if (first != '[') return i;
    if (!ends(i) && item(i) == '^') ++i;
    do {  // a leading ] is a literal
      if (ends(i)) luaL_error(state_, "malformed pattern (missing ']')");
      if (item(i++) == '%') ++i;
    } while (ends(i) || item(i) != ']');
    return i + 1;
  }
  // Returns whether `c` is in the set from the [ at `i` to the ] at `last`.
  bool in_set(unsigned char c, std::size_t i, std::size_t last) const {
    const bool negated = item(++i) == '^';
    if (negated) ++i;
    for (; i < last; ++i) {
      if (item(i) == '%') {
        if (in_class(c, item(++i))) return !negated;
      } else if (i + 2 < last && item(i + 1) == '-') {
        if (item(i) <= c && c <= item(i + 2)) return !negated;
        i += 2;
      } else if (item(i) == c) {
        return !negated;
      }
    }
    return negated;
  }
  bool one(std::size_t place, std::size_t i, std::size_t end) const {
    if (place >= subject_.size()) return false;
    const unsigned char c = at(place);
    switch (item(i)) {
      case '.':
        return true;
      case '%':
        return in_class(c, item(i + 1));
      case '[':
        charge(state_, (end - i) / 8);
        return in_set(c, i, end - 1);
      default:
        return item(i) == c;
    }
  }

  std::size_t match(std::size_t place, std::size_t i) {  // NOLINT(misc-no-recursion): depth is bounded
    if (++depth_ > kMaxDepth) luaL_error(state_, "pattern too complex");
    const std::size_t end = forward(place, i);
    --depth_;
    return end;
  }

  // Advances while the next item has only one possible match; for several alternatives, calls match() for each.
  std::size_t forward(std::size_t place, std::size_t i) {  // NOLINT(misc-no-recursion): depth is bounded
    while (!ends(i)) {
      charge(state_, 1);
      const unsigned char first = item(i);
      if (first == '(') {
        const bool is_place = !ends(i + 1) && item(i + 1) == ')';
        return open(place, is_place ? i + 2 : i + 1, is_place ? Capture::Kind::place : Capture::Kind::open);
      }
      if (first == ')') return close(place, i + 1);
      if (first == '$' && ends(i + 1)) return place == subject_.size() ? place : kNone;
      const unsigned char second = first == '%' && !ends(i + 1) ? item(i + 1) : 0;
      if (second == 'b' || second == 'f' || std::isdigit(second) != 0) {
        place = second == 'b' ? balanced(place, i) : second == 'f' ? frontier(place, i) : repeated(place, i);
        if (place == kNone) return kNone;
        continue;
      }
      const std::size_t end = item_end(i);
      charge_more(state_, (end - i) / 8);
      const unsigned char how = ends(end) ? 0 : item(end);
      if (how == '*' || how == '+') return most(place, i, end, how == '+' ? 1 : 0);
      if (how == '-') return fewest(place, i, end);
      const bool found = one(place, i, end);
      if (how == '?') {
        const std::size_t with = found ? match(place + 1, end + 1) : kNone;
        if (with != kNone) return with;
        i = end + 1;
        continue;
      }
      if (!found) return kNone;
      ++place;
      i = end;
    }
    return place;
  }

  std::size_t most(std::size_t place, std::size_t i, std::size_t end, std::size_t min) {  // NOLINT(misc-no-recursion)
    std::size_t count = 0;
    while (one(place + count, i, end)) ++count;
    charge(state_, count / 4);
    for (++count; count-- > min;) {
      charge(state_, 1);
      const std::size_t found = match(place + count, end + 1);
      if (found != kNone) return found;
    }
    return kNone;
  }
  std::size_t fewest(std::size_t place, std::size_t i, std::size_t end) {  // NOLINT(misc-no-recursion)
    for (;;) {
      charge(state_, 1);
      const std::size_t found = match(place, end + 1);
      if (found != kNone) return found;
      if (!one(place, i, end)) return kNone;
      ++place;
    }
  }

  std::size_t open(std::size_t place, std::size_t i, Capture::Kind kind) {  // NOLINT(misc-no-recursion)
    if (captures_ >= kMaxCaptures) luaL_error(state_, "too many captures");
    capture_[captures_++] = {kind, place, 0};
    const std::size_t end = match(place, i);
    if (end == kNone) --captures_;
    return end;
  }
  std::size_t close(std::size_t place, std::size_t i) {  // NOLINT(misc-no-recursion)
    int level = captures_ - 1;
    while (level >= 0 && capture_[level].kind != Capture::Kind::open) --level;
    if (level < 0) luaL_error(state_, "invalid pattern capture");
    Capture& capture = capture_[level];
    capture.kind = Capture::Kind::text;
    capture.size = place - capture.begin;
    const std::size_t end = match(place, i);
    if (end == kNone) capture_[level].kind = Capture::Kind::open;
    return end;
  }

  // Matches %bxy, %f[set] and %1. Returns the end of the match and sets `i` after the pattern item.
  std::size_t balanced(std::size_t place, std::size_t& i) const {
    if (i + 3 >= pattern_.size()) luaL_error(state_, "malformed pattern (missing arguments to '%%b')");
    const unsigned char opens = item(i + 2), closes = item(i + 3);
    i += 4;
    if (place >= subject_.size() || at(place) != opens) return kNone;
    for (std::size_t depth = 1, end = place + 1; end < subject_.size(); ++end) {
      charge(state_, 1);
      if (at(end) == closes) {
        if (--depth == 0) return end + 1;
      } else if (at(end) == opens) {
        ++depth;
      }
    }
    return kNone;
  }
  std::size_t frontier(std::size_t place, std::size_t& i) const {
    const std::size_t set = i + 2;
    if (ends(set) || item(set) != '[') luaL_error(state_, "missing '[' after '%%f' in pattern");
    i = item_end(set);
    charge_more(state_, (i - set) / 4);
    const unsigned char left = place == 0 ? 0 : at(place - 1), right = place < subject_.size() ? at(place) : 0;
    return !in_set(left, set, i - 1) && in_set(right, set, i - 1) ? place : kNone;
  }
  std::size_t repeated(std::size_t place, std::size_t& i) const {
    const int level = item(i + 1) - '1';
    i += 2;
    if (level < 0 || level >= captures_ || capture_[level].kind == Capture::Kind::open)
      luaL_error(state_, "invalid capture index %%%d in pattern", level + 1);
    const std::size_t size = capture_[level].size;
    charge(state_, size / 64);
    const bool same = subject_.substr(place, size) == subject_.substr(capture_[level].begin, size);
    return same ? place + size : kNone;
  }

  lua_State* state_;
  std::string_view subject_, pattern_;
  int captures_ = 0, depth_ = 0;
  Capture capture_[kMaxCaptures];
};

std::string_view argument(lua_State* state, int index) {
  std::size_t size = 0;
  const char* const text = luaL_checklstring(state, index, &size);
  return {text, size};
}

// Computes the start of a search: an argument from 1, or counted from the end if negative. Returns false if the start
// is after the end of the subject.
bool begin_of(lua_State* state, int index, std::size_t size, std::size_t& out) {
  const lua_Integer asked = luaL_optinteger(state, index, 1);
  const auto length = static_cast<lua_Integer>(size);
  const lua_Integer begin = asked > 0 ? asked : asked == 0 || asked < -length ? 1 : length + asked + 1;
  out = static_cast<std::size_t>(begin - 1);
  return begin <= length + 1;
}

// Searches in linear time. Counting version 1 keeps the original search, so that its charges stay the same.
std::size_t find_text(std::string_view subject, std::string_view pattern, std::size_t at) {
  if (budget().counting < 2) return subject.find(pattern, at);
  const void* const found = ::memmem(subject.data() + at, subject.size() - at, pattern.data(), pattern.size());
  return found == nullptr ? subject.npos : static_cast<std::size_t>(static_cast<const char*>(found) - subject.data());
}

int search(lua_State* state, bool find) {
  const std::string_view subject = argument(state, 1), pattern = argument(state, 2);
  std::size_t at = 0;
  if (!begin_of(state, 3, subject.size(), at)) return lua_pushnil(state), 1;
  charge_more(state, pattern.size() / 4);
  const bool plain = find && (lua_toboolean(state, 4) != 0 || pattern.find_first_of("^$*+?.([%-") == pattern.npos);
  if (plain) {
    charge(state, subject.size() / 16 + 1);
    charge_more(state, (subject.size() - at) / 8);
    const std::size_t found = find_text(subject, pattern, at);
    if (found == subject.npos) return lua_pushnil(state), 1;
    lua_pushinteger(state, static_cast<lua_Integer>(found) + 1);
    lua_pushinteger(state, static_cast<lua_Integer>(found) + static_cast<lua_Integer>(pattern.size()));
    return 2;
  }
  const bool anchored = !pattern.empty() && pattern[0] == '^';
  PatternMatcher matching(state, subject, pattern);
  for (; at <= subject.size(); ++at) {
    charge(state, 1);
    const std::size_t end = matching.attempt(at, anchored ? 1 : 0);
    if (end != PatternMatcher::kNone) {
      if (!find) return matching.push_all(at, end, true);
      lua_pushinteger(state, static_cast<lua_Integer>(at) + 1);
      lua_pushinteger(state, static_cast<lua_Integer>(end));
      return 2 + matching.push_all(at, end, false);
    }
    if (anchored) break;
  }
  return lua_pushnil(state), 1;
}

int find(lua_State* state) { return search(state, true); }
int match(lua_State* state) { return search(state, false); }

// Iterator of gmatch(). Upvalues: subject, pattern, position of the next search, end of the last match (-1: no match).
int next_match(lua_State* state) {
  const std::string_view subject = argument(state, lua_upvalueindex(1)), pattern = argument(state, lua_upvalueindex(2));
  auto at = static_cast<std::size_t>(lua_tointeger(state, lua_upvalueindex(3)));
  const auto last = static_cast<std::size_t>(lua_tointeger(state, lua_upvalueindex(4)));
  PatternMatcher matching(state, subject, pattern);
  for (; at <= subject.size(); ++at) {
    charge(state, 1);
    const std::size_t end = matching.attempt(at, 0);
    if (end == PatternMatcher::kNone || end == last) continue;
    for (int i : {3, 4}) {
      lua_pushinteger(state, static_cast<lua_Integer>(end));
      lua_replace(state, lua_upvalueindex(i));
    }
    return matching.push_all(at, end, true);
  }
  return 0;
}

int gmatch(lua_State* state) {
  const std::size_t size = argument(state, 1).size();
  argument(state, 2);
  std::size_t at = 0;
  if (!begin_of(state, 3, size, at)) at = size + 1;
  lua_settop(state, 2);
  lua_pushinteger(state, static_cast<lua_Integer>(at));
  lua_pushinteger(state, -1);
  lua_pushcclosure(state, next_match, 4);
  return 1;
}

// Appends the replacement text, with %0 to %9 replaced by captures.
void append_text(lua_State* state, const PatternMatcher& matching, std::size_t begin, std::size_t end,
                 std::string& out) {
  const std::string_view text = argument(state, 3);
  charge_more(state, text.size() / 8);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const char which = ++i < text.size() ? text[i] : '\0';
    if (which == '%') {
      out += '%';
    } else if (which == '0') {
      out.append(argument(state, 1).substr(begin, end - begin));
    } else if (which >= '1' && which <= '9') {
      matching.push(which - '1', begin, end);
      out += argument(state, -1);
      lua_pop(state, 1);
    } else {
      luaL_error(state, "invalid use of '%%' in replacement string");
    }
  }
}

void append_replacement(lua_State* state, const PatternMatcher& matching, std::size_t begin, std::size_t end,
                        std::string& out) {
  const int type = lua_type(state, 3);
  if (type == LUA_TSTRING || type == LUA_TNUMBER) return append_text(state, matching, begin, end, out);
  if (type == LUA_TFUNCTION) {
    lua_pushvalue(state, 3);
    lua_call(state, matching.push_all(begin, end, true), 1);
  } else {
    matching.push(0, begin, end);
    lua_gettable(state, 3);
  }
  if (lua_toboolean(state, -1) == 0) {
    out.append(argument(state, 1).substr(begin, end - begin));
  } else if (lua_isstring(state, -1) == 0) {
    luaL_error(state, "invalid replacement value (a %s)", luaL_typename(state, -1));
  } else {
    out += argument(state, -1);
  }
  lua_pop(state, 1);
}

// A string under construction. It is allocated outside the Lua heap until it is complete, but its bytes are charged to
// the budget. The limit applies to the sum of all strings that are under construction at the same time.
class ChargedText {
 public:
  explicit ChargedText(lua_State* state) : state_(state) {}
  ChargedText(const ChargedText&) = delete;
  ChargedText& operator=(const ChargedText&) = delete;
  ~ChargedText() { budget().beside -= counted_; }

  std::string text;
  void count() {
    if (text.capacity() == counted_) return;
    budget().beside += text.capacity() - counted_;
    budget().allocated += text.capacity() - counted_;
    counted_ = text.capacity();
    if (budget().beside > heap().limit() / 2) end_step(state_, EndReason::by_memory);
  }

 private:
  lua_State* state_;
  std::size_t counted_ = 0;
};

int gsub(lua_State* state) {
  const std::string_view subject = argument(state, 1), pattern = argument(state, 2);
  const int type = lua_type(state, 3);
  luaL_argexpected(state, type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION || type == LUA_TTABLE, 3,
                   "string/function/table");
  const lua_Integer max = luaL_optinteger(state, 4, static_cast<lua_Integer>(subject.size()) + 1);
  const bool anchored = !pattern.empty() && pattern[0] == '^';
  PatternMatcher matching(state, subject, pattern);
  ChargedText made(state);
  std::string& out = made.text;
  std::size_t at = 0, last = PatternMatcher::kNone;
  lua_Integer count = 0;
  while (count < max) {
    charge(state, 1);
    const std::size_t end = matching.attempt(at, anchored ? 1 : 0);
    if (end != PatternMatcher::kNone && end != last) {
      ++count;
      append_replacement(state, matching, at, end, out);
      at = last = end;
    } else if (at < subject.size()) {
      out += subject[at++];
    } else {
      break;
    }
    made.count();
    if (anchored) break;
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
