#include "base/linked_build.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/fd.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxHeaders = 64, kMaxNotes = 64U << 10;
constexpr std::string_view kOwner = "mycojobs";
constexpr std::uint32_t kLinkedNote = 1;

std::optional<std::string> read_part(int file, std::uint64_t offset, std::size_t size) {
  std::string text(size, '\0');
  if (::pread(file, text.data(), size, static_cast<off_t>(offset)) != static_cast<ssize_t>(size)) return std::nullopt;
  return text;
}

constexpr std::size_t align_up(std::size_t size, std::size_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

// Searches one segment of notes.
std::optional<std::string> find_note(std::string_view notes, std::size_t align, std::string_view owner,
                                     std::uint32_t type) {
  Elf64_Nhdr header;
  while (notes.size() >= sizeof header) {
    std::memcpy(&header, notes.data(), sizeof header);
    const std::size_t name = sizeof header, text = name + align_up(header.n_namesz, align);
    if (header.n_namesz > notes.size() || header.n_descsz > notes.size() || text + header.n_descsz > notes.size())
      return std::nullopt;
    const std::string_view note_owner = notes.substr(name, header.n_namesz);
    if (header.n_type == type && note_owner.substr(0, note_owner.find('\0')) == owner)
      return std::string(notes.substr(text, header.n_descsz));
    notes.remove_prefix(std::min(notes.size(), text + align_up(header.n_descsz, align)));
  }
  return std::nullopt;
}

std::optional<std::string> read_note(const std::string& path, std::string_view owner, std::uint32_t type) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return std::nullopt;
  const auto head = read_part(file.get(), 0, sizeof(Elf64_Ehdr));
  Elf64_Ehdr elf;
  if (!head) return std::nullopt;
  std::memcpy(&elf, head->data(), sizeof elf);
  const bool is_native_elf = std::memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0 && elf.e_ident[EI_CLASS] == ELFCLASS64 &&
                             elf.e_phentsize == sizeof(Elf64_Phdr) && elf.e_phnum <= kMaxHeaders;
  if (!is_native_elf) return std::nullopt;
  const auto table = read_part(file.get(), elf.e_phoff, elf.e_phnum * sizeof(Elf64_Phdr));
  if (!table) return std::nullopt;
  for (std::size_t i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, table->data() + i * sizeof segment, sizeof segment);
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNotes) continue;
    const auto notes = read_part(file.get(), segment.p_offset, segment.p_filesz);
    if (!notes) continue;
    auto found = find_note(*notes, segment.p_align == 8 ? 8 : 4, owner, type);
    if (found) return found;
  }
  return std::nullopt;
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

std::string read_build_id(const std::string& path) {
  const auto bytes = read_note(path, "GNU", NT_GNU_BUILD_ID);
  std::string hex;
  for (const char byte : bytes.value_or("")) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(byte) >> 4U];
    hex += kDigits[static_cast<unsigned char>(byte) & 15U];
  }
  return hex;
}

ProgramBuild select_program_build(const std::string& program) {
  ProgramBuild build{.program = program, .has_linked_libraries = false, .reason = {}, .compared_libraries = {}};
  const auto note = read_note(program, kOwner, kLinkedNote);
  if (!note) return build;
  build.has_linked_libraries = true;
  std::string other_program;
  std::istringstream lines(*note);
  for (std::string keyword, value; lines >> keyword && std::getline(lines >> std::ws, value);) {
    if (keyword == "else") {
      other_program = value;
    } else if (keyword == "never") {
      build.reason = value;
    } else {
      build.compared_libraries.push_back(value);
      const std::string installed = read_build_id(value);
      if (installed == keyword || !build.reason.empty()) continue;
      build.reason = file_name(value) + (installed.empty() ? " is not installed, or has no build-id"
                                                           : " is another build than the one that was linked in");
    }
  }
  if (build.reason.empty() && build.compared_libraries.empty())
    build.reason = "its note with the linked libraries cannot be read";
  if (build.reason.empty()) return build;
  build.has_linked_libraries = false;
  if (!other_program.empty()) build.program = program.substr(0, program.rfind('/') + 1) + other_program;
  return build;
}

}  // namespace mycojobs
