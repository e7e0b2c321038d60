// Compares the imitation of Redis with a real server: random commands must have the same replies. Commands with random
// or time-dependent results are left out: XADD *, the members removed by SPOP, MAXLEN ~.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "contract/redis_pair.h"
#include "support/build_paths.h"
#include "support/redis/memory_command.h"

namespace mycojobs {
namespace {

using Texts = std::vector<std::string>;

// The values for each letter in the form of a command. There are few of each, so that commands refer to the same keys.
// All versions of Redis print these numbers in the same way; newer versions print the shortest text that is read as the
// same number.
const std::map<char, Texts> kWords = {
    {'t', {"text1", "text2"}},
    {'h', {"hash1", "hash2"}},
    {'l', {"list1", "list2", "list3"}},
    {'s', {"set1", "set2"}},
    {'z', {"zset1", "zset2"}},
    {'x', {"stream1", "stream2"}},
    {'f', {"a", "b", "c", "d", "", std::string("\0\xff\r\n", 4)}},
    {'v', {"", "x", "7", "-3", "9223372036854775806", "1.5", "hello world", "b"}},
    {'n', {"0", "1", "2", "3", "-1", "-2", "-4", "5", "100", "1", "2", "-1"}},
    {'c', {"0", "1", "2", "2.5", "-1", "0.25", "1e22", "inf", "-inf", "3", "100", "1700000000123"}},
    {'r', {"0", "1", "(1", "(2", "2.5", "-inf", "+inf", "(inf", "inf", "-1", "(0.25", "3", "1e22"}},
    {'i', {"1-1", "2", "3-*", "5-1", "5-2", "6-0", "7-*", "8", "9-9", "10-1", "11-*", "0-1", "12", "13-3", "20-*"}},
    {'e', {"-", "+", "1", "5", "(5-1", "(5", "5-1", "9-8", "7-0", "0", "18446744073709551615-18446744073709551615"}},
    {'a', {"1", "5", "(5", "5-1", "9-8", "7-0", "0", "-"}},  // newer servers accept a + after which to read
    {'q', {"lex1", "lex2"}},                                 // sorted sets in which all members have one score
    {'b', {"-", "+", "[a", "(a", "[b", "(c", "[", "(", "[x", "(hello", std::string("[\0\xff", 3), "a"}},
    {'o', {"LEFT", "right", "RIGHT", "left"}},
};
const Texts kKeys = {"text1", "hash1", "list1", "set1", "zset1", "stream1", "none", ""};
// Values for scores. Servers differ in the forms of strtod() that they accept (" 1", "+1", "0x10"), and in how they
// print large numbers.
const Texts kOddScores = {"abc", "", "1.5", "007", "-0", "nan", "(", "(-", "5-", "-5", "1-1-1", "0-0", "1 "};
const Texts kOdd = {"abc",
                    "",
                    "1.5",
                    " 1",
                    "007",
                    "-0",
                    "+1",
                    "9223372036854775807",
                    "-9223372036854775808",
                    "9223372036854775808",
                    "nan",
                    "0x10",
                    "1e400",
                    "0-0",
                    "5-",
                    "-5",
                    "1-1-1",
                    "(-",
                    "(",
                    "(0-0",
                    "(18446744073709551615-18446744073709551615",
                    "18446744073709551615-*",
                    "$x"};

struct Form {
  const char* words;  // $ and a letter stand for one of kWords
  ListOrder order = ListOrder::exact;
  bool is_nested = false;
};
const std::vector<Form> kForms = {
    {"SET $t $v"},
    {"SET $t $v NX"},
    {"SET $t $v XX"},
    {"SET $t $v NX XX"},
    {"GET $t"},
    {"INCR $t"},
    {"INCRBY $t $n"},
    {"TYPE $t"},
    {"EXISTS $t $h $t $l"},
    {"DEL $t $l"},
    {"DEL $x"},
    {"DEL $z $h $s"},
    {"DBSIZE"},
    {"HSET $h $f $v"},
    {"HSET $h $f $v $f $v $f $v"},
    {"HSETNX $h $f $v"},
    {"HGET $h $f"},
    {"HMGET $h $f $f $f"},
    {"HGETALL $h", ListOrder::any_pairs},
    {"HKEYS $h", ListOrder::any},
    {"HDEL $h $f"},
    {"HDEL $h $f $f $f"},
    {"HEXISTS $h $f"},
    {"HINCRBY $h $f $n"},
    {"HLEN $h"},
    {"HSTRLEN $h $f"},
    {"LPUSH $l $v"},
    {"LPUSH $l $v $f $v"},
    {"RPUSH $l $f"},
    {"RPUSH $l $v $v $f"},
    {"LPOP $l"},
    {"RPOP $l"},
    {"LPOP $l $n"},
    {"RPOP $l $n"},
    {"LINDEX $l $n"},
    {"LRANGE $l $n $n"},
    {"LLEN $l"},
    {"LREM $l $n $v"},
    {"LPOS $l $v"},
    {"LPOS $l $v COUNT $n"},
    {"LPOS $l $v MAXLEN $n"},
    {"LPOS $l $v COUNT $n MAXLEN $n"},
    {"LMOVE $l $l $o $o"},
    {"SADD $s $f"},
    {"SADD $s $f $v $f"},
    {"SREM $s $f $v"},
    {"SCARD $s"},
    {"SISMEMBER $s $f"},
    {"SMEMBERS $s", ListOrder::any},
    {"SRANDMEMBER $s 100", ListOrder::any},
    {"SRANDMEMBER absent $n"},
    {"SPOP $s 100", ListOrder::any},
    {"SPOP absent $n"},
    {"ZADD $z $c $f"},
    {"ZADD $z $c $f $c $v $c $f"},
    {"ZADD $z NX $c $f $c $v"},
    {"ZADD $z XX $c $f"},
    {"ZADD $z GT $c $f"},
    {"ZADD $z XX GT CH $c $f $c $v"},
    {"ZADD $z LT $c $f"},
    {"ZADD $z NX GT $c $f"},
    {"ZADD $z nx xx $c $f"},
    {"ZADD $z CH $c $f $c $f"},
    {"ZREM $z $f $f"},
    {"ZSCORE $z $f"},
    {"ZCARD $z"},
    {"ZRANGE $z $n $n"},
    {"ZRANGE $z 0 -1 WITHSCORES"},
    {"ZRANGE $z $n $n REV WITHSCORES"},
    {"ZRANGE $z $r $r BYSCORE"},
    {"ZRANGE $z $r $r BYSCORE LIMIT $n $n WITHSCORES"},
    {"ZRANGE $z $r $r byscore rev limit $n $n"},
    {"ZRANGE $z +inf -inf BYSCORE REV WITHSCORES"},
    {"ZRANGE $z $n $n LIMIT $n $n"},
    {"ZRANGEBYSCORE $z $r $r"},
    {"ZRANGEBYSCORE $z -inf $r LIMIT $n $n"},
    {"ZRANGEBYSCORE $z $r $r WITHSCORES LIMIT $n $n"},
    {"ZCOUNT $z $r $r"},
    {"ZADD $q 0 $f"},
    {"ZADD $q 0 $f 0 $v 0 $f"},
    {"ZREM $q $f"},
    {"ZRANGEBYLEX $q $b $b"},
    {"ZRANGEBYLEX $q - +"},
    {"ZRANGEBYLEX $q $b $b LIMIT $n $n"},
    {"ZLEXCOUNT $q $b $b"},
    {"ZPOPMIN $z"},
    {"ZPOPMIN $z $n"},
    {"XADD $x $i $f $v"},
    {"XADD $x $i $f $v $f $v"},
    {"XADD $x $i $f"},
    {"XADD $x MAXLEN $n $i $f $v"},
    {"XADD $x MAXLEN = $n $i $f $v"},
    {"XADD $x NOMKSTREAM MINID $i $i $f $v"},
    {"XLEN $x"},
    {"XRANGE $x $e $e"},
    {"XRANGE $x - +"},
    {"XRANGE $x $e $e COUNT $n"},
    {"XREVRANGE $x $e $e"},
    {"XREVRANGE $x + - COUNT $n"},
    {"XDEL $x $i $i"},
    {"XDEL $x 1-1 2-0 5-1"},
    {"XTRIM $x MAXLEN $n"},
    {"XTRIM $x MINID $i"},
    {"XREAD COUNT $n STREAMS $x $x $a $a"},
    {"XREAD STREAMS $x $i"},
    {"XREAD COUNT 2 STREAMS $x 0"},
    {"XINFO STREAM $x"},
    {"SCAN 0 MATCH *1 COUNT 1000", ListOrder::any, true},
    {"SCAN 0 MATCH [h-l]?s[^x][2-3] COUNT 1000", ListOrder::any, true},
    {"SCAN 0 COUNT 1000 TYPE zset", ListOrder::any, true},
    {"SCAN x"},
    {"SCAN 0 COUNT 0"},
    {"SCAN 0 MATCH"},
    {"UNLINK $l"},
    {"WAIT 0 0"},
    {"PING"},
    {"NOSUCH $n $n"},
};

class RandomCommands {
 public:
  explicit RandomCommands(unsigned seed) : random_(seed) {}

