#include "executors/channel.h"
#include "model/artifact.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "base/fd.h"
#include "executors/host_channel.h"
#include "support/process.h"

namespace mycojobs {
namespace {

std::vector<Frame> read_frames(FrameReader& reader, std::string_view bytes, std::size_t piece_bytes) {
  std::vector<Frame> frames;
  for (std::size_t offset = 0; offset < bytes.size(); offset += piece_bytes) {
    reader.feed(bytes.substr(offset, piece_bytes), [&frames](Frame&& frame) { frames.push_back(std::move(frame)); });
  }
  return frames;
}

FrameReader make_reader() {
  return FrameReader({{FrameKind::note, 100}, {FrameKind::result, 1000}, {FrameKind::done, 0}});
}

TEST(Channel, FramesAreReadInAnyPieces) {
  std::string bytes;
  append_frame(bytes, FrameKind::note, "first");
  append_frame(bytes, FrameKind::result, std::string(1000, 'r'));
  append_frame(bytes, FrameKind::done, "");
  for (std::size_t piece_bytes : {1UL, 2UL, 3UL, 7UL, 500UL, bytes.size()}) {
    FrameReader reader = make_reader();
    const auto frames = read_frames(reader, bytes, piece_bytes);
    ASSERT_EQ(frames.size(), 3U) << piece_bytes;
    EXPECT_EQ(frames[0].payload, "first");
    EXPECT_EQ(frames[1].payload, std::string(1000, 'r'));
    EXPECT_EQ(frames[2].kind, static_cast<std::uint8_t>(FrameKind::done));
    for (const Frame& frame : frames) EXPECT_EQ(frame.status, Frame::FrameStatus::accepted);
    EXPECT_FALSE(reader.is_frame_incomplete());
  }
}

TEST(Channel, WireFormatIsAsDocumented) {
  std::string bytes;
  append_frame(bytes, FrameKind::script, std::string(258, 's'));
  EXPECT_EQ(bytes.substr(0, 5), std::string("\x02\x01\x00\x00\x05", 5));
}

TEST(Channel, FrameOverItsLimitIsReportedAtOnceAndSkipped) {
  std::string bytes;
  append_frame(bytes, FrameKind::note, std::string(101, 'n'));
  append_frame(bytes, FrameKind::note, "fits");
  FrameReader reader = make_reader();
  const auto early_frames = read_frames(reader, std::string_view(bytes).substr(0, 5), 5);
  ASSERT_EQ(early_frames.size(), 1U);
  EXPECT_EQ(early_frames[0].status, Frame::FrameStatus::too_large);
  EXPECT_EQ(early_frames[0].size, 101U);
  const auto remaining_frames = read_frames(reader, std::string_view(bytes).substr(5), 10);
  ASSERT_EQ(remaining_frames.size(), 1U);
  EXPECT_EQ(remaining_frames[0].payload, "fits");
}

TEST(Channel, UnknownKindIsSkipped) {
  std::string bytes("\x03\x00\x00\x00\x63xyz", 8);
  append_frame(bytes, FrameKind::done, "");
  FrameReader reader = make_reader();
  const auto frames = read_frames(reader, bytes, 1);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].status, Frame::FrameStatus::unknown_kind);
  EXPECT_EQ(frames[0].kind, 0x63);
  EXPECT_EQ(frames[1].status, Frame::FrameStatus::accepted);
}

TEST(Channel, HugeLengthAllocatesNoMemory) {
  FrameReader reader = make_reader();
  const auto frames = read_frames(reader, std::string_view("\xff\xff\xff\xff\x11", 5), 5);
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0].size, 0xffffffffU);
  const std::string megabyte(1 << 20, 'x');
  for (int i = 0; i < 4095; ++i) EXPECT_TRUE(read_frames(reader, megabyte, megabyte.size()).empty());
  EXPECT_TRUE(reader.is_frame_incomplete());
}

TEST(Channel, RandomBytesNeverYieldMoreThanTheyContain) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 400, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 4 == 0 ? random() : random() % 20);
    FrameReader reader = make_reader();
    std::size_t total = 0;
    for (const Frame& frame : read_frames(reader, bytes, 1 + random() % 50)) {
      total += 5 + frame.payload.size();
      EXPECT_LE(frame.payload.size(), 1000U);
    }
    EXPECT_LE(total, bytes.size());
  }
}

