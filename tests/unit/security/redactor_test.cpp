#include "security/redactor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "support/spelling.h"
#include "support/test_settings.h"

namespace mycojobs::test {
namespace {

std::string redact(const std::vector<Secret>& secrets, std::string_view text) { return Redactor(secrets).redact(text); }

std::vector<Secret> make_secrets(const std::string& value) { return {{"K", value}}; }

std::string to_hex(std::string_view bytes) {
  std::string out;
  for (char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += digits;
  }
  return out;
}

// Feeds the text byte by byte and returns the concatenated output.
std::string redact_by_bytes(const Redactor& redactor, std::string_view text) {
  Redaction redaction(redactor);
  std::string out;
  for (char c : text) out += redaction.feed(std::string_view(&c, 1));
  out += redaction.finish();
  return out;
}

TEST(Redactor, ReplacesEveryOccurrenceInAnyPieces) {
  const Redactor redactor(make_secrets("hunter22"));
  const std::string text = "a hunter22b hunter2 hunter22hunter22";
  EXPECT_EQ(redactor.redact(text), "a [secret K]b hunter2 [secret K][secret K]");
  EXPECT_EQ(redact_by_bytes(redactor, text), redactor.redact(text));
}

TEST(Redactor, KnowsTheEncodings) {
  const std::string value = "p\xC3\xA9\"/&+ \x01~w?>\xF0\x9F\x98\x80z";
  const Redactor redactor(make_secrets(value));
  for (const auto& [name, spelled] : list_spellings(value)) {
    SCOPED_TRACE(name);
    EXPECT_EQ(redactor.redact("<" + spelled + ">"), "<[secret K]>") << spelled;
    EXPECT_EQ(redact_by_bytes(redactor, "<" + spelled + ">"), "<[secret K]>") << spelled;
  }
}

TEST(Redactor, EmbeddedBase64IsFound) {
  const std::string value = "correct horse battery";
  const Redactor redactor(make_secrets(value));
  for (std::size_t before = 0; before < 6; ++before) {
    for (std::size_t after = 0; after < 6; ++after) {
      const std::string text =
          base64(std::string(before, 'x') + value + std::string(after, 'y'), kStandardAlphabet, true);
      const std::string out = redactor.redact(text);
      EXPECT_NE(out.find("[secret K]"), std::string::npos) << text;
      // The remaining text contains at most the bits of one character at either end.
      EXPECT_LE(out.size(), text.size() - value.size() * 8 / 6 + 2 + std::string_view("[secret K]").size()) << out;
    }
  }
}

TEST(Redactor, WrappedBase64IsFound) {
  const std::string value = "a key that is so long that the tool of that name wraps what it makes of it, as here";
  std::string text = base64(value, kStandardAlphabet, true);
  for (std::size_t at = 76; at < text.size(); at += 78) text.insert(at, "\r\n");
  EXPECT_EQ(redact({{"K", value}}, text + "\n"), "[secret K]\n");
}

TEST(Redactor, MultiLineValueIsFoundWholeAndByLine) {
  const std::string value = "-----BEGIN-----\nMIIEowIBAAKCAQEA\nshort\n  0123456789abcdef\n-----END-----";
  const Redactor redactor(make_secrets(value));
  EXPECT_EQ(redactor.redact("<" + value + ">"), "<[secret K]>");
  EXPECT_EQ(redactor.redact("x MIIEowIBAAKCAQEA y\nshort\n0123456789abcdef"), "x [secret K] y\nshort\n[secret K]");
  EXPECT_EQ(redactor.redact(base64("MIIEowIBAAKCAQEA", kStandardAlphabet, true)), "[secret K]");
  std::string indented = value;
  for (std::size_t at = 0; (at = indented.find('\n', at)) != std::string::npos; at += 5)
    indented.replace(at, 1, "\r\n    ");
  EXPECT_EQ(redactor.redact(indented), "[secret K]");
}

// A one-line error contains blanks in place of the line ends of the message.
TEST(Redactor, BlanksAreEquivalent) {
  const Redactor redactor(make_secrets("ab c\n\td  e"));
  EXPECT_EQ(redactor.redact("ab c d e|ab\nc d\x7f"
                            "e|abc d e"),
            "[secret K]|[secret K]|abc d e");
}

TEST(Redactor, OverlappingMatchesUseTheLongest) {
  const std::vector<Secret> secrets = {{"A", "abcd"}, {"B", "cdefgh"}, {"C", "bcde"}, {"D", "xyzabcdefghijkl"}};
  EXPECT_EQ(redact(secrets, "-abcdefgh-"), "-[secret B]-");
  EXPECT_EQ(redact(secrets, "-abcde-"), "-[secret A]-");
  EXPECT_EQ(redact(secrets, "-xyzabcdefghijkl-"), "-[secret D]-");
  EXPECT_EQ(redact(secrets, "-xyzabcdefghijk-"), "-xyz[secret B]ijk-");
  EXPECT_EQ(redact({{"A", "aaaa"}}, "aaa aaaaaaaaa aaaa"), "aaa [secret A] [secret A]");
  EXPECT_EQ(redact({{"FIRST", "same value"}, {"SECOND", "same value"}}, "same value"), "[secret FIRST]");
}

TEST(Redactor, PrefixOfAValueIsHeldUntilTheStreamEnds) {
  const Redactor redactor(make_secrets("secret value"));
  Redaction redaction(redactor);
  EXPECT_EQ(redaction.feed("Password: secret"), "Password: ");
  EXPECT_EQ(redaction.feed(" "), "");
  EXPECT_EQ(redaction.feed("vault\nsecr"), "secret vault\n");
  EXPECT_EQ(redaction.finish(), "secr");
  EXPECT_EQ(redaction.feed("secret value"), "[secret K]") << "ready for another stream";
  EXPECT_EQ(redaction.finish(), "");
}

// Base64 may be wrapped: only a line that looks wrapped may be held back until the next line.
TEST(Redactor, HarmlessLinesAreShownAtOnce) {
  const Redactor redactor({{"db", "hunter2-of-the-test"},
                           {"token", "ghp_0123456789abcdefABCDEF"},
                           {"key", "-----BEGIN KEY-----\nc2VjcmV0IGtleSBvZiB0ZXN0\n-----END KEY-----\n"}});
  for (const std::string line : {"starting",
                                 "request 4711 took 126",
                                 "GET /health 200",
                                 "user a",
                                 "user h",
                                 "path: /usr/lib/python3",
                                 "step 1 of 2",
                                 "100 %",
                                 "C:\\",
                                 "a + b =",
                                 "version 1.2.6",
                                 "temperature: -5",
                                 "name=G",
                                 "flags: -",
                                 "2026-11-28T12:00:07Z",
                                 "id 0x6",
                                 "Done!",
                                 "ok",
                                 "i",
                                 "1",
                                 "2",
                                 "6",
                                 "7",
                                 "L",
                                 "a",
                                 "l",
                                 "Z",
                                 "0",
                                 "-",
                                 "["}) {
    Redaction redaction(redactor);
    EXPECT_EQ(redaction.feed(line + "\n"), line + "\n");
  }
  Redaction redaction(redactor);
  EXPECT_EQ(redaction.feed("the token is ghp_\n"), "the token is ghp_\n") << "a value without blanks has one line";
  EXPECT_EQ(redaction.feed("the token is ghp_"), "the token is ");
}

// After four matched characters of a value, a line end counts as wrapping.
TEST(Redactor, NarrowlyWrappedFormsAreFound) {
  const std::string value = "correct horse battery staple";
  const Redactor redactor(make_secrets(value));
  for (const std::string& packed : {base64(value, kStandardAlphabet, true), to_hex(value)}) {
    for (std::size_t width = Redactor::kMinBytes; width < packed.size(); ++width) {
      std::string text = packed;
      for (std::size_t at = width; at < text.size(); at += width + 1) text.insert(at, "\n");
      EXPECT_EQ(redactor.redact("<" + text + ">"), "<[secret K]>") << text;
      EXPECT_EQ(redact_by_bytes(redactor, text), redactor.redact(text)) << text;
    }
  }
  const std::string before(Decoder::kMinWrapped - 1, 'x');
  const std::string packed = base64(value, kStandardAlphabet, true);
  EXPECT_EQ(redactor.redact(before + packed.substr(0, 1) + "\n" + packed.substr(1)), before + "[secret K]");
}

TEST(Redactor, HeldBytesAreBounded) {
  const std::string value = "Qx +y" + std::string(200, 'z');
  const Redactor redactor(make_secrets(value));
  for (const std::string& unit :
       {std::string("Qx "), std::string("\n"), std::string("z"), std::string("\\"), std::string("%"), std::string("%5"),
        std::string("\\u00"), std::string("\\uD83D"), std::string("Q\n"), std::string("%20"), std::string("\\n"),
        std::string(" "), std::string("Qx +yz")}) {
    Redaction redaction(redactor);
    std::size_t out = redaction.feed("Qx").size();
    for (int i = 0; i < 20000; ++i) out += redaction.feed(unit).size();
    EXPECT_GE(out + 2000, 2 + 20000 * unit.size()) << unit;
  }
}

TEST(Redactor, TruncatedTextMayEndInsideAValue) {
  const Redactor redactor(make_secrets("correct horse"));
  EXPECT_EQ(redactor.redact("x correct ho", true), "x [secret K]");
  EXPECT_EQ(redactor.redact("x correct ho", false), "x correct ho");
  EXPECT_EQ(redactor.redact("x cor", true), "x cor");
}

TEST(Redactor, ShortValuesAreIgnored) {
  EXPECT_NE(Redactor::find_value_problem("abc"), "");
  EXPECT_NE(Redactor::find_value_problem(std::string(20, ' ')), "");
  EXPECT_NE(Redactor::find_value_problem(std::string("\x01\x02\x03"
                                                     "abc")),
            "");
  EXPECT_EQ(Redactor::find_value_problem("abcd"), "");
  EXPECT_TRUE(Redactor(make_secrets("abc")).is_empty());
  EXPECT_TRUE(Redactor(make_secrets("")).is_empty());
  EXPECT_EQ(redact({{"K", "abc"}}, "abc"), "abc");
}

TEST(Redactor, EndOfAJobContainsNoSecret) {
  const std::vector<Secret> secrets = {{"K", "top \"secret\""}, {"N", "timeout"}};
  const Redactor redactor(secrets);
  JobEnd end;
  end.detail = "timeout";
  end.error = "Error: top \"secret\" is wrong";
  end.error_info = nlohmann::json({{"message", "top \"secret\"\nmore"},
                                   {"violation", {{"args", {1, 2}}, {"comm", "top \"secret\""}}}})
                       .dump();
  end.result = {
      {"a", "x top%20%22secret%22"}, {"top \"secret\"", "1"}, {"top%20%22secret%22", "2"}, {"[secret K] 2", "3"}};
  end.receipt = R"({"status":"timeout"})";
  redact(redactor, end);
  EXPECT_EQ(end.error, "Error: [secret K] is wrong");
  EXPECT_EQ(nlohmann::json::parse(end.error_info)["message"], "[secret K]\nmore");
  EXPECT_EQ(nlohmann::json::parse(end.error_info)["violation"]["comm"], "[secret K]");
  EXPECT_EQ(end.result,
            (TextMap{{"a", "x [secret K]"}, {"[secret K]", "1"}, {"[secret K] 3", "2"}, {"[secret K] 2", "3"}}));
  EXPECT_EQ(end.detail, "timeout");
  EXPECT_EQ(end.receipt, R"({"status":"timeout"})");
}

TEST(Redactor, TruncatedErrorEndsWithoutAPartialSecret) {
  const Redactor redactor(make_secrets("correct horse"));
  JobEnd end;
  end.error = "Error: correct hor…";
  redact(redactor, end);
  EXPECT_EQ(end.error, "Error: [secret K]…");
}

// Random secrets in random texts, fed in random pieces. MYCOJOBS_SEED repeats a run, MYCOJOBS_ROUNDS extends it.
class RandomText {
 public:
  explicit RandomText(std::uint64_t seed) : random_(seed) {}
  std::size_t choose_below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }

