#include "text/search_words.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <memory>

namespace mycojobs {
namespace {

bool is_word_character(utf8proc_int32_t code_point) {
  switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

// Returns whether the character is a word by itself: kana, and Han characters with their extensions.
bool is_single_character_word(utf8proc_int32_t code_point) {
  return (code_point >= 0x3040 && code_point <= 0x30ff) || (code_point >= 0x3400 && code_point <= 0x4dbf) ||
         (code_point >= 0x4e00 && code_point <= 0x9fff) || (code_point >= 0xf900 && code_point <= 0xfaff) ||
         (code_point >= 0x20000 && code_point <= 0x3ffff);
}

// Collects the words of a sequence of characters. The beginning of a word that is longer than kMaxWordBytes is used.
class WordSplitter {
 public:
  explicit WordSplitter(std::set<std::string>& words) : words_(words) {}

  void add_character(utf8proc_int32_t code_point) {
    if (!is_word_character(code_point)) return end_word();
    if (is_single_character_word(code_point)) end_word();
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto size = static_cast<std::size_t>(utf8proc_encode_char(code_point, bytes.data()));
    if (word_.size() + size <= kMaxWordBytes) word_.append(reinterpret_cast<const char*>(bytes.data()), size);
    if (is_single_character_word(code_point)) end_word();
  }
  void end_word() {
    if (!word_.empty()) words_.insert(std::move(word_));
    word_.clear();
  }

 private:
  std::set<std::string>& words_;
  std::string word_;
};

// Each byte that is not UTF-8 ends a word.
void collect_words(std::string_view text, std::set<std::string>& words) {
  WordSplitter splitter(words);
  const auto* position = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto remaining = static_cast<utf8proc_ssize_t>(text.size());
  while (remaining > 0) {
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t size = utf8proc_iterate(position, remaining, &code_point);
    splitter.add_character(size > 0 ? code_point : ' ');
    position += size > 0 ? size : 1;
    remaining -= size > 0 ? size : 1;
  }
  splitter.end_word();
}

}  // namespace

void add_search_words(std::string_view text, std::set<std::string>& words) {
  utf8proc_uint8_t* folded = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT |
                                                      UTF8PROC_CASEFOLD | UTF8PROC_IGNORE);
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &folded, options);
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> folded_owner(folded, std::free);
  // utf8proc_map() fails if the text is not UTF-8. Such a text is split without normalization.
  if (size < 0) return collect_words(text, words);
  collect_words({reinterpret_cast<const char*>(folded), static_cast<std::size_t>(size)}, words);
}

}  // namespace mycojobs
