// Truncates Redis' append-only file and starts Redis with it: the state must be that before or after the
// protocol step that was being written. The cuts are every byte of a job's end, and for all steps each command boundary
// and a byte within each command. With MYCOJOBS_CHAOS_ROUNDS, every byte of every step is tested (some minutes).
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "chaos/step_bench.h"
#include "chaos/steps.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kAofOptions{"--appendfsync", "always", "--aof-load-truncated", "yes"};
constexpr const char* kEveryByteStep = "end ok 1";

// Returns the file that Redis appends to. Files from before a rewrite may still exist.
fs::path find_incremental_file(const fs::path& folder) {
  std::istringstream manifest(read_file((folder / "appendonly.aof.manifest").string()));
  std::string result;
  for (std::string line; std::getline(manifest, line);) {  // the format is: file <name> seq <number> type <b, h or i>
    std::istringstream words(line);
    std::string word, name, type;
    words >> word >> name >> word >> word >> word >> type;
    if (type == "i") result = name;
  }
  return folder / result;
}

// Makes Redis write to a new, empty file.
bool start_new_file(PlainRedis& redis, const fs::path& folder) {
  const fs::path previous_file = find_incremental_file(folder);
  redis.command(0, {"BGREWRITEAOF"});
  return eventually([&] {
    const fs::path current_file = find_incremental_file(folder);
    return read_info(redis, "persistence", "aof_rewrite_in_progress") == "0" && current_file != previous_file &&
           fs::file_size(current_file) == 0;
  });
}

// Returns the start of each command (`*3\r\n$4\r\nHSET...`), and a position within each.
std::set<std::size_t> find_command_borders(const std::string& bytes) {
  std::set<std::size_t> cuts{0, bytes.size()};
  for (std::size_t position = bytes.find("\r\n*"); position != std::string::npos;
       position = bytes.find("\r\n*", position + 1)) {
    cuts.insert({position + 2, std::min(position + 17, bytes.size())});
  }
  if (bytes.size() > 2) cuts.insert({1, bytes.size() - 1});
  return cuts;
}
std::set<std::size_t> find_every_byte(const std::string& bytes) {
  std::set<std::size_t> cuts;
  for (std::size_t position = 0; position <= bytes.size(); ++position) cuts.insert(position);
  return cuts;
}

// Returns the digest of the data that a server loads from these files.
std::string compute_digest(const TempDir& folder) {
  const std::string socket = folder / "cut.sock";
  std::vector<std::string> argv{"redis-server", "--port",       "0",   "--unixsocket", socket, "--dir",
                                folder.path(),  "--appendonly", "yes", "--save",       ""};
  for (const auto& option : make_digest_options(kAofOptions)) argv.push_back(option);
  Process server(folder, argv);
  PlainRedis redis("unix://" + socket, PlainRedis::kLongTimeoutMs);
  // Redis answers DEBUG while it is still loading, but not PING.
  const bool is_loaded = eventually([&] { return redis.command(0, {"PING"}).has_value(); });
  const std::string result = is_loaded ? read_digest(redis) : "";
  server.signal(SIGKILL);
  server.wait();
  fs::remove(socket);
  return result;
}

struct States {
  std::string before, after;
};

// Returns the state after the first cut with an unexpected state, or "" if there is none.
std::string try_cuts(const fs::path& files, const std::set<std::size_t>& cuts, const std::string& bytes,
                     const States& states) {
  const TempDir folder;
  const fs::path copy = folder.path() / "appendonlydir";
  fs::copy(files, copy);
  for (const std::size_t size : cuts) {
    std::ofstream(find_incremental_file(copy), std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(size));
    const std::string result = compute_digest(folder);
    if (result == (size == bytes.size() ? states.after : states.before)) continue;
    return "cut at byte " + std::to_string(size) + " of " + std::to_string(bytes.size()) + ": " +
           (result.empty() ? "not loaded"
                           : "a third state, " + result + " instead of " + states.before + " or " + states.after) +
           "\n" + bytes;
  }
  return {};
}

TEST(AofTruncation, GivesTheStateBeforeTheStepOrAfterIt) {
  const bool all_bytes = std::getenv("MYCOJOBS_CHAOS_ROUNDS") != nullptr;
  const TempDir folder;
  const RedisServer redis(folder, make_digest_options(kAofOptions));
  PlainRedis plain(redis, PlainRedis::kLongTimeoutMs);
  const auto store = open_store(redis);
  const auto deployments = open_deployments(redis);
  ASSERT_TRUE(store && deployments && store->leases(1) &&
              deployments->list_deployments(1));  // the first connection writes, too
  const fs::path files = folder.path() / "appendonlydir";
  const ProtocolSteps steps(*store, *deployments);
  std::size_t all_cuts = 0;
  bool has_full_step = false;
  for (const Step& step : steps.all()) {
    ASSERT_TRUE(start_new_file(plain, files)) << step.name;
    States states;
    states.before = read_digest(plain);
    const auto step_result = step.execute();
    ASSERT_TRUE(step_result) << step.name << ": " << step_result.error().message;
    states.after = read_digest(plain);
    EXPECT_NE(states.before, states.after) << step.name << " has written nothing";
    EXPECT_EQ(find_violations(*store, 1), "") << "after " << step.name;
    const std::string bytes = read_file(find_incremental_file(files));
    has_full_step = has_full_step || step.name == kEveryByteStep;
    const auto cuts = all_bytes || step.name == kEveryByteStep ? find_every_byte(bytes) : find_command_borders(bytes);
    EXPECT_EQ(try_cuts(files, cuts, bytes, states), "") << step.name;
    all_cuts += cuts.size();
  }
  EXPECT_TRUE(has_full_step) << "there is no step " << kEveryByteStep;
  std::cout << "aof: " << steps.all().size() << " steps, " << all_cuts << " cuts" << std::endl;
}

}  // namespace
}  // namespace mycojobs::test