  PairCommand next() {
    const Form& form = kForms[below(kForms.size())];
    PairCommand sent{{}, form.order, form.is_nested};
    std::istringstream words(form.words);
    for (std::string word; words >> word;) sent.words.push_back(word_for(word));
    static const std::set<std::string> kAsItIs = {"XINFO", "XREAD", "SCAN", "SPOP", "SRANDMEMBER", "PING"};
    if (!kAsItIs.contains(sent.words[0])) {
      if (one_in(60)) sent.words.pop_back();
      if (one_in(60)) sent.words.emplace_back("x");
    }
    if (sent.words.empty()) sent.words = {"PING", "x", "x"};
    // Some commands run within a script, which converts the replies to Lua values and back. Newer servers let a script
    // WAIT.
    if (!sent.is_nested && sent.words[0] != "WAIT" && one_in(4)) {
      const char* script = one_in(2) ? "return redis.call(unpack(ARGV))" : "return {redis.pcall(unpack(ARGV)), 'end'}";
      if (sent.order == ListOrder::exact) sent.words.insert(sent.words.begin(), {"EVAL", script, "0"});
    }
    return sent;
  }

 private:
  std::size_t below(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }
  bool one_in(std::size_t count) { return below(count) == 0; }
  const std::string& one_of(const Texts& texts) { return texts[below(texts.size())]; }
  std::string word_for(const std::string& word) {
    if (word[0] != '$') return word;
    const bool key = std::string_view("thlszx").find(word[1]) != std::string_view::npos;
    if (key && one_in(12)) return one_of(kKeys);
    const bool score = word[1] == 'c' || word[1] == 'r';
    if (!key && word[1] != 'f' && word[1] != 'v' && one_in(15)) return one_of(score ? kOddScores : kOdd);
    return one_of(kWords.at(word[1]));
  }

