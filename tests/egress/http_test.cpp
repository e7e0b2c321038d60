#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sandbox/egress/http.h"
#include "sandbox/egress/socks.h"

namespace mycojobs::egress {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result<RequestHead> parse_request_head(std::string_view head) {
  HttpRequestParser parser(kMaxHeadBytes, true);
  MJ_TRY(size, parser.parse_head(head));
  if (size != head.size()) return fail(Code::invalid, "the head does not end where the text does");
  return read_request_head(parser);
}

TEST(RequestHead, AbsoluteTargetBecomesARequestToItsServer) {
  const auto head = parse_request_head(
      "GET http://Example.ORG/a?b=c HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\nProxy-Connection: keep-alive\r\n"
      "Proxy-Authorization: Basic eDp5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: "
      "trailers\r\n"
      "Upgrade: websocket\r\nX-Other:\t two  \r\n\r\n");
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(to_text(head->target), "example.org:80");
  EXPECT_FALSE(head->is_tunnel);
  EXPECT_EQ(head->forwarded_head,
            "GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nX-Other: two\r\nVia: 1.1 mycojobs\r\n"
            "Connection: close\r\n\r\n");
}

TEST(RequestHead, TargetsAreParsedAsInTheRfc) {
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"GET http://a.example HTTP/1.0", "a.example:80", "GET / HTTP/1.0\r\nHost: a.example\r\nVia: 1.0"},
      {"GET HTTP://a.example:8080/x HTTP/1.1", "a.example:8080", "GET /x HTTP/1.1\r\nHost: a.example:8080\r\n"},
      {"GET http://a.example?q HTTP/1.1", "a.example:80", "GET /?q HTTP/1.1\r\n"},
      {"OPTIONS http://a.example HTTP/1.1", "a.example:80", "OPTIONS * HTTP/1.1\r\n"},
      {"GET http://[2001:db8::1]/ HTTP/1.1", "[2001:db8::1]:80", "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n"},
      {"GET http://a.example/@b:c//http://d/ HTTP/1.1", "a.example:80", "GET /@b:c//http://d/ HTTP/1.1\r\n"},
      {"CONNECT a.example:443 HTTP/1.1", "a.example:443", ""},
      {"CONNECT [::1]:443 HTTP/1.0", "[::1]:443", ""},
  };
  for (const auto& [line, target, forward] : rows) {
    const auto head = parse_request_head(std::string(line) + "\r\n\r\n");
    ASSERT_TRUE(head) << line << ": " << head.error().message;
    EXPECT_EQ(to_text(head->target), target) << line;
    EXPECT_EQ(head->forwarded_head.substr(0, std::string_view(forward).size()), forward) << line;
    EXPECT_EQ(head->is_tunnel, std::string_view(forward).empty()) << line;
  }
}

