#include "sandbox/seccomp/filter_programs.h"

#include <linux/bpf_common.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace mycojobs::sandbox {
namespace {

bool read_exactly(int fd, void* out, std::size_t size, off_t& offset) {
  const ssize_t read_size = ::pread(fd, out, size, offset);
  offset += static_cast<off_t>(size);
  return read_size == static_cast<ssize_t>(size);
}

int read_program(int fd, std::vector<sock_filter>& program, off_t& offset) {
  std::uint32_t count = 0;
  if (!read_exactly(fd, &count, sizeof count, offset) || count == 0 || count > BPF_MAXINSNS) return EINVAL;
  program.resize(count);
  return read_exactly(fd, program.data(), count * sizeof(sock_filter), offset) ? 0 : EINVAL;
}

}  // namespace

void set_own_id(std::vector<sock_filter>& program, std::uint32_t id) {
  for (sock_filter& instruction : program) {
    if (BPF_CLASS(instruction.code) == BPF_JMP && instruction.k == kOwnIdPlaceholder) instruction.k = id;
  }
}

int read_filters(int fd, FilterSet& set) {
  off_t offset = 0;
  for (auto& program : set.programs) {
    if (int error = read_program(fd, program, offset); error != 0) return error;
  }
  return 0;
}

int read_filter(int fd, std::vector<sock_filter>& program) {
  off_t offset = 0;
  return read_program(fd, program, offset);
}

int write_filters(int fd, const FilterSet& set) {
  for (const auto& program : set.programs) {
    if (int error = write_filter(fd, program); error != 0) return error;
  }
  return 0;
}

int write_filter(int fd, const std::vector<sock_filter>& program) {
  const auto count = static_cast<std::uint32_t>(program.size());
  const auto bytes = static_cast<ssize_t>(program.size() * sizeof(sock_filter));
  if (::write(fd, &count, sizeof count) != sizeof count) return errno;
  return ::write(fd, program.data(), static_cast<std::size_t>(bytes)) == bytes ? 0 : errno;
}

}  // namespace mycojobs::sandbox
