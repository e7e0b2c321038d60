// Ranges, file names, media types and tickets of downloads.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>

#include "api/artifacts/artifact_tickets.h"
#include "api/http/download_headers.h"
#include "model/media_type.h"
#include "support/hand_clock.h"

namespace mycojobs::api {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ByteRange, PartOfTheFile) {
  const std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> ranges{
      {"bytes=0-0", {0, 1}}, {"bytes=0-", {0, 10}},  {"bytes=9-", {9, 10}},      {"bytes=2-5", {2, 6}},
      {"bytes=-3", {7, 10}}, {"bytes=-99", {0, 10}}, {"bytes=5-99999", {5, 10}}, {"bytes= 1-2 ", {1, 3}},
  };
  for (const auto& [header, expected] : ranges) {
    const auto range = parse_byte_range(header, 10);
    ASSERT_TRUE(range) << header;
    EXPECT_TRUE(range->is_partial) << header;
    EXPECT_EQ(std::pair(range->begin, range->end), expected) << header;
  }
  EXPECT_EQ(format_content_range(*parse_byte_range("bytes=2-5", 10), 10), "bytes 2-5/10");
}

TEST(ByteRange, IgnoredHeaderGivesTheWholeFile) {
  for (const std::string header : {"", "items=0-5", "bytes=0-1,4-5", "bytes=0-1, 99-"}) {
    const auto range = parse_byte_range(header, 10);
    ASSERT_TRUE(range) << header;
    EXPECT_FALSE(range->is_partial) << header;
    EXPECT_EQ(range->size(), 10U) << header;
  }
}

TEST(ByteRange, MalformedOrUnsatisfiableHeaderIsRefused) {
  for (const std::string header : {"bytes=", "bytes=-", "bytes=a-b", "bytes=5-2", "bytes=-0", "bytes=10-",
                                   "bytes=99-100", "bytes=1", "bytes 0-1", "bytes=--1", "bytes=+1-2", "bytes=0x1-2",
                                   "bytes=1-2-3", "bytes=99999999999999999999-", "=0-1", "bytes=18446744073709551615-"})
    EXPECT_FALSE(parse_byte_range(header, 10)) << header;
  EXPECT_FALSE(parse_byte_range("bytes=0-", 0));
  EXPECT_TRUE(parse_byte_range("", 0));
}

TEST(Attachment, NameCannotLeaveTheHeader) {
  EXPECT_EQ(format_attachment("dist/report.txt"), "attachment; filename=\"report.txt\"; filename*=UTF-8''report.txt");
  EXPECT_EQ(format_attachment("\xC3\xA4.txt"), "attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%A4.txt");
  EXPECT_EQ(format_attachment("a b%c.txt"), "attachment; filename=\"a b_c.txt\"; filename*=UTF-8''a%20b%25c.txt");
  for (const std::string name :
       {"a\r\nSet-Cookie: b=c", "a\"; filename=\"b.exe", "a\\\"b", "a\tb", "a\x7f", "..", ".", "a/..",
        "invoice\xE2\x80\xAE"
        "fdp.exe",
        "\xff\xfe"}) {
    const std::string header = format_attachment(name);
    for (const char sign : header) EXPECT_TRUE(sign >= ' ' && sign < 0x7f) << header;
    EXPECT_EQ(std::count(header.begin(), header.end(), '"'), 2) << header;
    EXPECT_THAT(header, Not(HasSubstr("E2%80%AE")));
    EXPECT_THAT(header, Not(HasSubstr("\"..\"")));
  }
}

