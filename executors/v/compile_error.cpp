#include "executors/v/compile_error.h"

#include <algorithm>
#include <charconv>

#include "domain/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kLongestName = 100;

bool is_of_a_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == '/';
}

// The compiler tells the path as it was given, or the whole one.
std::string renamed(std::string_view text, const std::string& name) {
  std::string out;
  while (!text.empty()) {
    const std::size_t at = text.find(kSourceFile);
    if (at == std::string_view::npos) break;
    std::string_view before = text.substr(0, at);
    for (const std::string_view folder : {"/job/", "./"}) {
      if (before.ends_with(folder)) before.remove_suffix(folder.size());
    }
    const std::size_t end = at + kSourceFile.size();
    const bool ours = (before.empty() || !is_of_a_name(before.back())) &&
                      (end == text.size() || text[end] == ':' || !is_of_a_name(text[end]));
    out += ours ? before : text.substr(0, at);
    out += ours ? std::string_view(name) : kSourceFile;
    text.remove_prefix(end);
  }
  return out.append(text);
}

// "main.v:3:5: error: text" -> 3, "text"; 0: it is no such line.
std::uint32_t place_of(std::string_view line, const std::string& name) {
  const std::size_t at = line.find(name + ':');
  std::uint32_t number = 0;
  if (at == std::string_view::npos || line.find(" error: ") == std::string_view::npos) return 0;
  const char* begin = line.data() + at + name.size() + 1;
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), number);
  return error == std::errc() && end < line.data() + line.size() && *end == ':' ? number : 0;
}

}  // namespace

std::string source_name(std::string_view job_name) {
  const bool plain =
      !job_name.empty() && job_name.size() <= kLongestName && std::all_of(job_name.begin(), job_name.end(), [](char c) {
        return static_cast<unsigned char>(c) > ' ' && c != '\x7f' && c != ':' && c != '/';
      });
  if (!plain) return std::string(kSourceFile);
  return std::string(job_name) + (job_name.ends_with(".v") ? "" : ".v");
}

ScriptError compile_error(std::string_view text, const std::string& name) {
  ScriptError error;
  error.type = "CompileError";
  error.traceback = renamed(to_utf8(text), name);
  error.retry_forbidden = true;
  std::string_view first, last;
  for (std::string_view rest = error.traceback; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r=") == std::string_view::npos) continue;
    last = line;
    if (error.line = place_of(line, name); error.line != 0) {
      first = line;
      break;
    }
    if (first.empty() && line.find("error:") != std::string_view::npos) first = line;
  }
  error.message = std::string(first.empty() ? last : first);
  if (error.message.empty()) error.message = "the compiler said nothing";
  return error;
}

}  // namespace mycojobs
