// The cause of a denied write, computed from the text of an error and the files of the host.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "support/process.h"
#include "worker/denied_write.h"

namespace mycojobs::test {
namespace {

class DeniedWriteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "out/backup");
    folder_.write("out/backup/old", "x");
    ::chmod((folder_ / "out").c_str(), 0777);
    ::chmod((folder_ / "out/backup").c_str(), 0755);
    ::chmod((folder_ / "out/backup/old").c_str(), 0644);
  }
  std::string explain(const std::string& text) const {
    JobEnd end;
    end.error = text;
    return explain(end);
  }
  std::string explain(const JobEnd& end) const {
    const auto access = find_denied_access(end, folders_);
    return access ? find_cause(*access) : "";
  }
  std::string cause(const std::string& path, const std::string& mode) const {
    return path + " belongs to user " + std::to_string(::geteuid()) + " and has mode " + mode +
           "; files of this job belong to user 4711";
  }

  TempDir folder_;
  std::vector<JobFolder> folders_ = {{"/srv/out", folder_ / "out", true, {4711, 4711}},
                                     {"/volumes/data", folder_ / "out", true, {4711, 4711}},
                                     {"/volumes/old", folder_ / "out", false, {4711, 4711}}};
};

TEST_F(DeniedWriteTest, NamesTheFolderThatPreventsAWrite) {
  const std::string expected = cause("/srv/out/backup", "0755");
  for (const char* text :
       {"PermissionError: [Errno 13] Permission denied: '/srv/out/backup/new' (line 3)",
        "exit code 2: sh: 2: cannot create /srv/out/backup/new: Permission denied",
        "first line\nmkdir: cannot create directory '/srv/out/backup/new': Permission denied\ndone",
        "mkdir: cannot create directory \xe2\x80\x98/srv/out/backup/new\xe2\x80\x99: Permission denied",
        "touch: cannot touch '/srv/out/backup/': Permission denied"})
    EXPECT_EQ(explain(text), expected) << text;
}

TEST_F(DeniedWriteTest, NamesAFileOfAnotherUser) {
  EXPECT_EQ(explain("bash: /volumes/data/backup/old: Permission denied"), cause("/volumes/data/backup/old", "0644"));
  ::chmod((folder_ / "out/backup").c_str(), 0700);
  EXPECT_EQ(explain("bash: /volumes/data/backup/old: Permission denied"), cause("/volumes/data/backup", "0700"));
}

TEST_F(DeniedWriteTest, NamesAReadOnlyVolume) {
  EXPECT_EQ(explain("OSError: [Errno 30] Read-only file system: '/volumes/old/x'"),
            "/volumes/old is a volume with mode \"ro\"");
  EXPECT_EQ(explain("OSError: [Errno 30] Read-only file system: '/volumes/data/x'"), "") << "it can be written now";
}

TEST_F(DeniedWriteTest, DeniedReadsOfAReadOnlyVolumeAreNotCausedByItsMode) {
  EXPECT_EQ(explain("cat: /volumes/old/backup/old: Permission denied"), "") << "the mode bits permit it";
  ::chmod((folder_ / "out/backup/old").c_str(), 0600);
  EXPECT_EQ(explain("cat: /volumes/old/backup/old: Permission denied"), cause("/volumes/old/backup/old", "0600"));
  EXPECT_EQ(explain("chmod: changing permissions of '/volumes/old/backup': Operation not permitted"), "");
}

TEST_F(DeniedWriteTest, FolderInAnotherPathIsNotMeant) {
  folders_ = {{"/data", folder_ / "out/backup", true, {4711, 4711}},
              {"/volumes/data", folder_ / "out", true, {4711, 4711}},
              {"/volumes/data/backup", folder_ / "out/backup/old", true, {4711, 4711}}};
  for (const char* text : {"Permission denied: '/volumes/data/x'", "Permission denied: '/var/data/x'",
                           "Permission denied: '../data/x'", "/database: Permission denied"})
    EXPECT_EQ(explain(text), "") << text;
  EXPECT_EQ(explain("cp: cannot copy /var/data/x to /data/new: Permission denied"), cause("/data", "0755"));
  EXPECT_EQ(explain("Permission denied: '/volumes/data/backup'"), cause("/volumes/data/backup", "0644"))
      << "the folder inside of the other";
}

TEST_F(DeniedWriteTest, OtherTextsHaveNoCause) {
  for (const char* text : {"", "Permission denied", "'/srv/out/backup/new'", "Permission denied: '/srv/output/x'",
                           "Permission denied: '/etc/shadow'", "Permission denied: '/srv/out/new'",
                           "Permission denied: '/srv/out/../../etc/shadow'", "No such file: '/srv/out/backup/new'"})
    EXPECT_EQ(explain(text), "") << text;
}

// A job could make the agent read another file by a link in its folder.
TEST_F(DeniedWriteTest, LinksAreNotFollowed) {
  std::filesystem::create_directory_symlink("/root", folder_ / "out/link");
  EXPECT_EQ(explain("Permission denied: '/srv/out/link/new'"), "");
  EXPECT_EQ(explain("Permission denied: '/srv/out/link'"), "");
}

TEST_F(DeniedWriteTest, FilesOfTheOwnerAreCheckedByTheirOwnBits) {
  for (JobFolder& folder : folders_) folder.owner = {::geteuid(), ::getegid()};
  EXPECT_EQ(explain("Permission denied: '/srv/out/backup/new'"), "") << "the owner may write";
  ::chmod((folder_ / "out/backup/old").c_str(), 0400);
  EXPECT_EQ(explain("Permission denied: '/srv/out/backup/old'"),
            "/srv/out/backup/old belongs to user " + std::to_string(::geteuid()) +
                " and has mode 0400; files of this job belong to user " + std::to_string(::geteuid()));
}

TEST_F(DeniedWriteTest, IsFoundInTheErrorOutputOfTheJob) {
  JobEnd end;
  end.error = "exit code 1: make: *** [all] Error 2";
  end.error_info = R"({"exit":1,"stderr":"cp: cannot create '/srv/out/backup/new': Permission denied\nmake: Error 2"})";
  EXPECT_EQ(explain(end), cause("/srv/out/backup", "0755"));
  JobEnd other;
  other.error = "exit code 1: out of ideas";
  other.error_info = "no JSON";
  EXPECT_EQ(explain(other), "");
}

TEST(FileOwner, IsTheContextsUnlessItIsSet) {
  if (::geteuid() != 0) GTEST_SKIP() << "files of an ordinary user's jobs belong to the user";
  EXPECT_EQ(find_file_owner({}, 7), (FileOwner{kFirstFileUid + 7, kFirstFileUid + 7}));
  EXPECT_EQ(find_file_owner({{7, {34, 35}, false}}, 7), (FileOwner{34, 35}));
  EXPECT_EQ(find_file_owner({{8, {34, 35}, false}}, 7), (FileOwner{kFirstFileUid + 7, kFirstFileUid + 7}));
}

}  // namespace
}  // namespace mycojobs::test