  std::vector<Secret> secrets() {
    std::vector<Secret> all(1 + choose_below(5));
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].name = std::string(1, static_cast<char>('A' + i));
      do {
        // Similar values, so that they nest and overlap.
        all[i].value = i > 0 && choose_below(3) == 0
                           ? random_piece(all[choose_below(i)].value) + choose_letters(1 + choose_below(6))
                           : choose_letters(4 + choose_below(30));
      } while (count_letters(all[i].value) < Redactor::kMinBytes);
    }
    return all;
  }
  std::string text(const std::vector<Secret>& secrets) {
    std::string text;
    for (std::size_t part = choose_below(12); part > 0; --part) {
      const std::string& value = secrets[choose_below(secrets.size())].value;
      const auto spelled = list_spellings(value);
      // Separates the value from the preceding text: an escape that included its first letters would change the
      // spelling.
      text += '.';
      const std::size_t kind = choose_below(4);
      text += kind == 0   ? choose_letters(choose_below(20))
              : kind == 1 ? random_piece(spelled[choose_below(spelled.size())].second)
                          : spelled[choose_below(spelled.size())].second;
    }
    return text;
  }
  std::string redact_in_pieces(const Redactor& redactor, std::string_view text) {
    Redaction redaction(redactor);
    std::string out;
    while (!text.empty()) {
      const std::size_t size = std::min(text.size(), 1 + choose_below(choose_below(4) == 0 ? 40 : 4));
      out += redaction.feed(text.substr(0, size));
      text.remove_prefix(size);
    }
    out += redaction.finish();
    return out;
  }

 private:
  // No brackets: together with the brackets of a mark, the remaining text could look like a value.
  std::string choose_letters(std::size_t size) {
    static const std::string kFew = "ab\n \"\\%+/{}4n1uX\t=-_";
    std::string text;
    const bool any = choose_below(4) == 0;
    while (text.size() < size) {
      const char c = any ? static_cast<char>(choose_below(256)) : kFew[choose_below(kFew.size())];
      if (c != '[' && c != ']') text.push_back(c);
    }
    return text;
  }
  static std::size_t count_letters(const std::string& value) {
    return value.size() - static_cast<std::size_t>(std::count_if(value.begin(), value.end(), [](char c) {
             return is_blank(static_cast<unsigned char>(c)) || c == '+';
           }));
  }
  std::string random_piece(const std::string& text) {
    const std::size_t from = choose_below(text.size());
    return text.substr(from, 1 + choose_below(text.size() - from));
  }
  std::mt19937_64 random_;
};

