// Artifacts of agents with separate state folders and nothing but Redis between them.
#include <gmock/gmock.h>
#include <sysexits.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/sha256.h"
#include "e2e/artifact_operator.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ArtifactTransferE2e : public ArtifactOperator {
 protected:
  const std::string config_ =
      folder_.write("agent.toml", "[executors.bash]\ncommand = [\"/bin/bash\", \"{script}\"]\n");

  Process start_transfer_agent(int runner, std::vector<std::string> options) {
    options.insert(options.begin(), {"--config", config_});
    return start_registered_agent(runner, std::move(options));
  }
  // Runner 30 runs Python and stores artifacts; runner 31 runs shell scripts and needs them.
  Process start_holder(std::vector<std::string> more_options = {}) {
    more_options.insert(more_options.end(),
                        {"--script-types", "python", "--job-max-artifact-bytes", "200MiB", "--sandbox-tmp", "200MiB"});
    return start_transfer_agent(30, std::move(more_options));
  }
  Process start_receiver(std::vector<std::string> more_options = {}) {
    more_options.insert(more_options.end(), {"--script-types", "bash", "--sandbox-tmp", "200MiB"});
    return start_transfer_agent(31, std::move(more_options));
  }
  static void kill(Process& process) {
    process.signal(SIGKILL);
    process.wait();
  }
  std::string run_build(const std::string& script) { return run_to_end(script, {"--name", "build"}); }
  // Returns the key of a job that stores the artifact `text`.
  std::string store_text(const std::string& content = "hello") {
    return run_build("import mycojobs\n(mycojobs.artifacts / 'text').write_text('" + content + "')");
  }
  // Returns the key of a job that stores a file of this size, and sets its hash.
  std::string store_large_file(std::size_t mib, std::string& sha256) {
    std::string key = run_build(
        "import hashlib, mycojobs\n"
        "block = bytes(range(256)) * 4096\n"
        "h = hashlib.sha256()\n"
        "with open(mycojobs.artifacts / 'large', 'wb') as f:\n"
        "    for i in range(" +
        std::to_string(mib) +
        "):\n"
        "        b = block[i:] + block[:i]\n"
        "        f.write(b); h.update(b)\n"
        "result['sha256'] = h.hexdigest()\n");
    sha256 = nlohmann::json::parse(mycojobs_.read_field(key, "result"))["sha256"];
    return key;
  }
  std::string submit_dependent(const std::string& key, const std::string& script,
                               std::vector<std::string> more_options = {}) {
    const std::string id = key.substr(key.rfind(':') + 1);
    more_options.insert(more_options.end(), {"--type", "bash", "--depends", id, "--input", "build"});
    return mycojobs_.submit(script, std::move(more_options));
  }
  std::string submit_hash_job(const std::string& key) {
    return submit_dependent(key, "set -- $(sha256sum /job/inputs/build/large); echo sha256=$1 >> $MYCOJOBS_RESULT");
  }
  std::string read_result(const std::string& key, const std::string& name) {
    return nlohmann::json::parse(mycojobs_.read_field(key, "result"), nullptr, false).value(name, "");
  }
  // Returns the size of the files that runner 31 is receiving.
  std::uintmax_t measure_received_bytes() const {
    std::uintmax_t bytes = 0;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(folder_ / "agent31/contexts/1/spool", error), end;
         !error && entry != end; entry.increment(error))
      bytes += entry->is_regular_file(error) ? entry->file_size(error) : 0;
    return bytes;
  }
  // Starts both agents, and returns while the file of a job is sent at this rate to the job dependent_.
  void begin_large_transfer(const std::string& rate) {
    holder_.emplace(start_holder({"--artifacts-transfer-rate", rate}));
    const std::string key = store_large_file(48, sha256_);
    receiver_.emplace(start_receiver());
    dependent_ = submit_hash_job(key);
    ASSERT_TRUE(eventually([&] { return measure_received_bytes() > (1U << 20); }));
  }
  // Waits until a process has written an address after this text to its log, and returns the address.
  static std::string wait_for_address(const Process& process, const std::string& prefix) {
    EXPECT_TRUE(eventually([&] { return process.err().find(prefix) != std::string::npos; })) << process.err();
    const std::string log = process.err();
    const std::string address = log.substr(log.find(prefix) + prefix.size());
    return address.substr(0, address.find_first_of("\"/ \n"));
  }
  // Returns the bytes that a process with --metrics-listen has received in this way.
  double read_received_bytes(const Process& process, const std::string& direction) const {
    const ProcessResult metrics =
        run(folder_, {"curl", "-s", "-f", "http://" + wait_for_address(process, "health at http://") + "/metrics"});
    const std::string series = "mycojobs_artifact_transfer_bytes_total{context=\"1\",direction=\"" + direction + "\"} ";
    const auto at = metrics.out.find(series);
    EXPECT_NE(at, std::string::npos) << metrics.err;
    return at == std::string::npos ? 0 : std::stod(metrics.out.substr(at + series.size()));
  }
  // Returns the bytes of a file of at least this size that were received over HTTPS. The agent waits only a second for
  // a link, which a busy host can miss, so several files are tried.
  double receive_over_https(const Process& receiver, std::size_t mib) {
    constexpr std::size_t kMaxFiles = 5;
    double bytes = 0;
    for (std::size_t i = 0; i < kMaxFiles && bytes == 0 && !HasFatalFailure(); ++i) {
      const double earlier_bytes = read_received_bytes(receiver, "received_https");
      dependent_ = submit_hash_job(store_large_file(mib + i, sha256_));
      expect_received();
      bytes = read_received_bytes(receiver, "received_https") - earlier_bytes;
    }
    return bytes;
  }
  void expect_received() {
    ASSERT_TRUE(mycojobs_.wait_for_value(dependent_, "status", "finished", Seconds(120)))
        << mycojobs_({"job", "explain", dependent_}).out;
    EXPECT_EQ(read_result(dependent_, "sha256"), sha256_);
  }

  std::optional<Process> holder_, receiver_;
  std::string dependent_, sha256_;
};

