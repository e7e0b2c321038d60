// Files of control groups, by the descriptor of a folder above.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/fd.h"

namespace mycojobs::sandbox {

// Of a run whose count of processes has begun anew, one after the other. Names that tell nothing, since a job can read
// them.
inline constexpr const char* kBelow[] = {"/a", "/b"};

// errno, or 0.
inline int write_at(int folder, const std::string& name, const std::string& text) {
  const Fd file(::openat(folder, name.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return errno;
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
}

inline std::string read_at(int folder, const std::string& name) {
  const Fd file(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t size = file ? ::read(file.get(), text, sizeof text) : -1;
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

inline std::uint64_t number_in(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

// "oom_kill 3" among other lines.
inline std::uint64_t counter_in(const std::string& text, const std::string& name) {
  const std::size_t at = ("\n" + text).find("\n" + name + " ");
  return at == std::string::npos ? 0 : number_in(text.substr(at + name.size() + 1));
}

}  // namespace mycojobs::sandbox
