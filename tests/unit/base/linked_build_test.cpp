// Selection of the helper build to run, from the notes of ELF files that the test creates.
#include "base/linked_build.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>

#include "support/process.h"

namespace mycojobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kOwner = "mycojobs";

std::string pad(std::string text) {
  text.resize((text.size() + 3) / 4 * 4);
  return text;
}

std::string make_note(const std::string& owner, std::uint32_t type, const std::string& text) {
  const Elf64_Nhdr header{static_cast<Elf64_Word>(owner.size() + 1), static_cast<Elf64_Word>(text.size()), type};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes + pad(owner + '\0') + pad(text);
}

// Returns a minimal ELF file that contains only notes.
std::string make_elf(const std::string& notes) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  Elf64_Phdr segment{};
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof header + sizeof segment;
  segment.p_filesz = notes.size();
  segment.p_align = 4;
  std::string bytes(sizeof header + sizeof segment, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, &segment, sizeof segment);
  return bytes + notes;
}

class LinkedBuild : public ::testing::Test {
 protected:
  LinkedBuild() {
    replace_library("libone.so", "\x01\x02\xfe");
    replace_library("libtwo.so", "\xaa");
  }
  // Replaces the library by another file with the same name, as a package update does.
  void replace_library(const std::string& library, const std::string& id) {
    std::filesystem::remove(get_path(library));
    folder_.write(library, make_elf(make_note("GNU", NT_GNU_BUILD_ID, id)));
  }
  std::string get_path(const std::string& name) const { return (folder_.path() / name).string(); }
  ProgramBuild make_build(const std::string& text) {
    return select_program_build(
        folder_.write("host", make_elf(make_note("GNU", 7, "other") + make_note(kOwner, 1, text))));
  }
  std::string make_record() const {
    return "else host-shared\n0102fe " + get_path("libone.so") + "\naa " + get_path("libtwo.so") + "\n";
  }
  test::TempDir folder_;
};

TEST_F(LinkedBuild, RunsWhileEachLibraryIsTheSameBuild) {
  const ProgramBuild build = make_build(make_record());
  EXPECT_TRUE(build.has_linked_libraries) << build.reason;
  EXPECT_EQ(build.program, get_path("host"));
  EXPECT_THAT(build.compared_libraries, ElementsAre(get_path("libone.so"), get_path("libtwo.so")));
}

TEST_F(LinkedBuild, SharedBuildIsUsedAfterALibraryUpdate) {
  replace_library("libtwo.so", "\xab");
  const ProgramBuild build = make_build(make_record());
  EXPECT_FALSE(build.has_linked_libraries);
  EXPECT_EQ(build.program, get_path("host-shared"));
  EXPECT_THAT(build.reason, HasSubstr("libtwo.so is another build"));
  EXPECT_THAT(build.compared_libraries, ElementsAre(get_path("libone.so"), get_path("libtwo.so")))
      << "otherwise the test could not detect the change back";
  replace_library("libtwo.so", "\xaa");
  EXPECT_TRUE(make_build(make_record()).has_linked_libraries);
}

TEST_F(LinkedBuild, SharedBuildIsUsedWithoutALibraryOrItsId) {
  std::filesystem::remove(get_path("libone.so"));
  EXPECT_THAT(make_build(make_record()).reason, HasSubstr("libone.so is not installed"));
  folder_.write("libone.so", "no ELF file at all, though of some length, so that its head can be read as if it were");
  EXPECT_THAT(make_build(make_record()).reason, HasSubstr("libone.so is not installed, or has no build-id"));
  EXPECT_EQ(make_build(make_record()).program, get_path("host-shared"));
}

TEST_F(LinkedBuild, NeverRunsWithArchivesOfAnotherPackage) {
  const ProgramBuild build = make_build(make_record() + "never libone.a was of another package\n");
  EXPECT_EQ(build.program, get_path("host-shared"));
  EXPECT_EQ(build.reason, "libone.a was of another package");
}

TEST_F(LinkedBuild, EmptyNoteCountsAsChanged) {
  EXPECT_EQ(make_build("else host-shared\n").program, get_path("host-shared"));
  EXPECT_FALSE(make_build("").has_linked_libraries);
  EXPECT_FALSE(make_build(std::string(5, '\0')).has_linked_libraries);
}

TEST_F(LinkedBuild, ProgramWithoutTheNoteIsUnchanged) {
  for (const std::string& bytes :
       {make_elf(make_note("GNU", 1, make_record())), make_elf(""), std::string("#!/bin/sh\n"), std::string()}) {
    const ProgramBuild build = select_program_build(folder_.write("host", bytes));
    EXPECT_EQ(build.program, get_path("host"));
    EXPECT_FALSE(build.has_linked_libraries);
    EXPECT_EQ(build.reason, "");
  }
  EXPECT_EQ(select_program_build("/nowhere/host").program, "/nowhere/host");
}

// Wrong lengths cause no invalid access: truncated files, and files with a changed byte.
TEST_F(LinkedBuild, DamagedFilesAreHarmless) {
  const std::string complete_file = make_elf(make_note(kOwner, 1, make_record()));
  for (std::size_t size = 0; size < complete_file.size(); size += 3) {
    select_program_build(folder_.write("host", complete_file.substr(0, size)));
  }
  for (std::size_t position = 0; position < 160; ++position) {
    std::string damaged_file = complete_file;
    damaged_file[position] = '\xff';
    select_program_build(folder_.write("host", damaged_file));
  }
}

TEST(BuildId, MatchesTheSystemTools) {
  EXPECT_EQ(read_build_id("/proc/self/exe").size(), 40U);
  EXPECT_EQ(read_build_id("/etc/hostname"), "");
}

}  // namespace
}  // namespace mycojobs