struct HostRow {
  const char* name;
  std::string bytes;
  Code code;
};

std::string encode_frames(std::initializer_list<FrameKind> kinds) {
  std::string bytes;
  for (FrameKind kind : kinds) append_frame(bytes, kind, "{}");
  return bytes;
}

TEST(HostChannel, InvalidRequestsAreRejected) {
  using enum FrameKind;
  const HostRow rows[] = {{"nothing", "", Code::unavailable},
                          {"half a header", "\x01", Code::invalid},
                          {"no script", encode_frames({facts, environment}), Code::invalid},
                          {"order", encode_frames({environment, facts, script}), Code::invalid},
                          {"twice", encode_frames({facts, facts, environment, script}), Code::invalid},
                          {"script first", encode_frames({script}), Code::invalid},
                          {"upward kind", encode_frames({note}), Code::invalid},
                          {"giant", std::string("\xff\xff\xff\xff\x01", 5), Code::invalid}};
  for (const HostRow& row : rows) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    Fd agent_end(ends[0]);
    const Fd host_end(ends[1]);
    ASSERT_EQ(::write(agent_end.get(), row.bytes.data(), row.bytes.size()), static_cast<ssize_t>(row.bytes.size()));
    agent_end.reset();
    const auto request = read_request(host_end.get());
    ASSERT_FALSE(request) << row.name;
    EXPECT_EQ(request.error().code, row.code) << row.name << ": " << request.error().message;
  }
}

TEST(HostChannel, DescriptorArrivesWithTheRequest) {
  using enum FrameKind;
  int ends[2], pipe_ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const Fd agent_end(ends[0]), host_end(ends[1]), read_end(pipe_ends[0]);
  Fd write_end(pipe_ends[1]);
  const std::string bytes = encode_frames({facts, environment, script});
  ASSERT_EQ(send_bytes(agent_end.get(), bytes.substr(0, 3), write_end.get()), 3);
  ASSERT_EQ(send_bytes(agent_end.get(), bytes.substr(3)), static_cast<ssize_t>(bytes.size() - 3));
  write_end.reset();
  const auto request = read_request(host_end.get());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(::write(request->attached.get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 1);
}

// Sends the artifacts of `folder` as a host does. Returns "PATH: bytes" for each artifact, and the notes. Calls
// `on_first_bytes` once after the first bytes were received, while the host is blocked. `dropped` receives the frames
// of kind `dropped`, with their parts separated by spaces.
std::vector<std::string> send_folder(
    const std::string& folder, const std::function<void()>& on_first_bytes = [] {},
    std::vector<std::string>* dropped = nullptr) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd agent_end(ends[0]);
  Fd host_end(ends[1]);
  std::thread host([&] {
    EXPECT_TRUE(send_artifacts(host_end.get(), folder, 64U << 20));
    host_end.reset();
  });
  std::vector<std::string> sent;
  FrameReader reader({{FrameKind::artifact, kMaxArtifactFrameBytes},
                      {FrameKind::note, kMaxNoteBytes},
                      {FrameKind::dropped, kMaxDroppedBytes}});
  std::vector<char> buffer(1000);
  for (ssize_t size = 0; (size = ::read(agent_end.get(), buffer.data(), buffer.size())) > 0;) {
    if (buffer.size() == 1000) on_first_bytes(), buffer.resize(65536);
    reader.feed({buffer.data(), static_cast<std::size_t>(size)}, [&](Frame&& frame) {
      if (frame.kind == static_cast<std::uint8_t>(FrameKind::note)) return sent.push_back(std::move(frame.payload));
      if (frame.kind == static_cast<std::uint8_t>(FrameKind::dropped)) {
        std::replace(frame.payload.begin(), frame.payload.end(), '\0', ' ');
        if (dropped != nullptr) dropped->push_back(std::move(frame.payload));
        return;
      }
      const std::size_t name = frame.payload.find('\0'), mode = frame.payload.find('\0', name + 1);
      sent.push_back(frame.payload.substr(0, name) + ": " + std::to_string(frame.payload.size() - mode - 1));
    });
  }
  host.join();
  return sent;
}

bool has_text(const std::vector<std::string>& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const auto& line) { return line.find(text) != std::string::npos; });
}