TEST(RequestHead, AmbiguousHeadIsRejected) {
  using namespace std::string_literals;
  const std::string get = "GET http://a.example/ HTTP/1.1\r\n";
  const std::string rows[] = {
      "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
      "GET a.example HTTP/1.1\r\n\r\n",
      "GET https://a.example/ HTTP/1.1\r\n\r\n",
      "GET ftp://a.example/ HTTP/1.1\r\n\r\n",
      "GET http:a.example HTTP/1.1\r\n\r\n",
      "GET http:///a HTTP/1.1\r\n\r\n",
      "GET http://u@a.example/ HTTP/1.1\r\n\r\n",
      "GET http://u:p@a.example/ HTTP/1.1\r\n\r\n",
      "GET http://a.example\\@b.example/ HTTP/1.1\r\n\r\n",
      "GET http://a.example:80:81/ HTTP/1.1\r\n\r\n",
      "GET http://a.example:/ HTTP/1.1\r\n\r\n",
      "GET http://a.example:0/ HTTP/1.1\r\n\r\n",
      "GET http://a.example/#f HTTP/1.1\r\n\r\n",
      "GET http://%61.example/ HTTP/1.1\r\n\r\n",
      "GET http://a.example./ HTTP/1.1\r\n\r\n",
      "GET http://127.1/ HTTP/1.1\r\n\r\n",
      "GET http://2130706433/ HTTP/1.1\r\n\r\n",
      "GET http://0x7f000001/ HTTP/1.1\r\n\r\n",
      "GET http://[::1%25lo]/ HTTP/1.1\r\n\r\n",
      "GET http://[::ffff:7f00:1]/ HTTP/1.1\r\n\r\n",
      "GET http://a.example/\0 HTTP/1.1\r\n\r\n"s,
      "GET http://a.example/ b HTTP/1.1\r\n\r\n",
      "GET http://a.example/ HTTP/2.0\r\n\r\n",
      "GET http://a.example/ HTTP/1.1 \r\n\r\n",
      "GET http://a.example/\r\n\r\n",
      "GET\thttp://a.example/ HTTP/1.1\r\n\r\n",
      "G@T http://a.example/ HTTP/1.1\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\n",
      "CONNECT a.example HTTP/1.1\r\n\r\n",
      "CONNECT http://a.example:443 HTTP/1.1\r\n\r\n",
      "CONNECT u@a.example:443 HTTP/1.1\r\n\r\n",
      "CONNECT a.example:443/ HTTP/1.1\r\n\r\n",
      "\r\n\r\n",
      "X\r\n\r\n",
      get + "Host: a\r\nHost: b\r\n\r\n",
      get + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
      get + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
      get + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
      get + "Transfer-Encoding: gzip, chunked\r\n\r\n",
      get + "Transfer-Encoding: identity\r\n\r\n",
      get + "Transfer-Encoding : chunked\r\n\r\n",
      get +
          "Transfer-Encoding:\x0b"
          "chunked\r\n\r\n",
      "POST http://a.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
      get + "Content-Length: +1\r\n\r\n",
      get + "Content-Length: -1\r\n\r\n",
      get + "Content-Length: 0x1\r\n\r\n",
      get + "Content-Length: 1, 1\r\n\r\n",
      get + "Content-Length: 99999999999999999999\r\n\r\n",
      get + "Content-Length:\r\n\r\n",
      get + "A: b\r\n folded\r\n\r\n",
      get + " A: b\r\n\r\n",
      get + "A\r\n\r\n",
      get + ": b\r\n\r\n",
      get + "A b: c\r\n\r\n",
      get + "A: b\nC: d\r\n\r\n",
      get + "A: b\rC: d\r\n\r\n",
      get + "A: b\0\r\n\r\n"s,
      get + "A: \x1b[2J\r\n\r\n",
  };
  for (const auto& text : rows) {
    const auto head = parse_request_head(text);
    EXPECT_FALSE(head) << text;
    if (head) continue;
    for (char c : head.error().message) EXPECT_TRUE(c >= ' ' && c <= '~') << text;
  }
}

