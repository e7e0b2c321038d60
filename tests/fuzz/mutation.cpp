#include "fuzz/mutation.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace mycojobs::fuzz {
namespace {

constexpr std::size_t kMaxBytes = 8192;

const std::string& pick_random(const Corpus& corpus, Random& random) {
  return std::next(corpus.begin(), static_cast<std::ptrdiff_t>(random() % corpus.size()))->second;
}

// Selects a range of the text; short ranges are more frequent.
std::pair<std::size_t, std::size_t> stretch(const std::string& text, Random& random) {
  const std::size_t from = random() % (text.size() + 1);
  return {from, random() % (random() % 8 == 0 ? text.size() + 1 : 24)};
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.';
}
// Returns the word around a position, or a single character if there is no word.
std::pair<std::size_t, std::size_t> word_at(std::string_view text, std::size_t at) {
  if (at >= text.size() || !is_word(text[at])) return {at, at < text.size() ? 1 : 0};
  std::size_t from = at, to = at;
  while (from > 0 && is_word(text[from - 1])) --from;
  while (to < text.size() && is_word(text[to])) ++to;
  return {from, to - from};
}

// Replaces a word by another word. Inputs with an intact structure are parsed further than damaged ones.
void change_word(std::string& text, const Corpus& corpus, Random& random) {
  const std::string& other = pick_random(corpus, random);
  const auto [from, size] = word_at(text, random() % (text.size() + 1));
  const auto [other_from, other_size] = word_at(other, random() % (other.size() + 1));
  if (size == 0 || other_size == 0 || is_word(text[from]) != is_word(other[other_from])) return;
  text.replace(from, size, other, other_from, other_size);
}

void change(std::string& text, const Corpus& corpus, std::span<const std::string_view> pieces, Random& random) {
  const auto [at, size] = stretch(text, random);
  const std::string_view piece = pieces[random() % pieces.size()];
  switch (random() % 12) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << random() % 8);
      break;
    case 2:
      text.erase(at, size);
      break;
    case 3:
      text.insert(at, text.substr(at, size));
      break;
    case 4:
      text.resize(at);
      break;
    case 5: {  // text from another position or another input of the corpus
      const std::string& other = pick_random(corpus, random);
      const auto [from, length] = stretch(other, random);
      text.insert(at, other.substr(from, length));
      break;
    }
    case 6:
      text.replace(at, std::min(piece.size(), text.size() - at), piece);
      break;
    case 7:
    case 8:
      text.insert(at, piece);
      break;
    default:
      change_word(text, corpus, random);
  }
}

}  // namespace

Corpus load_corpus(const std::string& folder, std::string_view target) {
  Corpus corpus;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder + '/' + std::string(target), none)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    corpus[entry.path().filename()] = text.str();
  }
  return corpus;
}

std::string mutated(const Corpus& corpus, std::span<const std::string_view> pieces, Random& random) {
  std::string text = pick_random(corpus, random);
  for (std::uint64_t times = 1 + random() % (1 + random() % 8); times > 0; --times)
    change(text, corpus, pieces, random);
  if (text.size() > kMaxBytes) text.resize(kMaxBytes);
  return text;
}

}  // namespace mycojobs::fuzz