TEST_F(ArtifactTransferE2e, FiftyFlowsRunOnTwoAgents) {
  Process first = start_transfer_agent(30, {"--slots", "2"});
  Process second = start_transfer_agent(31, {"--slots", "2"});
  Process coordinator(folder_,
                      {program_path(), "coordinator", "--redis", redis_.url(), "--state-dir", folder_ / "coordinator"});
  const std::string definition = folder_.write("af.yaml", R"(name: af
defaults: {type: bash}
jobs:
  put: {script: 'echo data > $MYCOJOBS_ARTIFACTS/x.txt; echo r=$MYCOJOBS_RUNNER_ID >> $MYCOJOBS_RESULT'}
  use: {needs: put, inputs: put/x.txt, script: 'cat /job/inputs/put/x.txt; echo r=$MYCOJOBS_RUNNER_ID >> $MYCOJOBS_RESULT'}
)");
  std::vector<std::string> flows;
  for (int i = 0; i < 50; ++i) {
    const ProcessResult started = mycojobs_({"flow", "start", definition});
    ASSERT_EQ(started.code, 0) << started.err;
    flows.push_back(started.out.substr(0, started.out.find('\n')));
  }
  for (const std::string& flow : flows)
    EXPECT_TRUE(mycojobs_.wait_for_value(flow, "status", "finished", Seconds(120)))
        << mycojobs_({"flow", "show", flow}).out;
  std::size_t cached_files = 0;
  for (const char* agent : {"agent30", "agent31"})
    cached_files += count_files_in(folder_ / (std::string(agent) + "/contexts/1/cache"));
  EXPECT_GT(cached_files, 0U) << "no job ran on the other agent";
}

TEST_F(ArtifactTransferE2e, JobWaitsWithoutASlotWhileTheHolderIsAway) {
  Process holder = start_holder();
  const std::string key = store_text();
  kill(holder);
  Process receiver = start_receiver({"--slots", "1"});
  const std::string dependent = submit_dependent(key, "echo text=$(cat /job/inputs/build/text) >> $MYCOJOBS_RESULT");
  ASSERT_TRUE(mycojobs_.wait_for_cause(dependent, "inputs")) << mycojobs_({"job", "explain", dependent}).out;
  expect_result(mycojobs_({"job", "explain", dependent}), 0, "runner 30, which has not sent them since");
  EXPECT_EQ(mycojobs_.read_field(dependent, "deliveries"), "0");
  const std::string other = mycojobs_.submit("true", {"--type", "bash"});
  EXPECT_TRUE(mycojobs_.wait_for_value(other, "status", "finished")) << "the only slot is free";
  Process holder_again = start_holder();
  EXPECT_TRUE(mycojobs_.wait_for_value(dependent, "status", "finished")) << receiver.err();
  EXPECT_EQ(read_result(dependent, "text"), "hello");
  EXPECT_EQ(mycojobs_.read_field(dependent, "deliveries"), "1");
}