TEST(MediaType, DocumentsWithScriptsAreSentAsBinary) {
  EXPECT_EQ(find_media_type("a/plot.PNG", false), "image/png");
  EXPECT_EQ(find_media_type("notes", true), "text/plain");
  EXPECT_EQ(find_media_type("app", false), "application/octet-stream");
  EXPECT_EQ(find_media_type("broken.txt", false), "application/octet-stream") << "it is not text";
  EXPECT_EQ(find_media_type("png", true), "text/plain") << "a name without ending";
  for (const std::string name : {"a.html", "a.HTM", "a.svg", "a.xhtml", "a.xml", "a.js", "a.pdf", "a.css", "a.unknown"})
    EXPECT_EQ(get_download_type(find_media_type(name, false)), "application/octet-stream") << name;
  EXPECT_EQ(find_media_type("a.html", true), "text/html");
  EXPECT_EQ(get_download_type("text/html"), "application/octet-stream");
  EXPECT_EQ(get_download_type("image/svg+xml"), "application/octet-stream");
  EXPECT_EQ(get_download_type("image/png"), "image/png");
  EXPECT_EQ(get_download_type("text/csv"), "text/plain; charset=utf-8");
  EXPECT_EQ(get_download_type("text/plain"), "text/plain; charset=utf-8");
}

class Tickets : public testing::Test {
 protected:
  test::ManualClock clock_;
  ArtifactTickets tickets_{clock_};
  const TicketObject object_{1, "job:12:7", "report.txt", std::string(64, 'a')};
};

TEST_F(Tickets, TicketStandsForItsCaller) {
  const auto ticket = tickets_.verify(tickets_.create(RpcCaller{12, false, false}, object_), object_);
  ASSERT_TRUE(ticket);
  EXPECT_EQ(ticket->caller.actor, 12U);
  EXPECT_EQ(ticket->context, 1U);
  EXPECT_EQ(ticket->signer_key, "") << "this process has signed it";
  EXPECT_FALSE(ticket->caller.operator_token || ticket->caller.anonymous);
  EXPECT_TRUE(tickets_.verify(tickets_.create(RpcCaller{0, false, true}, object_), object_)->caller.operator_token);
  EXPECT_TRUE(tickets_.verify(tickets_.create(RpcCaller{0, true, false}, object_), object_)->caller.anonymous);
}

TEST_F(Tickets, TicketIsForOneFileAndOneMinute) {
  const std::string ticket = tickets_.create(RpcCaller{12}, object_);
  TicketObject other = object_;
  other.context = 2;
  EXPECT_FALSE(tickets_.verify(ticket, other));
  other = object_;
  other.job_key = "job:12:8";
  EXPECT_FALSE(tickets_.verify(ticket, other));
  other = object_;
  other.name = "secret.txt";
  EXPECT_FALSE(tickets_.verify(ticket, other));
  other = object_;
  other.sha256[0] = 'b';
  EXPECT_FALSE(tickets_.verify(ticket, other));
  clock_.advance(kTicketLifetimeMs - 1);
  EXPECT_TRUE(tickets_.verify(ticket, object_));
  clock_.advance(1);
  const auto expired = tickets_.verify(ticket, object_);
  ASSERT_FALSE(expired);
  EXPECT_EQ(expired.error().code, Code::denied);
  EXPECT_THAT(expired.error().message, HasSubstr("expired"));
}

TEST_F(Tickets, ForgedTicketIsRefused) {
  const std::string ticket = tickets_.create(RpcCaller{12}, object_);
  const std::string end = ticket.substr(ticket.find('.', ticket.find('.', 3) + 1));  // key and signature
  const std::string until = std::to_string(clock_.unix_ms() + kTicketLifetimeMs);
  ASSERT_EQ("12.t." + until + end, ticket);
  for (const std::string& forged :
       {std::string(), std::string("."), std::string("..."), std::string("...."), end, "12.o." + until + end,
        "13.t." + until + end, "12.t.99999999999999" + end, ticket + '0', ticket.substr(1),
        ticket.substr(0, ticket.size() - 1), std::string(250, '.'), std::string(5000, '1')})
    EXPECT_FALSE(tickets_.verify(forged, object_)) << forged;
}

TEST_F(Tickets, TicketOfAnotherProcessNamesItsKey) {
  const std::string ticket = tickets_.create(RpcCaller{12}, object_);
  const auto verified = ArtifactTickets(clock_).verify(ticket, object_);
  ASSERT_TRUE(verified);
  EXPECT_EQ(verified->signer_key.size(), 64U) << "the server must look it up";
}

}  // namespace
}  // namespace mycojobs::api