TEST(RequestHead, ConnectionCannotRemoveTheFraming) {
  const auto head = parse_request_head(
      "POST http://a.example/ HTTP/1.1\r\nConnection: content-length, host, transfer-encoding\r\nContent-Length: "
      "3\r\n\r\n");
  ASSERT_TRUE(head);
  EXPECT_THAT(head->forwarded_head, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(head->forwarded_head, HasSubstr("Host: a.example\r\n"));
}

TEST(RequestHead, NumberOfFieldsIsLimited) {
  std::string head = "GET http://a.example/ HTTP/1.1\r\nConnection: b, c,d\r\n";
  for (int i = 0; i < 198; ++i) head += "A: b\r\n";
  EXPECT_TRUE(parse_request_head(head + "C: d\r\n\r\n"));
  EXPECT_THAT(parse_request_head(head + "C: d\r\n\r\n")->forwarded_head, Not(HasSubstr("C: d")));
  EXPECT_FALSE(parse_request_head(head + "C: d\r\nE: f\r\n\r\n"));
}

TEST(ResponseHead, AlwaysSendsClose) {
  const std::string answer =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n"
      "Content-Length: 4\r\n\r\nbody";
  const std::string wanted =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
  for (std::size_t cut = 0; cut <= answer.size(); ++cut) {
    ResponseHead head;
    const auto first = head.feed(answer.substr(0, cut));
    ASSERT_TRUE(first);
    const auto second = head.feed(answer.substr(cut));
    ASSERT_TRUE(second);
    EXPECT_EQ(*first + *second, wanted) << cut;
    EXPECT_TRUE(head.is_complete());
  }
  ResponseHead bare;
  EXPECT_EQ(*bare.feed("HTTP/1.0 404 No\nA: b\n\nx"), "HTTP/1.0 404 No\r\nA: b\r\nConnection: close\r\n\r\nx");
}

TEST(ResponseHead, InvalidResponseIsAnError) {
  for (const std::string& text : {std::string("SSH-2.0-x\r\n\r\n"), std::string("HTTP/1.1 101 Switching\r\n\r\n"),
                                  std::string("HTTP/2 200\r\n\r\n"), std::string("\n\n"), std::string(20000, 'x')}) {
    ResponseHead head;
    EXPECT_FALSE(head.feed(text)) << text.substr(0, 30);
  }
}

TEST(Socks, RequestsAreParsedInAnyPieces) {
  using namespace std::string_literals;
  const std::pair<std::string, const char*> rows[] = {
      {"\5\1\0\1\x08\x08\x04\x04\0\x50"s, "8.8.4.4:80"},
      {"\5\1\0\3\x09"s + "A.Example" + "\1\xbb"s, "a.example:443"},
      {"\5\1\0\3\x07"s + "8.8.8.8" + "\0\x35"s, "8.8.8.8:53"},
      {"\5\1\0\4"s + std::string(15, '\0') + "\1\0\x50"s, "[::1]:80"},
  };
  for (const auto& [bytes, wanted] : rows) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto part = parse_socks_request(std::string_view(bytes).substr(0, size));
      ASSERT_TRUE(part) << wanted << ' ' << size;
      EXPECT_EQ(part->size, 0U);
    }
    const auto whole = parse_socks_request(bytes + "rest");
    ASSERT_TRUE(whole) << wanted;
    EXPECT_EQ(whole->size, bytes.size());
    EXPECT_EQ(to_text(whole->target), wanted);
  }
  EXPECT_EQ(*parse_socks_greeting("\5\1\0"s), 3U);
  EXPECT_EQ(*parse_socks_greeting("\5\2\2\0x"s), 4U);
  EXPECT_EQ(*parse_socks_greeting("\5\2\2"s), 0U);
}

TEST(Socks, UnsupportedRequestIsRejectedWithItsReply) {
  using namespace std::string_literals;
  EXPECT_EQ(parse_socks_greeting("\5\1\2"s).error().reply, 255);
  EXPECT_EQ(parse_socks_greeting("\5\0"s).error().reply, 255);
  const auto reply = [](const std::string& bytes) {
    const auto parsed = parse_socks_request(bytes);
    return parsed ? -1 : parsed.error().reply;
  };
  const std::string rest = "\0\1\x08\x08\x08\x08\0\x50"s;
  EXPECT_EQ(reply("\5\2"s + rest), socks_no_command);
  EXPECT_EQ(reply("\5\3"s + rest), socks_no_command);
  EXPECT_EQ(reply("\4\1"s + rest), socks_failure);
  EXPECT_EQ(reply("\5\1\0\2\x08\x08\x08\x08\0\x50"s), socks_no_address_type);
  EXPECT_EQ(reply("\5\1\0\1\x08\x08\x08\x08\0\0"s), socks_failure);
  EXPECT_EQ(reply("\5\1\0\3\0\0\x50"s), socks_not_allowed);
  EXPECT_EQ(reply("\5\1\0\3\x0e"s + "localhost\0.com"s + "\0\x50"s), socks_not_allowed);
  EXPECT_EQ(reply("\5\1\0\3\x05"s + "127.1" + "\0\x50"s), socks_not_allowed);
}

}  // namespace
}  // namespace mycojobs::egress