TEST(Redactor, RandomTextsAreRedactedEquallyInAnyPieces) {
  RandomText random(choose_seed("MYCOJOBS_SEED"));
  const std::uint64_t rounds = read_setting("MYCOJOBS_ROUNDS", 3000);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::vector<Secret> secrets = random.secrets();
    const Redactor redactor(secrets);
    const std::string text = random.text(secrets);
    const std::string out = redactor.redact(text);
    ASSERT_EQ(random.redact_in_pieces(redactor, text), out) << "round " << round;
    ASSERT_EQ(redact_by_bytes(redactor, text), out) << "round " << round;
    const std::string readings[] = {out, url_decode(out, true), url_decode(out, false), unescape(out)};
    for (const Secret& secret : secrets) {
      for (const std::string& reading : readings) {
        ASSERT_EQ(reading.find(secret.value), std::string::npos)
            << "round " << round << ", " << ::testing::PrintToString(secret.value) << " in "
            << ::testing::PrintToString(reading) << " of " << ::testing::PrintToString(text);
      }
      for (const auto& [spelling, spelled] : list_spellings(secret.value)) {
        if (spelling.find("base64") == std::string::npos && spelling.find("hex") == std::string::npos) continue;
        ASSERT_EQ(out.find(spelled), std::string::npos)
            << "round " << round << ", " << secret.name << " as " << spelling << ": " << out << " from " << text;
      }
    }
  }
}

}  // namespace
}  // namespace mycojobs::test
