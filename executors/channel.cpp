#include "executors/channel.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace mycojobs {
namespace {
constexpr std::size_t kHeaderBytes = 5;  // u32 length, u8 kind
}

void append_frame(std::string& out, FrameKind kind, std::string_view payload) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(size >> shift));
  out.push_back(static_cast<char>(kind));
  out.append(payload);
}

void append_file(std::string& out, std::string_view path, unsigned mode, std::string_view content) {
  char octal_mode[12];
  std::snprintf(octal_mode, sizeof octal_mode, "%o", mode);
  std::string file_header(path);
  file_header += '\0';
  file_header += octal_mode;
  file_header += '\0';
  const std::size_t max_part_bytes = kMaxFileFrameBytes - file_header.size();
  do {  // an empty file also needs one frame
    const std::string_view part = content.substr(0, max_part_bytes);
    append_frame(out, FrameKind::file, file_header + std::string(part));
    content.remove_prefix(part.size());
  } while (!content.empty());
}

void FrameReader::begin_frame(const std::function<void(Frame&&)>& sink) {
  frame_ = Frame{};
  ++frame_count_;
  for (unsigned i = 0; i < 4; ++i) frame_.size |= std::uint32_t{static_cast<unsigned char>(header_[i])} << (8 * i);
  frame_.kind = static_cast<std::uint8_t>(header_[4]);
  missing_bytes_ = frame_.size;
  const auto limit = std::find_if(limits_.begin(), limits_.end(), [this](const FrameLimit& entry) {
    return static_cast<std::uint8_t>(entry.kind) == frame_.kind;
  });
  if (limit == limits_.end()) {
    frame_.status = Frame::FrameStatus::unknown_kind;
  } else if (frame_.size > limit->max_bytes) {
    frame_.status = Frame::FrameStatus::too_large;
  }
  // A rejected frame is reported after its header; feed() then skips its payload.
  if (frame_.status != Frame::FrameStatus::accepted) sink(Frame{frame_});
}

void FrameReader::feed(std::string_view bytes, const std::function<void(Frame&&)>& sink) {
  while (!bytes.empty()) {
    if (header_.size() < kHeaderBytes) {
      const std::size_t count = std::min(kHeaderBytes - header_.size(), bytes.size());
      header_.append(bytes.substr(0, count));
      bytes.remove_prefix(count);
      if (header_.size() < kHeaderBytes) return;
      begin_frame(sink);
    }
    const std::size_t count = std::min<std::size_t>(missing_bytes_, bytes.size());
    if (frame_.status == Frame::FrameStatus::accepted) frame_.payload.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    missing_bytes_ -= static_cast<std::uint32_t>(count);
    if (missing_bytes_ > 0) continue;
    header_.clear();
    if (frame_.status == Frame::FrameStatus::accepted) sink(std::move(frame_));
  }
}

}  // namespace mycojobs