// A coordinator has an uploaded file. Its agent has another state folder.
TEST_F(ArtifactTransferE2e, UploadedFileIsFetchedFromTheCoordinator) {
  const std::string content(3U << 20, 'x'), path = folder_.write("big.bin", content);
  const std::string script =
      folder_.write("read.sh", "set -- $(sha256sum /job/files/big.bin); echo h=$1 >> $MYCOJOBS_RESULT");
  const std::vector<std::string> submit{"job", "submit", script, "--type", "bash", "--file", path};
  expect_result(mycojobs_(submit), EX_DATAERR, "give the address of a coordinator");
  const auto start_coordinator = [&] {
    return Process(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--state-dir",
                             folder_ / "coordinator", "--api-listen", "127.0.0.1:0", "--api-tokens", folder_ / "tokens",
                             "--artifacts-listen", "127.0.0.1:0"});
  };
  const ProcessResult token =
      run(folder_, {program_path(), "key", "token", "--operator", "--api-tokens", folder_ / "tokens"});
  ASSERT_EQ(token.code, 0) << token.err;
  Process coordinator = start_coordinator();
  const auto submit_to = [&](const Process& process) {
    const std::string prefix = "JSON-RPC at ";
    EXPECT_TRUE(eventually([&] { return process.err().find(prefix) != std::string::npos; })) << process.err();
    std::string url = process.err().substr(process.err().find(prefix) + prefix.size());
    url = url.substr(0, url.find_first_of("\" \n"));
    std::vector<std::string> words = submit;
    words.insert(words.end(), {"--url", url});
    const ProcessResult submitted =
        run(folder_, mycojobs_.make_argv(words), {"MYCOJOBS_TOKEN=" + token.out.substr(0, token.out.find('\n'))});
    EXPECT_EQ(submitted.code, 0) << submitted.err;
    return submitted.out.substr(0, submitted.out.find('\n'));
  };
  const std::string key = submit_to(coordinator);
  kill(coordinator);
  redis_.cli(1, {"HSET", "mj:file-holders", redis_.cli(1, {"HKEYS", "mj:file-holders"}), "1"});
  Process receiver = start_receiver({"--slots", "1", "--metrics-listen", "127.0.0.1:0"});
  ASSERT_TRUE(mycojobs_.wait_for_cause(key, "inputs")) << mycojobs_({"job", "explain", key}).out;
  expect_result(mycojobs_({"job", "explain", key}), 0, "coordinator ");
  EXPECT_EQ(mycojobs_.read_field(key, "deliveries"), "0");
  Process coordinator_again = start_coordinator();
  EXPECT_TRUE(mycojobs_.wait_for_value(key, "status", "finished")) << receiver.err();
  EXPECT_EQ(read_result(key, "h"), sha256_hex(content));
  // A busy host can miss the second in which the agent waits for a link.
  for (int i = 1; i < 5 && read_received_bytes(receiver, "received_https") == 0; ++i) {
    folder_.write("big.bin", content + std::to_string(i));
    ASSERT_TRUE(mycojobs_.wait_for_value(submit_to(coordinator_again), "status", "finished")) << receiver.err();
  }
  EXPECT_GT(read_received_bytes(receiver, "received_https"), 0);
}

TEST_F(ArtifactTransferE2e, LargeFileIsReceivedOverHttps) {
  Process holder = start_holder({"--artifacts-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"});
  Process receiver = start_receiver({"--metrics-listen", "127.0.0.1:0"});
  EXPECT_GT(receive_over_https(receiver, 48), 40e6) << receiver.err();
  EXPECT_GT(read_received_bytes(holder, "sent_https"), 40e6);
  EXPECT_EQ(fs::status(folder_ / "agent30/artifacts-tls.pem").permissions(), fs::perms(0600));
}

