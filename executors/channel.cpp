#include "executors/channel.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace mycojobs {
namespace {
constexpr std::size_t kHeaderBytes = 5;  // u32 length, u8 kind
}

namespace {
void append_header(std::string& out, FrameKind kind, std::size_t payload_bytes) {
  const auto size = static_cast<std::uint32_t>(payload_bytes);
  for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(size >> shift));
  out.push_back(static_cast<char>(kind));
}

std::string format_file_header(std::string_view path, unsigned mode) {
  char octal_mode[12];
  std::snprintf(octal_mode, sizeof octal_mode, "%o", mode);
  std::string header(path);
  header += '\0';
  header += octal_mode;
  header += '\0';
  return header;
}
}  // namespace

void append_frame(std::string& out, FrameKind kind, std::string_view payload) {
  append_header(out, kind, payload.size());
  out.append(payload);
}

void append_file(std::string& out, std::string_view path, unsigned mode, std::string_view content) {
  append_file(out, path, mode, content.size(), [&content](std::span<char> part) {
    content.copy(part.data(), part.size());
    content.remove_prefix(part.size());
    return true;
  });
}

bool append_file(std::string& out, std::string_view path, unsigned mode, std::uint64_t bytes,
                 const std::function<bool(std::span<char>)>& read_part) {
  const std::string header = format_file_header(path, mode);
  const std::uint64_t max_part_bytes = kMaxFileFrameBytes - header.size();
  do {  // an empty file also needs one frame
    const auto part_bytes = static_cast<std::size_t>(std::min(bytes, max_part_bytes));
    append_header(out, FrameKind::file, header.size() + part_bytes);
    out += header;
    const std::size_t part_begin = out.size();
    out.resize(part_begin + part_bytes);
    if (!read_part(std::span(out).subspan(part_begin))) return false;
    bytes -= part_bytes;
  } while (bytes > 0);
  return true;
}

std::uint64_t encoded_file_bytes(std::string_view path, unsigned mode, std::uint64_t bytes) {
  const std::uint64_t header_bytes = format_file_header(path, mode).size();
  const std::uint64_t max_part_bytes = kMaxFileFrameBytes - header_bytes;
  const std::uint64_t frames = std::max<std::uint64_t>(1, (bytes + max_part_bytes - 1) / max_part_bytes);
  return bytes + frames * (kHeaderBytes + header_bytes);
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