class LeftArtifacts : public ::testing::Test {
 protected:
  test::TempDir temp_;
  const std::filesystem::path folder_ = temp_.path();
};

// Regression test: the artifacts were lost without an error.
TEST_F(LeftArtifacts, ReplacedFolderIsReported) {
  EXPECT_TRUE(has_text(send_folder(folder_ / "removed"), "the folder of artifacts: it was removed"));
  EXPECT_TRUE(send_folder(folder_ / "no job/never there").empty());
  std::filesystem::create_directory_symlink("/etc", folder_ / "link");
  EXPECT_TRUE(has_text(send_folder(folder_ / "link"), "the folder of artifacts: not kept: is no longer a folder"));
  std::ofstream(folder_ / "file") << "x";
  EXPECT_TRUE(has_text(send_folder(folder_ / "file"), "the folder of artifacts: not kept: is no longer a folder"));
}

TEST_F(LeftArtifacts, TooDeepFolderIsReported) {
  std::filesystem::path deep = folder_;
  for (int i = 0; i < 32; ++i) deep /= "d";
  std::filesystem::create_directories(deep / "d");
  std::ofstream(deep / "kept") << "x";
  std::ofstream(deep / "d/not") << "x";
  const auto sent = send_folder(folder_);
  EXPECT_TRUE(has_text(sent, "d/kept: 1"));
  EXPECT_TRUE(has_text(sent, "is more than 32 folders deep"));
  EXPECT_EQ(sent.size(), 2U);
}

TEST_F(LeftArtifacts, FileThatShrinksDuringReadingIsReported) {
  std::ofstream(folder_ / "file") << std::string(8 << 20, 'x');
  const auto sent = send_folder(folder_, [&] { std::filesystem::resize_file(folder_ / "file", 1000); });
  EXPECT_TRUE(has_text(sent, "artifact file: kept in part: the file was truncated while it was read"));
}

TEST_F(LeftArtifacts, MoreThanAThousandNamesAreReported) {
  for (int i = 0; i < 1100; ++i) std::filesystem::create_directory(folder_ / std::to_string(i));
  EXPECT_TRUE(has_text(send_folder(folder_), "the folder of artifacts: not kept: has over 1000 names"));
}

TEST_F(LeftArtifacts, DroppedFilesAreListedWithReasonAndLimit) {
  std::filesystem::create_symlink("/etc/passwd", folder_ / "a link");
  ::mkfifo((folder_ / "fifo").c_str(), 0600);
  std::ofstream(folder_ / "one") << "x";
  std::filesystem::create_hard_link(folder_ / "one", folder_ / "other");
  std::ofstream(folder_ / "sparse") << "x";
  std::filesystem::resize_file(folder_ / "sparse", (64U << 20) + 1);
  std::ofstream(folder_ / "kept") << "x";
  std::vector<std::string> dropped;
  EXPECT_TRUE(has_text(send_folder(
                           folder_, [] {}, &dropped),
                       "kept: 1"));
  EXPECT_EQ(dropped, (std::vector<std::string>{"a link link 0", "fifo special 0", "one link 0", "other link 0",
                                               "sparse bytes 67108864"}));
}

TEST_F(LeftArtifacts, ListOfDroppedFilesIsBounded) {
  for (int i = 0; i < 150; ++i) std::filesystem::create_symlink("/etc/passwd", folder_ / ("l" + std::to_string(i)));
  for (int i = 0; i < 150; ++i) {
    std::ofstream(folder_ / ("z" + std::to_string(i))) << "x";
    std::filesystem::resize_file(folder_ / ("z" + std::to_string(i)), (64U << 20) + 1);
  }
  std::vector<std::string> dropped;
  send_folder(
      folder_, [] {}, &dropped);
  EXPECT_EQ(dropped.size(), 2 * DroppedArtifacts::kMaxPerKind) << "links and files that lose data have separate limits";
}

TEST_F(LeftArtifacts, OmittedReasonsAreMentioned) {
  for (int i = 0; i < 30; ++i) ::mkfifo((folder_ / std::to_string(i)).c_str(), 0600);
  const auto sent = send_folder(folder_);
  EXPECT_EQ(sent.size(), 21U);
  EXPECT_TRUE(has_text(sent, "further artifacts were not kept"));
}

}  // namespace
}  // namespace mycojobs
