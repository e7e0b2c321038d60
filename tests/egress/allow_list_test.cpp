#include "net/allow_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mycojobs {
namespace {

using ::testing::HasSubstr;

AllowEntry parse_entry(const std::string& text) {
  const auto parsed = parse_allow_entry(text);
  EXPECT_TRUE(parsed) << text << ": " << (parsed ? "" : parsed.error().message);
  return parsed ? *parsed : AllowEntry{};
}

TEST(AllowList, EntriesOfEveryFormAreRead) {
  EXPECT_EQ(parse_entry("API.example.org:443"), (AllowEntry{AllowEntry::Form::name, "api.example.org", {}, 0, 443}));
  EXPECT_EQ(parse_entry("*.example.org:*"), (AllowEntry{AllowEntry::Form::subdomains, "example.org", {}, 0, 0}));
  EXPECT_EQ(parse_entry("192.0.2.7:5432"), (AllowEntry{AllowEntry::Form::range, "", *parse_ip("192.0.2.7"), 32, 5432}));
  EXPECT_EQ(parse_entry("192.0.2.0/24:443"),
            (AllowEntry{AllowEntry::Form::range, "", *parse_ip("192.0.2.0"), 24, 443}));
  EXPECT_EQ(parse_entry("[2001:db8::1]:443"),
            (AllowEntry{AllowEntry::Form::range, "", *parse_ip("2001:db8::1"), 128, 443}));
  EXPECT_EQ(parse_entry("[2001:db8::/32]:1"),
            (AllowEntry{AllowEntry::Form::range, "", *parse_ip("2001:db8::"), 32, 1}));
  EXPECT_EQ(parse_entry("0.0.0.0/0:*"), (AllowEntry{AllowEntry::Form::range, "", *parse_ip("0.0.0.0"), 0, 0}));
  EXPECT_TRUE(parse_entry("192.0.2.7:5432").is_single_address());
  EXPECT_FALSE(parse_entry("192.0.2.0/24:443").is_single_address());
}

TEST(AllowList, ErrorNamesTheEntryAndTheProblem) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "port is missing"},
      {"example.org", "port is missing"},
      {"example.org:", "the port is a number"},
      {"example.org:0", "the port is a number"},
      {"example.org:65536", "the port is a number"},
      {"example.org:http", "the port is a number"},
      {"example.org:4 43", "the port is a number"},
      {":443", "the host is missing"},
      {"*:443", "a wildcard needs a domain"},
      {"*.:443", "the host is missing"},
      {"a.*.example.org:443", "a wildcard must replace whole leading labels"},
      {"*a.example.org:443", "a wildcard must replace whole leading labels"},
      {"*.192.0.2.7:443", "a wildcard cannot precede an address"},
      {"example.org.:443", "no trailing dot"},
      {"https://example.org:443", "brackets"},
      {"example.org/path:443", "a range must begin with"},
      {"2130706433:443", "not a canonical address"},
      {"127.1:443", "not a canonical address"},
      {"0x7f.1:443", "not a canonical address"},
      {"2001:db8::1:443", "in brackets"},
      {"[2001:db8:0::1]:443", "write 2001:db8::1"},
      {"[192.0.2.7]:443", "only an IPv6 address or range can be in"},
      {"[example.org]:443", "only an IPv6 address or range can be in"},
      {"[2001:db8::1]", "port is missing"},
      {"192.0.2.7/24:443", "begins at 192.0.2.0"},
      {"192.0.2.0/33:443", "a number from 0 to 32"},
      {"192.0.2.0/:443", "a number from 0 to 32"},
      {"192.0.2.0/08:443", "a number from 0 to 32"},
      {"192.0.2/24:443", "a range must begin with"},
      {"[2001:db8::/129]:443", "a number from 0 to 128"},
      {"[fe80::1%eth0]:443", "zone id"},
      {"user@example.org:443", "user information"},
      {"b\xc3\xbc"
       "cher.example:443",
       "xn--"},
      {"exam ple.org:443", "letters, digits"},
  };
  for (const auto& [text, reason] : rows) {
    const auto parsed = parse_allow_entry(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, Code::invalid) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr(reason)) << text;
  }
  const auto list = parse_allow({"example.org:443", "nonsense"});
  ASSERT_FALSE(list);
  EXPECT_THAT(list.error().message, HasSubstr("nonsense"));
  EXPECT_FALSE(parse_allow_entry(std::string(100000, 'a') + ":1"));
}

TEST(AllowList, WildcardMatchesOnlySubdomains) {
  const auto below = parse_entry("*.example.org:443");
  EXPECT_TRUE(below.allows_name("api.example.org"));
  EXPECT_TRUE(below.allows_name("a.b.example.org"));
  EXPECT_FALSE(below.allows_name("example.org"));
  EXPECT_FALSE(below.allows_name(".example.org"));
  EXPECT_FALSE(below.allows_name("badexample.org"));
  EXPECT_FALSE(below.allows_name("example.org.evil.net"));
  EXPECT_FALSE(parse_entry("example.org:443").allows_name("api.example.org"));
}

TEST(AllowList, CeilingCoversItsSubsets) {
  const auto is_covered = [](const char* wide, const char* narrow) {
    return covers(parse_entry(wide), parse_entry(narrow));
  };
  EXPECT_TRUE(is_covered("a.example:443", "A.example:443"));
  EXPECT_TRUE(is_covered("a.example:*", "a.example:443"));
  EXPECT_FALSE(is_covered("a.example:443", "a.example:*"));
  EXPECT_FALSE(is_covered("a.example:443", "a.example:80"));
  EXPECT_TRUE(is_covered("*.example:443", "a.example:443"));
  EXPECT_TRUE(is_covered("*.example:443", "*.example:443"));
  EXPECT_TRUE(is_covered("*.example:443", "*.a.example:443"));
  EXPECT_FALSE(is_covered("*.a.example:443", "*.example:443"));
  EXPECT_FALSE(is_covered("a.example:443", "*.a.example:443"));
  EXPECT_FALSE(is_covered("*.example:443", "example:443"));
  EXPECT_TRUE(is_covered("10.0.0.0/8:*", "10.1.0.0/16:5432"));
  EXPECT_TRUE(is_covered("10.0.0.0/8:*", "10.1.2.3:5432"));
  EXPECT_FALSE(is_covered("10.1.0.0/16:*", "10.0.0.0/8:5432"));
  EXPECT_FALSE(is_covered("10.0.0.0/16:*", "10.0.0.0/8:5432")) << "both ranges start at the same address";
  EXPECT_FALSE(is_covered("0.0.0.0/0:*", "[::1]:1"));
  EXPECT_FALSE(is_covered("0.0.0.0/0:*", "a.example:1"));
}

}  // namespace
}  // namespace mycojobs
