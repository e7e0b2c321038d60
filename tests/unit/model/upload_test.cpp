// References of uploads and names of coordinators as holders of files.
#include "model/upload.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/file_holder.h"
#include "model/records.h"
#include "model/submitted_files.h"

namespace mycojobs {
namespace {

const std::string kDigits(32, 'a'), kHash(64, 'b'), kName = std::string(24, 'c') + "@atlas-1.example";

TEST(UploadReference, IsParsedAndFormatted) {
  const UploadReference reference{make_upload_id(12, kDigits), 1048577, kHash};
  EXPECT_EQ(to_string(reference), "12." + kDigits + ".1048577." + kHash);
  EXPECT_EQ(parse_upload_reference(to_string(reference)), reference);
}

TEST(UploadReference, RefusesOtherTexts) {
  for (const std::string& text :
       {std::string(), "12." + kDigits, "12." + kDigits + ".1." + kHash + "\n", "12/../." + kDigits + ".1." + kHash,
        "..." + kHash, "012." + kDigits + ".1." + kHash, "4294967296." + kDigits + ".1." + kHash,
        "12." + std::string(32, 'A') + ".1." + kHash, "12." + kDigits + ".-1." + kHash,
        "12." + kDigits + ".1." + kDigits, "12." + kDigits + ".1." + kHash + ".x"})
    EXPECT_FALSE(parse_upload_reference(text)) << text;
  EXPECT_FALSE(is_upload_id("12." + kDigits + "/.."));
  EXPECT_TRUE(is_upload_id("12." + kDigits));
}

TEST(UploadReference, RefusesOtherStoredTexts) {
  EXPECT_TRUE(parse_stored_upload("12." + kDigits + " 5 " + kName));
  EXPECT_FALSE(parse_stored_upload("12." + kDigits + " 5"));
  EXPECT_FALSE(parse_stored_upload("../" + kDigits + " 5 " + kName));
}

TEST(FileHolder, HasANameThatIsAChannel) {
  EXPECT_EQ(to_string(FileHolder(7)), "7");
  EXPECT_EQ(describe(FileHolder(7)), "runner 7");
  EXPECT_EQ(parse_file_holder("7"), FileHolder(7));
  EXPECT_EQ(parse_file_holder(kName).coordinator, kName);
  EXPECT_EQ(describe(parse_file_holder(kName)), "coordinator " + kName);
  EXPECT_FALSE(FileHolder().is_known());
  EXPECT_EQ(make_coordinator_name(std::string(24, 'c'), "atl as:\n*-1.example"),
            std::string(24, 'c') + "@atlas-1.example");
  for (const std::string& text : {std::string("to:") + kDigits, std::string("-1"), kName + "\n", kName + " x",
                                  std::string(24, 'c'), std::string("*@atlas"), "4294967296" + std::string()})
    EXPECT_FALSE(parse_file_holder(text).is_known()) << text;
}

TEST(SubmittedFiles, UploadIsDescribedAndRestored) {
  Job job;
  const std::string reference = "12." + kDigits + ".2000000." + kHash;
  auto files = parse_submitted_files({{"files", {{"a/b.bin", {{"upload", reference}}}, {"c", "text"}}}});
  ASSERT_TRUE(files) << files.error().message;
  ASSERT_TRUE(set_submitted_files(job, std::move(*files)));
  EXPECT_NE(job.file_descriptions.find("\"bytes\":2000000"), std::string::npos) << job.file_descriptions;
  Fields stored = encode_submitted_files(*job.submitted_files);
  ASSERT_EQ(stored.size(), 2U);
  EXPECT_EQ(stored[1].first, "upload:" + kHash);
  stored[1].second += " " + kName;  // as the store adds the holder
  Job restored = job;
  restored.submitted_files = nullptr;
  ASSERT_TRUE(restore_submitted_files(restored, stored));
  EXPECT_EQ(*restored.submitted_files, *job.submitted_files);
  EXPECT_EQ(restored.file_descriptions, job.file_descriptions);
}

TEST(SubmittedFiles, RefusesOtherUploads) {
  const std::string reference = "12." + kDigits + ".2000000." + kHash;
  for (const nlohmann::json& value :
       {nlohmann::json{{"upload", "x"}}, {{"upload", 1}}, {{"upload", reference}, {"x", 1}}})
    EXPECT_FALSE(parse_submitted_files({{"files", {{"a", value}}}})) << value;
  EXPECT_FALSE(parse_submitted_files({{"stdin", {{"upload", reference}}}}));
  Job job;
  for (const char* name : {"../x", "a\nb", "/a", ""}) {
    SubmittedFiles files;
    files.uploads.emplace(name, *parse_upload_reference(reference));
    EXPECT_FALSE(set_submitted_files(job, std::move(files))) << name;
  }
  SubmittedFiles files;
  files.uploads.emplace("a", *parse_upload_reference(reference));
  files.files.emplace("a/b", "x");
  EXPECT_FALSE(set_submitted_files(job, std::move(files)));
}

}  // namespace
}  // namespace mycojobs