TEST_F(ArtifactTransferE2e, HolderIsKilledDuringAnHttpsTransfer) {
  holder_.emplace(start_holder({"--artifacts-listen", "127.0.0.1:0", "--artifacts-transfer-rate", "4MiB"}));
  Process receiver = start_receiver({"--metrics-listen", "127.0.0.1:0"});
  const double earlier_bytes = receive_over_https(receiver, 8);
  ASSERT_GT(earlier_bytes, 0) << receiver.err();
  dependent_ = submit_hash_job(store_large_file(48, sha256_));
  ASSERT_TRUE(eventually([&] { return read_received_bytes(receiver, "received_https") > earlier_bytes + 1e6; }));
  kill(*holder_);
  ASSERT_TRUE(mycojobs_.wait_for_cause(dependent_, "inputs")) << mycojobs_({"job", "explain", dependent_}).out;
  Process holder_again = start_holder({"--artifacts-listen", "127.0.0.1:0"});
  ASSERT_NO_FATAL_FAILURE(expect_received());
}

TEST_F(ArtifactTransferE2e, ListenerThatCannotBeOpenedIsNamed) {
  Process holder = start_holder({"--artifacts-listen", "127.0.0.1:0"});
  const std::string address = wait_for_address(holder, "artifacts are sent at ");
  const auto run_doctor = [&](const std::string& state_dir) {
    return run(folder_, {program_path(), "doctor", "--redis", redis_.url(), "--artifacts-listen", address,
                         "--state-dir", folder_ / state_dir})
        .out;
  };
  EXPECT_THAT(run_doctor("agent30"), HasSubstr("a process of this host sends artifacts at " + address));
  EXPECT_THAT(run_doctor("other"), HasSubstr("another program listens there"));
  Process other = start_agent(folder_, redis_, 32, {"--artifacts-listen", address, "--state-dir", folder_ / "other"});
  EXPECT_NE(other.wait().code, 0);
  EXPECT_NE(other.err().find("artifacts.listen: " + address), std::string::npos) << other.err();
}

TEST_F(ArtifactTransferE2e, InvalidNetworksEndTheStart) {
  Process coordinator(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--state-dir",
                                folder_ / "coordinator", "--api-listen", "", "--artifacts-networks", "nonsense"});
  EXPECT_NE(coordinator.wait().code, 0);
  EXPECT_THAT(coordinator.err(), HasSubstr("artifacts.networks: \"nonsense\" is not a network"));
}

TEST_F(ArtifactTransferE2e, QueueTimeoutEndsTheWait) {
  Process holder = start_holder();
  const std::string key = store_text();
  kill(holder);
  Process receiver = start_receiver();
  const std::string dependent = submit_dependent(key, "true", {"--queue-timeout", "3s"});
  EXPECT_TRUE(mycojobs_.wait_for_value(dependent, "detail", "timeout")) << mycojobs_.read_field(dependent, "detail");
}

TEST_F(ArtifactTransferE2e, JobEndsWhenTheHolderIsDeleted) {
  Process holder = start_holder();
  const std::string key = store_text();
  kill(holder);
  Process receiver = start_receiver();
  const std::string dependent = submit_dependent(key, "true");
  ASSERT_TRUE(mycojobs_.wait_for_cause(dependent, "inputs"));
  redis_.cli(1, {"DEL", "runner:30"});
  ASSERT_TRUE(mycojobs_.wait_for_value(dependent, "detail", "artifact_lost"));
  expect_result(mycojobs_({"job", "explain", dependent}), 0, "run the jobs that it depends on again");
}

TEST_F(ArtifactTransferE2e, JobEndsAfterTheHolderTimeout) {
  Process holder = start_holder();
  const std::string key = store_text();
  kill(holder);
  Process receiver = start_receiver({"--artifacts-holder-timeout", "2s"});
  const std::string dependent = submit_dependent(key, "true");
  EXPECT_TRUE(mycojobs_.wait_for_value(dependent, "detail", "artifact_lost"));
}

TEST_F(ArtifactTransferE2e, HolderIsKilledDuringATransfer) {
  ASSERT_NO_FATAL_FAILURE(begin_large_transfer("4MiB"));
  kill(*holder_);
  ASSERT_TRUE(mycojobs_.wait_for_cause(dependent_, "inputs"));
  Process holder_again = start_holder();
  ASSERT_NO_FATAL_FAILURE(expect_received());
  EXPECT_EQ(measure_received_bytes(), 0U);
  const std::string memory = redis_.cli(1, {"INFO", "memory"});
  const std::string peak_name = "used_memory_peak:";
  const std::size_t peak_position = memory.find(peak_name);
  ASSERT_NE(peak_position, std::string::npos);
  EXPECT_LT(std::stoull(memory.substr(peak_position + peak_name.size())), 40U << 20);
}

