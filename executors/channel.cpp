#include "executors/channel.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace mycojobs {
namespace {
constexpr std::size_t kHeaderBytes = 5;
}

void append_frame(std::string& out, FrameKind kind, std::string_view payload) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(size >> shift));
  out.push_back(static_cast<char>(kind));
  out.append(payload);
}

void append_file(std::string& out, std::string_view path, unsigned mode, std::string_view bytes) {
  char octal[12];
  std::snprintf(octal, sizeof octal, "%o", mode);
  std::string header(path);
  header += '\0';
  header += octal;
  header += '\0';
  const std::size_t max_part_bytes = kMaxFileFrameBytes - header.size();
  do {  // an empty file needs one frame too
    const std::string_view part = bytes.substr(0, max_part_bytes);
    append_frame(out, FrameKind::file, header + std::string(part));
    bytes.remove_prefix(part.size());
  } while (!bytes.empty());
}

void FrameReader::begin_frame(const std::function<void(Frame&&)>& sink) {
  frame_ = Frame{};
  ++frames_;
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
  if (frame_.status != Frame::FrameStatus::complete) sink(Frame{frame_});
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
    if (frame_.status == Frame::FrameStatus::complete) frame_.payload.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    missing_bytes_ -= static_cast<std::uint32_t>(count);
    if (missing_bytes_ > 0) continue;
    header_.clear();
    if (frame_.status == Frame::FrameStatus::complete) sink(std::move(frame_));
  }
}

}  // namespace mycojobs
