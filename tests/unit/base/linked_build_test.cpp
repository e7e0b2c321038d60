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

std::string padded(std::string text) {
  text.resize((text.size() + 3) / 4 * 4);
  return text;
}

std::string note(const std::string& owner, std::uint32_t type, const std::string& text) {
  const Elf64_Nhdr header{static_cast<Elf64_Word>(owner.size() + 1), static_cast<Elf64_Word>(text.size()), type};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes + padded(owner + '\0') + padded(text);
}

// Returns a minimal ELF file that contains only notes.
std::string make_elf(const std::string& notes) {
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_phoff = sizeof head;
  head.e_phentsize = sizeof(Elf64_Phdr);
  head.e_phnum = 1;
  Elf64_Phdr segment{};
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof head + sizeof segment;
  segment.p_filesz = notes.size();
  segment.p_align = 4;
  std::string bytes(sizeof head + sizeof segment, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, &segment, sizeof segment);
  return bytes + notes;
}

class LinkedBuild : public ::testing::Test {
 protected:
  LinkedBuild() {
    update("libone.so", "\x01\x02\xfe");
    update("libtwo.so", "\xaa");
  }
  // Replaces the library by another file with the same name, as a package update does.
  void update(const std::string& library, const std::string& id) {
    std::filesystem::remove(path(library));
    folder_.write(library, make_elf(note("GNU", NT_GNU_BUILD_ID, id)));
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  Build build(const std::string& text) {
    return installed_build(folder_.write("host", make_elf(note("GNU", 7, "other") + note(kOwner, 1, text))));
  }
  std::string recorded() const {
    return "else host-shared\n0102fe " + path("libone.so") + "\naa " + path("libtwo.so") + "\n";
  }
  test::TempDir folder_;
};

TEST_F(LinkedBuild, RunsWhileEachLibraryIsTheSameBuild) {
  const Build same = build(recorded());
  EXPECT_TRUE(same.linked) << same.why_not;
  EXPECT_EQ(same.program, path("host"));
  EXPECT_THAT(same.files, ElementsAre(path("libone.so"), path("libtwo.so")));
}

TEST_F(LinkedBuild, SharedBuildIsUsedAfterALibraryUpdate) {
  update("libtwo.so", "\xab");
  const Build updated = build(recorded());
  EXPECT_FALSE(updated.linked);
  EXPECT_EQ(updated.program, path("host-shared"));
  EXPECT_THAT(updated.why_not, HasSubstr("libtwo.so is another build"));
  EXPECT_THAT(updated.files, ElementsAre(path("libone.so"), path("libtwo.so"))) << "else nobody sees it come back";
  update("libtwo.so", "\xaa");
  EXPECT_TRUE(build(recorded()).linked);
}

TEST_F(LinkedBuild, SharedBuildIsUsedWithoutALibraryOrItsId) {
  std::filesystem::remove(path("libone.so"));
  EXPECT_THAT(build(recorded()).why_not, HasSubstr("libone.so is not installed"));
  folder_.write("libone.so", "no ELF file at all, though of some length, so that its head can be read as if it were");
  EXPECT_THAT(build(recorded()).why_not, HasSubstr("libone.so is not installed, or has no build-id"));
  EXPECT_EQ(build(recorded()).program, path("host-shared"));
}

TEST_F(LinkedBuild, NeverRunsWithArchivesOfAnotherPackage) {
  const Build mixed = build(recorded() + "never libone.a was of another package\n");
  EXPECT_EQ(mixed.program, path("host-shared"));
  EXPECT_EQ(mixed.why_not, "libone.a was of another package");
}

TEST_F(LinkedBuild, EmptyNoteCountsAsChanged) {
  EXPECT_EQ(build("else host-shared\n").program, path("host-shared"));
  EXPECT_FALSE(build("").linked);
  EXPECT_FALSE(build(std::string(5, '\0')).linked);
}

TEST_F(LinkedBuild, ProgramWithoutTheNoteIsUnchanged) {
  for (const std::string& bytes :
       {make_elf(note("GNU", 1, recorded())), make_elf(""), std::string("#!/bin/sh\n"), std::string()}) {
    const Build plain = installed_build(folder_.write("host", bytes));
    EXPECT_EQ(plain.program, path("host"));
    EXPECT_FALSE(plain.linked);
    EXPECT_EQ(plain.why_not, "");
  }
  EXPECT_EQ(installed_build("/nowhere/host").program, "/nowhere/host");
}

// Wrong lengths cause no invalid access: truncated files, and files with a changed byte.
TEST_F(LinkedBuild, DamagedFilesAreHarmless) {
  const std::string whole = make_elf(note(kOwner, 1, recorded()));
  for (std::size_t size = 0; size < whole.size(); size += 3) {
    installed_build(folder_.write("host", whole.substr(0, size)));
  }
  for (std::size_t at = 0; at < 160; ++at) {
    std::string damaged = whole;
    damaged[at] = '\xff';
    installed_build(folder_.write("host", damaged));
  }
}

TEST(BuildId, MatchesTheSystemTools) {
  EXPECT_EQ(build_id("/proc/self/exe").size(), 40U);
  EXPECT_EQ(build_id("/etc/hostname"), "");
}

}  // namespace
}  // namespace mycojobs
