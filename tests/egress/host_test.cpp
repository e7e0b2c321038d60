#include "net/host.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

std::string describe(const Host& host) { return host.address ? "address " + to_text(*host.address) : host.name; }

TEST(Host, PlainNamesAndCanonicalAddressesAreAccepted) {
  const std::pair<const char*, const char*> rows[] = {
      {"example.org", "example.org"},
      {"API.Example.ORG", "api.example.org"},
      {"localhost", "localhost"},
      {"xn--bcher-kva.example", "xn--bcher-kva.example"},
      {"1.example", "1.example"},
      {"0x7f.example", "0x7f.example"},
      {"a-b.c1", "a-b.c1"},
      {"192.0.2.7", "address 192.0.2.7"},
      {"0.0.0.0", "address 0.0.0.0"},
      {"2001:db8::1", "address 2001:db8::1"},
      {"2001:DB8::A", "address 2001:db8::a"},
      {"::1", "address ::1"},
      {"::", "address ::"},
      {"::ffff:127.0.0.1", "address ::ffff:127.0.0.1"},
  };
  for (const auto& [text, wanted] : rows) {
    const auto host = parse_host(text);
    ASSERT_TRUE(host) << text << ": " << host.error().message;
    EXPECT_EQ(describe(*host), wanted) << text;
  }
}

TEST(Host, EveryOtherNotationIsRejected) {
  using namespace std::string_literals;
  const std::string long_label(64, 'a');
  std::string long_name = "a";
  while (long_name.size() <= 253) long_name += ".a";
  const std::string rows[] = {
      "",
      "2130706433",
      "0177.0.0.1",
      "127.1",
      "127.0.1",
      "0x7f.1",
      "0x7f000001",
      "0x7F.0.0.1",
      "0x",
      "example.0x1",
      "127.0.0.01",
      "127.0.0.1.",
      "127.0.0.256",
      "1.2.3.4.5",
      "example.1",
      "017700000001",
      "example.org.",
      "example..org",
      ".example.org",
      ".",
      "-a.example",
      "a-.example",
      "a_b.example",
      "b\xc3\xbc"
      "cher.example",
      "\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1",
      "127\xe3\x80\x82"
      "0.0.1",
      "%31%32%37.0.0.1",
      "localhost%00.example.org",
      "localhost\0.example.org"s,
      "127.0.0.1\0"s,
      "user@example.org",
      "exa mple.org",
      "example.org\r\nHost: x",
      "example.org\t",
      " example.org",
      "example.org/",
      "example.org\\x",
      "example.org?",
      "example.org#",
      "*.example.org",
      "[::1]",
      "fe80::1%eth0",
      "::1%lo",
      "0:0:0:0:0:0:0:1",
      "::0001",
      "::ffff:7f00:1",
      "::ffff:127.1",
      "2001:db8:0:0:0:0:0:1",
      "1::2::3",
      ":",
      ":::",
      "12345::",
      long_label + ".example",
      long_name,
  };
  for (const auto& text : rows) {
    const auto host = parse_host(text);
    EXPECT_FALSE(host) << text << " is " << (host ? describe(*host) : "");
    if (!host) {
      EXPECT_EQ(host.error().code, Code::invalid) << text;
      for (char c : host.error().message) EXPECT_TRUE(c >= ' ' && c <= '~') << text;
    }
  }
}

TEST(Host, ErrorContainsTheCorrectNotation) {
  EXPECT_EQ(parse_host("0:0:0:0:0:0:0:1").error().message, "\"0:0:0:0:0:0:0:1\": not a canonical address: write ::1");
  EXPECT_EQ(parse_host("a@b").error().message, "\"a@b\": user information before a host is not accepted");
}

TEST(HostPort, RoundTrips) {
  for (const char* text : {"example.org:443", "192.0.2.7:1", "[2001:db8::1]:65535"}) {
    const auto target = parse_host_port(text);
    ASSERT_TRUE(target) << text << ": " << target.error().message;
    EXPECT_EQ(to_text(*target), text);
  }
  EXPECT_EQ(parse_host_port("example.org", 80)->port, 80);
  EXPECT_EQ(to_text(*parse_host_port("[::1]", 80)), "[::1]:80");
  for (const char* text : {"example.org",
                           "example.org:",
                           "example.org:0",
                           "example.org:080",
                           "example.org:65536",
                           "example.org:+1",
                           "example.org: 1",
                           "example.org:1:2",
                           "::1:80",
                           "2001:db8::1:443",
                           "[::1]",
                           "[::1]:",
                           "[::1]80",
                           "[::1",
                           "::1]:80",
                           "[127.0.0.1]:80",
                           "[example.org]:80",
                           ":80",
                           "[]:80",
                           "[fe80::1%25eth0]:80",
                           "a@b:80",
                           "u:p@b:80"}) {
    EXPECT_FALSE(parse_host_port(text)) << text;
  }
}

TEST(IpAddress, RangesAreOfOneFamily) {
  EXPECT_TRUE(is_in_range(*parse_ip("10.255.0.1"), *parse_ip("10.0.0.0"), 8));
  EXPECT_FALSE(is_in_range(*parse_ip("11.0.0.0"), *parse_ip("10.0.0.0"), 8));
  EXPECT_TRUE(is_in_range(*parse_ip("11.0.0.0"), *parse_ip("10.0.0.0"), 7));
  EXPECT_TRUE(is_in_range(*parse_ip("1.2.3.4"), *parse_ip("0.0.0.0"), 0));
  EXPECT_FALSE(is_in_range(*parse_ip("::"), *parse_ip("0.0.0.0"), 0));
  EXPECT_FALSE(is_in_range(*parse_ip("1.2.3.5"), *parse_ip("1.2.3.4"), 32));
}

}  // namespace
}  // namespace mycojobs
