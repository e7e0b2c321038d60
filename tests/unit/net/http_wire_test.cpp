#include "net/http_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mycojobs {
namespace {

using ::testing::HasSubstr;

const std::string kPost = "POST / HTTP/1.1\r\nHost: x\r\n", kChunked = kPost + "Transfer-Encoding: chunked\r\n\r\n";

struct RecordingBody final : HttpRequestParser::Body {
  Result<void> add(std::string_view bytes) override {
    text += bytes;
    return {};
  }
  std::string text;
};

// Returns a parser that has parsed the head.
HttpRequestParser make_parser(const std::string& head, bool trailers = true) {
  HttpRequestParser parser(8192, trailers);
  const auto head_size = parser.parse_head(head);
  EXPECT_TRUE(head_size && *head_size == head.size()) << head;
  return parser;
}

// Feeds the bytes in two parts; bytes of the first part that were not consumed are fed again.
Result<std::size_t> feed_in_two_parts(HttpRequestParser& parser, std::string_view bytes, std::size_t cut,
                                      RecordingBody& body) {
  MJ_TRY(first, parser.parse_body(bytes.substr(0, cut), body));
  MJ_TRY(second, parser.parse_body(bytes.substr(first), body));
  return first + second;
}

TEST(HttpRequestParser, HeadIsParsedInAnyPieces) {
  const std::string head = "PUT /a?b HTTP/1.0\r\nHost: x\r\nX-Two:\t a b  \r\n\r\n";
  for (std::size_t cut = 0; cut < head.size(); ++cut) {
    HttpRequestParser parser(8192);
    EXPECT_EQ(parser.parse_head(head.substr(0, cut)).value_or(1), 0U) << cut;
    EXPECT_FALSE(parser.has_head());
    EXPECT_EQ(parser.parse_head(head + "rest").value_or(0), head.size()) << cut;
    EXPECT_TRUE(parser.has_head() && parser.is_complete());
    EXPECT_EQ(parser.method(), "PUT");
    EXPECT_EQ(parser.target(), "/a?b");
    EXPECT_FALSE(parser.is_http_1_1() || parser.is_keep_alive());
    EXPECT_EQ(parser.fields(), (HttpFields{{"Host", "x"}, {"X-Two", "a b"}}));
  }
}

TEST(HttpRequestParser, HeadHasALimit) {
  const std::string head = kPost + "X: " + std::string(1000, 'x') + "\r\n\r\n";
  HttpRequestParser fits(head.size()), too_long(head.size() - 1), without_end(100);
  EXPECT_EQ(fits.parse_head(head + std::string(5000, 'y')).value_or(0), head.size());
  EXPECT_EQ(too_long.parse_head(head).error().code, Code::too_large);
  EXPECT_EQ(without_end.parse_head(head.substr(0, 101)).error().code, Code::too_large);
}

// Requests that the HTTP library accepts.
TEST(HttpRequestParser, LenientLibrarySyntaxIsRejected) {
  for (const char* invalid_fields :
       {"A: b\r\n c\r\n", "A:\r\n b\r\n", "A: b\r\n\tc\r\n", "Content-Length: 1, 1\r\n",
        "Content-Length: 1\r\nContent-Length: 1\r\n", "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: gzip\r\n", "Transfer-Encoding: identity\r\nContent-Length: 1\r\n", "Host: x\r\n",
        "Origin: a\r\nOrigin: a\r\n", "Authorization: a\r\nauthorization: a\r\n"}) {
    HttpRequestParser parser(8192);
    EXPECT_FALSE(parser.parse_head(kPost + invalid_fields + "\r\n")) << invalid_fields;
  }
  HttpRequestParser old(8192);
  EXPECT_FALSE(old.parse_head("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"));
}

TEST(HttpRequestParser, BareLineEndIsRejectedBeforeTheHeadEnds) {
  for (const char* malformed_head :
       {"POST / HTTP/1.1\n", "POST / HTTP/1.1\r\nA: b\n", "POST / HTTP/1.1\r\n A", " POST", "\n"}) {
    HttpRequestParser parser(8192);
    EXPECT_FALSE(parser.parse_head(malformed_head)) << malformed_head;
  }
}

TEST(HttpRequestParser, BodyEndsAtItsLength) {
  HttpRequestParser parser = make_parser(kPost + "Content-Length: 5\r\n\r\n");
  RecordingBody body;
  EXPECT_EQ(*parser.parse_body("abc", body), 3U);
  EXPECT_FALSE(parser.is_complete());
  EXPECT_EQ(*parser.parse_body("dePOST /", body), 2U);
  EXPECT_TRUE(parser.is_complete());
  EXPECT_EQ(*parser.parse_body("more", body), 0U);
  EXPECT_EQ(body.text, "abcde");
  EXPECT_TRUE(make_parser(kPost + "Content-Length: 0\r\n\r\n").is_complete());
}

TEST(HttpRequestParser, ChunksEndWithTheirLastLineInAnyPieces) {
  const std::string chunks = "4\r\nabcd\r\nA;x=\"y\"\r\n0123456789\r\n000\r\nTrailer: a\r\nB: c\r\n\r\n";
  const std::string all = chunks + "GET http://x/ HTTP/1.1";
  for (std::size_t cut = 0; cut <= all.size(); ++cut) {
    HttpRequestParser parser = make_parser(kChunked);
    RecordingBody body;
    EXPECT_EQ(feed_in_two_parts(parser, all, cut, body).value_or(0), chunks.size()) << cut;
    EXPECT_TRUE(parser.is_complete());
    EXPECT_EQ(body.text, "abcd0123456789");
    EXPECT_EQ(parser.fields().size(), 2U) << "trailers are not headers";
    HttpRequestParser strict = make_parser(kChunked, false);
    EXPECT_FALSE(feed_in_two_parts(strict, all, cut, body)) << cut;
  }
}

// Regression test for a bug found by fuzzing: the library asserts at least five bytes when a last chunk is fed for the
// second time.
TEST(HttpRequestParser, EmptyChunkedBodyEndsInAnyPieces) {
  for (const std::string chunks : {"0\r\n\r\n", "000\r\n\r\n", "0;a=b\r\n\r\n", "0\r\nX: y\r\n\r\n"}) {
    for (std::size_t step = 1; step <= chunks.size(); ++step) {
      HttpRequestParser parser = make_parser(kChunked);
      RecordingBody body;
      std::string pending_bytes;
      for (std::size_t at = 0; at < chunks.size(); at += step) {
        EXPECT_FALSE(parser.is_complete());
        pending_bytes += chunks.substr(at, step);
        const auto used = parser.parse_body(pending_bytes, body);
        ASSERT_TRUE(used) << used.error().message;
        pending_bytes.erase(0, *used);
      }
      EXPECT_TRUE(parser.is_complete() && pending_bytes.empty()) << chunks << step;
    }
  }
}

TEST(HttpRequestParser, MalformedChunksAreAnError) {
  for (const char* text : {"\r\n",
                           "x\r\n",
                           "-1\r\n",
                           "+1\r\n",
                           " 1\r\n",
                           "1 \r\n",
                           "0x1\r\n",
                           "1\na",
                           "1\r\nab",
                           "1\r\na\n",
                           "1\r\na\rb",
                           "ffffffffffffffff\r\n",
                           "1fffffffffffffffff\r\n",
                           "1\r\r\n",
                           ";\r\n",
                           "0\r\n\n",
                           "0\r\nA\nB",
                           "1;\x01\r\n",
                           "0\r\nContent-Length: 3\r\n",
                           "0\r\nA b: c"}) {
    const std::string bytes = text + std::string("\r\n\r\n0\r\n\r\n");
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      HttpRequestParser parser = make_parser(kChunked);
      RecordingBody body;
      EXPECT_FALSE(feed_in_two_parts(parser, bytes, cut, body)) << text << " cut at " << cut;
    }
  }
}

