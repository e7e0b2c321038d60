// Random mutations of requests: the parser must not crash, and accepted requests must have the properties on which the
// judge relies. MYCOJOBS_FUZZ_SEED repeats a run.
#include <gtest/gtest.h>

#include <random>

#include "sandbox/egress/http.h"
#include "sandbox/egress/socks.h"
#include "support/test_settings.h"

namespace mycojobs::egress {
namespace {

constexpr int kRounds = 40000;

const std::string& seed_text(std::mt19937_64& random) {
  static const std::string kSeeds[] = {
      "GET http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, x\r\nX: y\r\n\r\n",
      "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
      "POST http://[2001:db8::1]:8080/ HTTP/1.1\r\nContent-Length: 12\r\n\r\n",
      "POST http://192.0.2.7:80/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n",
      "OPTIONS http://u@127.1 HTTP/1.0\r\nA: b\r\n c\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
  };
  return kSeeds[random() % std::size(kSeeds)];
}

std::string make_mutated_head(std::mt19937_64& random) {
  static const std::string kPieces[] = {"\r\n",
                                        "\n",
                                        "\r",
                                        "\r\n\r\n",
                                        std::string(1, '\0'),
                                        "%00",
                                        "@",
                                        "[",
                                        "]",
                                        ":",
                                        "//",
                                        " ",
                                        "\t",
                                        "http://",
                                        "HTTP/1.1",
                                        "127.1",
                                        "::1",
                                        "%",
                                        "\xff",
                                        "0x7f",
                                        "Host: b\r\n",
                                        "Content-Length: 3\r\n",
                                        "Transfer-Encoding: chunked\r\n",
                                        "CONNECT "};
  std::string text = seed_text(random);
  for (std::uint64_t changes = random() % 6; changes > 0; --changes) {
    const std::size_t at = text.empty() ? 0 : random() % text.size();
    switch (random() % 5) {
      case 0:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 1:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 2:
        text.erase(at, random() % 8);
        break;
      case 3:
        text.insert(at, text.substr(at, random() % 20));
        break;
      default:
        text += seed_text(random).substr(0, random() % 60);
        break;
    }
  }
  return text;
}

std::size_t count_occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

void check(const RequestHead& head) {
  EXPECT_GT(head.target.port, 0);
  const auto again = parse_host_port(to_text(head.target));
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, head.target);
  if (head.is_tunnel) return;
  // The bytes have one head, one Host with the target, and no bare line ends, so they contain no second request.
  EXPECT_EQ(head.forwarded_head.find("\r\n\r\n"), head.forwarded_head.size() - 4);
  EXPECT_EQ(count_occurrences(head.forwarded_head, "\r\n"), count_occurrences(head.forwarded_head, "\n"));
  EXPECT_EQ(count_occurrences(head.forwarded_head, "\r\n"), count_occurrences(head.forwarded_head, "\r"));
  EXPECT_EQ(count_occurrences(head.forwarded_head, "\r\nHost: "), 1U);
  EXPECT_EQ(head.forwarded_head.find('\0'), std::string::npos);
}

constexpr std::string_view kChunkedHead = "POST http://x/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";

void feed_rest(HttpRequestParser& parser, std::string_view bytes) {
  HttpRequestParser::Body body;
  if (const auto size = parser.parse_body(bytes, body)) {
    EXPECT_LE(*size, bytes.size());
  }
}

TEST(HeadFuzz, AcceptedInputIsOneRequestToOneHost) {
  std::mt19937_64 random(test::choose_seed("MYCOJOBS_FUZZ_SEED"));
  int taken = 0;
  for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
    const std::string text = make_mutated_head(random);
    SCOPED_TRACE(::testing::PrintToString(text));
    HttpRequestParser parser(kMaxHeadBytes, true);
    if (const auto size = parser.parse_head(text); size && *size > 0) {
      if (const auto head = read_request_head(parser)) {
        ++taken;
        check(*head);
        feed_rest(parser, std::string_view(text).substr(*size));
      }
    }
    (void)parse_socks_greeting(text);
    if (const auto socks = parse_socks_request(text)) {
      EXPECT_LE(socks->size, text.size());
    }
    ResponseHead response;
    (void)response.feed("HTTP/1.1 200 OK\r\n" + text);
    HttpRequestParser chunks(kMaxHeadBytes, true);
    ASSERT_TRUE(chunks.parse_head(kChunkedHead));
    feed_rest(chunks, text);
  }
  EXPECT_GT(taken, kRounds / 100) << "few mutated heads are accepted: the mutations test too little";
}

}  // namespace
}  // namespace mycojobs::egress
