// Length-checked messages between agent, launcher, zygote and init: one datagram of a SOCK_SEQPACKET pair is one frame.
//
//   frame = kind, u8 | fields, little-endian
//   text  = length, u32 | bytes;   list = count, u32 | items;   struct = its fields, in the order of `fields()`
//
// Whoever reads does not believe the writer: a reader that meets a wrong length is spoilt for good and says so in
// whole().
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

inline constexpr std::size_t kMaxFrameBytes = 96U << 10;  // a run with all grants that a policy can hold fits in
inline constexpr std::size_t kMaxFrameFds = 48;
inline constexpr std::size_t kShortFrameBytes = 64;

class FieldWriter {
 public:
  explicit FieldWriter(std::uint8_t kind) {
    bytes_.reserve(kUsualBytes);  // so that most grow in no steps, each of which would leave a copy behind
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
  std::string take() { return std::move(bytes_); }

 private:
  static constexpr std::size_t kUsualBytes = 120;
  std::string bytes_;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : left_(bytes) {}
  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      (*this)(byte);
      if (byte > 1) spoilt_ = true;
      value = byte == 1;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      if (!need(sizeof value)) return;
      std::memcpy(&value, left_.data(), sizeof value);
      left_.remove_prefix(sizeof value);
    } else {
      fields(*this, value);
    }
  }
  void operator()(std::string& text) {
    const std::uint32_t size = count();
    if (!need(size)) return;
    text.assign(left_.substr(0, size));
    left_.remove_prefix(size);
  }
  template <class T>
  void operator()(std::vector<T>& items) {
    const std::uint32_t size = count();
    if (!need(size)) return;  // an item has one byte at least
    items.resize(size);
    for (T& item : items) (*this)(item);
  }
  template <class A, class B>
  void operator()(std::pair<A, B>& pair) {
    (*this)(pair.first);
    (*this)(pair.second);
  }
  bool whole() const { return !spoilt_ && left_.empty(); }

 private:
  std::uint32_t count() {
    std::uint32_t size = 0;
    (*this)(size);
    return size;
  }
  bool need(std::size_t size) {
    if (left_.size() < size) spoilt_ = true;
    return !spoilt_;
  }

  std::string_view left_;
  bool spoilt_ = false;
};

struct RawFrame {
  std::uint8_t kind = 0;
  std::string payload;
  std::vector<Fd> fds;  // close-on-exec
};

// nothing: the call would block. cut: the frame is complete, but this process had no free descriptors for those that
// were sent with it, and has none of them.
enum class Received { frame, nothing, closed, malformed, cut };

// 0 or errno. `flags` as of sendmsg, MSG_NOSIGNAL is added. The descriptors stay the caller's.
int send_raw(int socket, std::string_view bytes, std::initializer_list<int> fds = {}, int flags = 0);
int send_raw(int socket, std::string_view bytes, const std::vector<int>& fds, int flags = 0);
// More descriptors than kMaxFrameFds, or a frame over kMaxFrameBytes: malformed, and every one is closed.
Received receive_raw(int socket, RawFrame&, int flags = 0);
// The same where only short ones come: room for the longest takes a page of the stack that a job would have to itself.
Received receive_short(int socket, RawFrame&, int flags = 0);

template <class Message>
std::string encode(const Message& message) {
  FieldWriter writer(static_cast<std::uint8_t>(Message::kKind));
  writer(message);
  return writer.take();
}
// False: not that kind, or lengths that do not add up. How many descriptors came along is the caller's to check.
template <class Message>
bool decode(const RawFrame& frame, Message& message) {
  if (frame.kind != static_cast<std::uint8_t>(Message::kKind)) return false;
  FieldReader reader(frame.payload);
  reader(message);
  return reader.whole();
}
// Leaves no copy in memory that is given back: jobs are forks of those who send.
template <class Message>
int send_message(int socket, const Message& message, std::initializer_list<int> fds = {}, int flags = 0) {
  std::string bytes = encode(message);
  const int error = send_raw(socket, bytes, fds, flags);
  ::explicit_bzero(bytes.data(), bytes.size());
  return error;
}

}  // namespace mycojobs::sandbox