  std::mt19937 random_;
};

TEST(MemoryRedis, RandomCommandsAreAnsweredAsByRedis) {
  std::set<std::string> shown;  // commands with a non-empty reply
  for (unsigned seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    RedisPair pair;
    RandomCommands random(seed);
    std::vector<PairCommand> commands;
    for (int i = 0; i < 1000; ++i) commands.push_back(random.next());
    const auto replies = pair.compare(commands, "seed " + std::to_string(seed));
    for (std::size_t i = 0; i < replies.size(); ++i) {
      const bool nothing =
          replies[i].starts_with("error") || replies[i] == "nil" || replies[i] == "[]" || replies[i] == "0";
      if (!nothing) shown.insert(commands[i].words[0]);
    }
  }
  const std::set<std::string> others = {"TIME", "PUBLISH", "INFO",     "CONFIG",
                                        "WAIT", "FLUSHDB", "FLUSHALL", "MEMORY"};  // the memory use of a key differs
  for (const memory::CommandRow* row : memory::all_commands()) {
    const std::string name(row->name);
    EXPECT_TRUE(shown.contains(name) || others.contains(name)) << name << " is not compared";
  }
}

TEST(MemoryRedis, EveryCommandOfTheScriptsIsImitated) {
  std::set<std::string> known;
  for (const memory::CommandRow* row : memory::all_commands()) known.insert(std::string(row->name));
  known.insert("SELECT");  // chooses the database of the connection, so it is in no table of commands
  const std::regex call("redis\\.p?call\\(([^,)]*)"), name("'([A-Z]+)'");
  std::size_t calls = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(mj::test::source_path("agent/store/scripts"))) {
    if (file.path().extension() != ".lua") continue;
    std::stringstream text;
    text << std::ifstream(file.path()).rdbuf();
    const std::string script = text.str();
    for (std::sregex_iterator each(script.begin(), script.end(), call), end; each != end; ++each, ++calls) {
      const std::string words = each->str(1);
      for (std::sregex_iterator word(words.begin(), words.end(), name); word != end; ++word) {
        EXPECT_TRUE(known.contains(word->str(1))) << word->str(1) << " in " << file.path();
      }
    }
  }
  EXPECT_GT(calls, 50U);
}

TEST(MemoryRedis, TimeIsConstantDuringAScript) {
  RedisPair pair;
  pair.set_now(1700000000123);
  EXPECT_EQ(pair.run_imitation({"TIME"}), R"(["1700000000", "123000"])");
  EXPECT_EQ(pair.run_imitation({"XADD", "stream", "*", "a", "b"}), R"("1700000000124-0")") << "the next millisecond";
  EXPECT_EQ(pair.run_imitation({"EVAL", "return redis.call('TIME')[2] - redis.call('TIME')[2]", "0"}), "0");
  EXPECT_EQ(
      pair.run_imitation({"EVAL", "redis.call('XADD', 's', '*', 1, 2) return redis.call('XADD', 's', '*', 1, 2)", "0"}),
      R"("1700000000126-1")");
}

TEST(MemoryRedis, UnsupportedCommandsAreReported) {
  RedisPair pair;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"SET", "a", "b", "EX", "5"},
                                             {"LPOS", "a", "b", "RANK", "1"},
                                             {"ZADD", "a", "INCR", "1", "b"},
                                             {"ZRANGE", "a", "[b", "[c", "BYLEX"},
                                             {"XREAD", "STREAMS", "a", "$"},
                                             {"CONFIG", "SET", "appendonly", "no"}}) {
    EXPECT_THAT(pair.run_imitation(words), testing::HasSubstr("not imitated")) << words[0];
  }
  EXPECT_THAT(pair.run_imitation({"SUBSCRIBE", "a"}), testing::HasSubstr("unknown command 'SUBSCRIBE'"));
}

}  // namespace
}  // namespace mycojobs
