// Length-checked messages between agent, launcher, zygote and init. One datagram of a SOCK_SEQPACKET pair is one frame.
//
//   frame = kind, u8 | fields, little-endian
//   text  = length, u32 | bytes;   list = count, u32 | items;   struct = its fields, in the order of `fields()`
//
// For each struct a function template `fields(archive, message)` passes the fields to a FieldWriter or FieldReader.
//
// Readers do not trust writers: after a wrong length a FieldReader stays invalid, and is_complete() returns false.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace mycojobs::sandbox {

inline constexpr std::size_t kMaxFrameBytes = 96U << 10;  // a run with the largest possible grants fits
inline constexpr std::size_t kMaxFrameFds = 48;
inline constexpr std::size_t kShortFrameBytes = 64;

class FieldWriter {
 public:
  explicit FieldWriter(std::uint8_t kind) {
    bytes_.reserve(kTypicalBytes);  // avoids reallocations, each of which would leave a copy in memory
    bytes_ += static_cast<char>(kind);
  }
  template <class T>
  void operator()(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      fields(*this, const_cast<T&>(value));  // one list of fields serves both directions; writing changes nothing
    }
  }
  void operator()(const std::string& text) {
    (*this)(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  template <class T>
  void operator()(const std::vector<T>& items) {
    (*this)(static_cast<std::uint32_t>(items.size()));
    for (const T& item : items) (*this)(item);
  }
  template <class A, class B>
  void operator()(const std::pair<A, B>& pair) {
    (*this)(pair.first);
    (*this)(pair.second);
  }
  std::string release() { return std::move(bytes_); }

 private:
  static constexpr std::size_t kTypicalBytes = 120;
  std::string bytes_;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : remaining_(bytes) {}
  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      (*this)(byte);
      if (byte > 1) is_invalid_ = true;
      value = byte == 1;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      if (!require(sizeof value)) return;
      std::memcpy(&value, remaining_.data(), sizeof value);
      remaining_.remove_prefix(sizeof value);
    } else {
      fields(*this, value);
    }
  }
  void operator()(std::string& text) {
    const std::uint32_t size = read_count();
    if (!require(size)) return;
    text.assign(remaining_.substr(0, size));
    remaining_.remove_prefix(size);
  }
  template <class T>
  void operator()(std::vector<T>& items) {
    const std::uint32_t size = read_count();
    if (!require(size)) return;  // an item has at least one byte
    items.resize(size);
    for (T& item : items) (*this)(item);
  }
  template <class A, class B>
  void operator()(std::pair<A, B>& pair) {
    (*this)(pair.first);
    (*this)(pair.second);
  }
  bool is_complete() const { return !is_invalid_ && remaining_.empty(); }

 private:
  std::uint32_t read_count() {
    std::uint32_t size = 0;
    (*this)(size);
    return size;
  }
  bool require(std::size_t size) {
    if (remaining_.size() < size) is_invalid_ = true;
    return !is_invalid_;
  }

  std::string_view remaining_;
  bool is_invalid_ = false;
};

struct RawFrame {
  std::uint8_t kind = 0;
  std::string payload;
  std::vector<Fd> fds;  // close-on-exec
};

// `descriptors_lost` means that the frame is complete, but this process had no free descriptor numbers for the attached
// descriptors, and received none of them.
enum class ReceiveResult { frame, would_block, closed, malformed, descriptors_lost };

// Returns 0 or an errno. `flags` as in sendmsg(2), with MSG_NOSIGNAL added. The caller keeps the descriptors.
int send_raw(int socket, std::string_view bytes, std::initializer_list<int> fds = {}, int flags = 0);
int send_raw(int socket, std::string_view bytes, const std::vector<int>& fds, int flags = 0);
// A frame with more than kMaxFrameFds descriptors or kMaxFrameBytes bytes is malformed, and its descriptors are closed.
ReceiveResult receive_raw(int socket, RawFrame&, int flags = 0);
// Receives short frames only: a buffer for the longest frame would dirty pages of the stack that a job must then copy.
ReceiveResult receive_short(int socket, RawFrame&, int flags = 0);

template <class Message>
std::string encode(const Message& message) {
  FieldWriter writer(static_cast<std::uint8_t>(Message::kKind));
  writer(message);
  return writer.release();
}
// Returns false for another kind or invalid lengths. The caller must check the number of attached descriptors.
template <class Message>
bool decode(const RawFrame& frame, Message& message) {
  if (frame.kind != static_cast<std::uint8_t>(Message::kKind)) return false;
  FieldReader reader(frame.payload);
  reader(message);
  return reader.is_complete();
}
// Erases the encoded bytes, since jobs are forks of the sender.
template <class Message>
int send_message(int socket, const Message& message, std::initializer_list<int> fds = {}, int flags = 0) {
  std::string bytes = encode(message);
  const int error = send_raw(socket, bytes, fds, flags);
  ::explicit_bzero(bytes.data(), bytes.size());
  return error;
}

}  // namespace mycojobs::sandbox