TEST(HttpRequestParser, BodyFramingHasALimit) {
  RecordingBody body;
  HttpRequestParser line = make_parser(kChunked), trailers = make_parser(kChunked), many = make_parser(kChunked);
  EXPECT_EQ(line.parse_body("1;" + std::string(20000, 'x'), body).error().code, Code::too_large);
  std::string fields = "0\r\n", chunks;
  while (fields.size() < 40000) fields += "A: b\r\n";
  EXPECT_EQ(trailers.parse_body(fields, body).error().code, Code::too_large);
  while (chunks.size() < 60000) chunks += "1;a=b\r\nx\r\n";
  EXPECT_EQ(many.parse_body(chunks, body).error().code, Code::too_large);
}

TEST(HttpRequestParser, BodyErrorEndsTheRequest) {
  struct RejectingBody final : HttpRequestParser::Body {
    Result<void> begin(std::uint64_t length) override {
      if (length > 10) return fail(Code::too_large, "begin");
      return {};
    }
    Result<void> add(std::string_view bytes) override {
      if (!bytes.empty()) return fail(Code::unavailable, "add");
      return {};
    }
  } body;
  HttpRequestParser length = make_parser(kPost + "Content-Length: 11\r\n\r\n"), chunked = make_parser(kChunked);
  EXPECT_EQ(length.parse_body("", body).error().code, Code::too_large);
  EXPECT_EQ(chunked.parse_body("1\r\nx", body).error().code, Code::unavailable);
}

TEST(HttpAnswerHead, DescribesBodyLengthAndKeepAlive) {
  EXPECT_EQ(to_text({200, {{"A", "b"}}, HttpFraming::counted, 3, true, true}),
            "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(to_text({204, {}, HttpFraming::counted, 0, true, false}),
            "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(to_text({200, {}, HttpFraming::chunked, 0, true, false}),
              HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
  EXPECT_EQ(to_text({200, {}, HttpFraming::until_closed, 0, false, false}), "HTTP/1.0 200 OK\r\n\r\n");
  EXPECT_THAT(to_text({200, {}, HttpFraming::counted, 1, false, true}), HasSubstr("\r\nConnection: keep-alive\r\n"));
  EXPECT_EQ(encode_chunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
  EXPECT_EQ(encode_chunk(""), "0\r\n\r\n");
}

}  // namespace
}  // namespace mycojobs
