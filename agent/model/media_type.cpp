#include "model/media_type.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace mycojobs {
namespace {

constexpr std::string_view kBinary = "application/octet-stream", kPlainText = "text/plain";

enum class DownloadKind { as_image, as_text, as_binary };
struct MediaTypeRow {
  std::string_view ending, type;
  DownloadKind kind;
};
constexpr std::array kMediaTypes = std::to_array<MediaTypeRow>({
    {"avif", "image/avif", DownloadKind::as_image},
    {"bmp", "image/bmp", DownloadKind::as_image},
    {"gif", "image/gif", DownloadKind::as_image},
    {"jpeg", "image/jpeg", DownloadKind::as_image},
    {"jpg", "image/jpeg", DownloadKind::as_image},
    {"png", "image/png", DownloadKind::as_image},
    {"webp", "image/webp", DownloadKind::as_image},
    {"csv", "text/csv", DownloadKind::as_text},
    {"json", "application/json", DownloadKind::as_text},
    {"log", kPlainText, DownloadKind::as_text},
    {"md", "text/markdown", DownloadKind::as_text},
    {"toml", "application/toml", DownloadKind::as_text},
    {"tsv", "text/tab-separated-values", DownloadKind::as_text},
    {"txt", kPlainText, DownloadKind::as_text},
    {"yaml", "application/yaml", DownloadKind::as_text},
    {"yml", "application/yaml", DownloadKind::as_text},
    {"css", "text/css", DownloadKind::as_binary},
    {"gz", "application/gzip", DownloadKind::as_binary},
    {"htm", "text/html", DownloadKind::as_binary},
    {"html", "text/html", DownloadKind::as_binary},
    {"js", "text/javascript", DownloadKind::as_binary},
    {"mjs", "text/javascript", DownloadKind::as_binary},
    {"pdf", "application/pdf", DownloadKind::as_binary},
    {"svg", "image/svg+xml", DownloadKind::as_binary},
    {"svgz", "image/svg+xml", DownloadKind::as_binary},
    {"tar", "application/x-tar", DownloadKind::as_binary},
    {"xht", "application/xhtml+xml", DownloadKind::as_binary},
    {"xhtml", "application/xhtml+xml", DownloadKind::as_binary},
    {"xml", "application/xml", DownloadKind::as_binary},
    {"zip", "application/zip", DownloadKind::as_binary},
});

std::string get_lower_ending(std::string_view name) {
  const std::string_view file = name.substr(name.rfind('/') + 1);
  const auto dot = file.rfind('.');
  std::string ending(dot == std::string_view::npos ? std::string_view() : file.substr(dot + 1));
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

}  // namespace

std::string_view find_media_type(std::string_view name, bool is_text) {
  const std::string ending = get_lower_ending(name);
  const auto row = std::find_if(kMediaTypes.begin(), kMediaTypes.end(),
                                [&](const MediaTypeRow& candidate) { return candidate.ending == ending; });
  // A binary file with the ending of a text is not announced as text.
  const bool is_wrong_text = row != kMediaTypes.end() && row->kind == DownloadKind::as_text && !is_text;
  if (row != kMediaTypes.end() && !is_wrong_text) return row->type;
  return is_text ? kPlainText : kBinary;
}

std::string_view get_download_type(std::string_view media_type) {
  const auto row = std::find_if(kMediaTypes.begin(), kMediaTypes.end(),
                                [&](const MediaTypeRow& candidate) { return candidate.type == media_type; });
  if (row == kMediaTypes.end() || row->kind == DownloadKind::as_binary) return kBinary;
  return row->kind == DownloadKind::as_image ? row->type : "text/plain; charset=utf-8";
}

}  // namespace mycojobs