TEST_F(ArtifactTransferE2e, ReceiverIsKilledDuringATransfer) {
  ASSERT_NO_FATAL_FAILURE(begin_large_transfer("8MiB"));
  kill(*receiver_);
  Process receiver_again = start_receiver();
  ASSERT_NO_FATAL_FAILURE(expect_received());
  EXPECT_TRUE(eventually([&] { return measure_received_bytes() == 0; })) << "files of the killed agent are deleted";
}

TEST_F(ArtifactTransferE2e, RedisIsKilledDuringATransfer) {
  ASSERT_NO_FATAL_FAILURE(begin_large_transfer("8MiB"));
  redis_.kill();
  redis_.start();
  expect_received();
}

TEST_F(ArtifactTransferE2e, WrongBytesAreRefused) {
  Process holder = start_holder();
  const std::string key = store_text();
  for (const auto& entry : fs::directory_iterator(folder_ / "agent30/contexts/1/objects"))
    std::ofstream(entry.path()) << "hellO";
  Process receiver = start_receiver();
  const std::string dependent = submit_dependent(key, "true");
  ASSERT_TRUE(mycojobs_.wait_for_value(dependent, "detail", "artifact_lost"));
  EXPECT_NE(mycojobs_.read_field(dependent, "error").find("does not have the hash of the record"), std::string::npos);
}

TEST_F(ArtifactTransferE2e, ForgedRecordReadsNoFileOfAnotherJob) {
  Process holder = start_holder();
  const std::string secret_key = store_text("secret");
  const std::string artifacts = mycojobs_.read_field(secret_key, "artifacts");
  const std::string key = run_build("pass");
  redis_.cli(1, {"HSET", key, "artifacts", artifacts});
  Process receiver = start_receiver();
  const std::string dependent = submit_dependent(key, "cat /job/inputs/build/text");
  ASSERT_TRUE(mycojobs_.wait_for_value(dependent, "detail", "artifact_lost"));
  redis_.cli(1,
             {"HSET", key, "artifacts", R"({"../../escape": {"sha256": ")" + sha256_hex("secret") + R"(", "bytes": 6},
                     "a\nb": {"sha256": "../../../../etc/passwd", "bytes": 6}})"});
  const std::string other = submit_dependent(key, "ls -R /job/inputs; ls / | tr '\\n' ' '");
  ASSERT_TRUE(eventually([&] { return !mycojobs_.read_field(other, "ended_ms").empty(); }));
  EXPECT_EQ(mycojobs_({"job", "logs", other}).out.find("escape"), std::string::npos);
}

TEST_F(ArtifactTransferE2e, CommandReadsArtifactsOfAnotherHost) {
  Process holder = start_holder();
  const std::string key = run_build(
      "import mycojobs\n"
      "(mycojobs.artifacts / 'text').write_text('hello')\n"
      "(mycojobs.artifacts / 'empty').write_text('')\n"
      "(mycojobs.artifacts / 'sub').mkdir()\n"
      "(mycojobs.artifacts / 'sub' / 'bytes').write_bytes(bytes(range(256)) * 5000)\n");
  const ProcessResult printed = mycojobs_({"job", "artifacts", key, "text"});
  EXPECT_EQ(printed.out, "hello") << printed.err;
  expect_result(mycojobs_({"job", "artifacts", key, "--output", folder_ / "out"}), 0, "wrote sub/bytes");
  EXPECT_EQ(fs::file_size(folder_ / "out/sub/bytes"), 1280000U);
  EXPECT_EQ(fs::file_size(folder_ / "out/empty"), 0U);
  kill(holder);
  const ProcessResult away = mycojobs_({"job", "artifacts", key, "text"});
  EXPECT_NE(away.code, 0);
  EXPECT_NE(away.err.find("start its agent"), std::string::npos) << away.err;
}

TEST_F(ArtifactTransferE2e, AgentsWithOneStateFolderTransferNothing) {
  Process holder = start_holder({"--state-dir", folder_ / "shared"});
  const std::string key = store_text();
  kill(holder);
  Process receiver = start_receiver({"--state-dir", folder_ / "shared"});
  const std::string dependent = submit_dependent(key, "cat /job/inputs/build/text");
  EXPECT_TRUE(mycojobs_.wait_for_value(dependent, "status", "finished")) << mycojobs_.read_field(dependent, "error");
}

}  // namespace
}  // namespace mycojobs::test
