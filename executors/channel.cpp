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
  std::string head(path);
  head += '\0';
  head += octal;
  head += '\0';
  const std::size_t room = kMaxFileFrameBytes - head.size();
  do {  // an empty file needs one frame too
    const std::string_view part = bytes.substr(0, room);
    append_frame(out, FrameKind::file, head + std::string(part));
    bytes.remove_prefix(part.size());
  } while (!bytes.empty());
}

void FrameReader::open_frame(const std::function<void(Frame&&)>& sink) {
  frame_ = Frame{};
  ++frames_;
  for (unsigned i = 0; i < 4; ++i) frame_.size |= std::uint32_t{static_cast<unsigned char>(header_[i])} << (8 * i);
  frame_.kind = static_cast<std::uint8_t>(header_[4]);
  missing_ = frame_.size;
  const auto limit = std::find_if(known_.begin(), known_.end(), [this](const FrameLimit& known) {
    return static_cast<std::uint8_t>(known.kind) == frame_.kind;
  });
  if (limit == known_.end()) {
    frame_.fate = Frame::FrameStatus::unknown_kind;
  } else if (frame_.size > limit->max_bytes) {
    frame_.fate = Frame::FrameStatus::too_large;
  }
  if (frame_.fate != Frame::FrameStatus::whole) sink(Frame{frame_});
}

void FrameReader::feed(std::string_view bytes, const std::function<void(Frame&&)>& sink) {
  while (!bytes.empty()) {
    if (header_.size() < kHeaderBytes) {
      const std::size_t take = std::min(kHeaderBytes - header_.size(), bytes.size());
      header_.append(bytes.substr(0, take));
      bytes.remove_prefix(take);
      if (header_.size() < kHeaderBytes) return;
      open_frame(sink);
    }
    const std::size_t take = std::min<std::size_t>(missing_, bytes.size());
    if (frame_.fate == Frame::FrameStatus::whole) frame_.payload.append(bytes.substr(0, take));
    bytes.remove_prefix(take);
    missing_ -= static_cast<std::uint32_t>(take);
    if (missing_ > 0) continue;
    header_.clear();
    if (frame_.fate == Frame::FrameStatus::whole) sink(std::move(frame_));
  }
}

}  // namespace mycojobs
