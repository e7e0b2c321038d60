#include "e2e/tenants.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <sstream>

#include "base/parse.h"
#include "messaging/envelope.h"
#include "model/codec.h"
#include "security/signatures.h"

namespace mycojobs::test {

using nlohmann::json;

// ---- HTTP ----

HttpWire::HttpWire(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{20, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) socket_.reset();
}

bool HttpWire::send(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t sent = ::send(socket_.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<std::size_t>(sent);
  }
  return true;
}

HttpWire::Reply HttpWire::read() {
  const auto extra_options = [this] {
    char bytes[16384];
    const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (got > 0) buffer_.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  };
  std::size_t head = 0;
  while ((head = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!extra_options()) return {};
  }
  Reply reply;
  reply.status = std::atoi(buffer_.c_str() + buffer_.find(' '));
  const auto length = buffer_.find("Content-Length: ");
  const std::size_t size = length < head ? std::strtoul(buffer_.c_str() + length + 16, nullptr, 10) : 0;
  while (buffer_.size() < head + 4 + size) {
    if (!extra_options()) return {};
  }
  reply.body = buffer_.substr(head + 4, size);
  buffer_.erase(0, head + 4 + size);
  return reply;
}

HttpWire::Reply HttpWire::post(const std::string& path, const std::string& body, const std::string& extra_headers) {
  const bool sent = send("POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" +
                         extra_headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  // The server rejects the request before reading it completely; the response is still sent.
  (void)sent;
  return read();
}

// ---- one tenant ----

Tenant::Tenant(int of, std::vector<std::string> redis_options, int second_context)
    : context(of), redis(folder, std::move(redis_options)), contexts_(std::to_string(of)) {
  if (second_context > 0) contexts_ += "," + std::to_string(second_context);
}

std::vector<std::string> Tenant::line(std::vector<std::string> words) const {
  words.insert(words.begin(), program_path());
  words.insert(words.end(), {"--redis", redis.url(), "--state-dir", state_dir("client")});
  if (std::find(words.begin(), words.end(), "--context") == words.end())
    words.insert(words.end(), {"--context", std::to_string(context)});
  return words;
}

ProcessResult Tenant::operator()(std::vector<std::string> words, std::string input) const {
  return run(folder, line(std::move(words)), {"MYCOJOBS_KEYS_DIR=" + keys()}, std::move(input));
}
Process Tenant::start(std::vector<std::string> words) const {
  return Process(folder, line(std::move(words)), {"MYCOJOBS_KEYS_DIR=" + keys()});
}

json Tenant::json(std::vector<std::string> words) const {
  words.emplace_back("--json");
  const ProcessResult result = (*this)(std::move(words));
  auto parsed = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
  return parsed;
}

std::string Tenant::make_key(const std::string& name) {
  const ProcessResult made = run(folder, {program_path(), "key", "new", name, "--keys-dir", keys()});
  EXPECT_EQ(made.code, 0) << made.err;
  return made.out.substr(0, made.out.find('\n'));
}

void Tenant::start_coordinator(std::vector<std::string> extra_options) {
  std::vector<std::string> argv{program_path(),
                                "coordinator",
                                "--redis",
                                redis.url(),
                                "--context",
                                contexts_,
                                "--api-listen",
                                "127.0.0.1:" + std::to_string(port),
                                "--coordinator-key",
                                keys() + "/supervisor.key",
                                "--api-tokens",
                                folder / "tokens",
                                "--state-dir",
                                state_dir("coordinator"),
                                "--coordinator-lease",
                                "1s"};
  argv.insert(argv.end(), extra_options.begin(), extra_options.end());
  coordinator = std::make_unique<Process>(folder, argv);
  if (port != 0) return;
  const std::string says = "JSON-RPC at http://127.0.0.1:";
  ASSERT_TRUE(eventually([&] {
    const std::string text = coordinator->err();
    const auto at = text.find(says);
    if (at != std::string::npos) port = std::atoi(text.c_str() + at + says.size());
    return port != 0;
  })) << coordinator->err();
}

void Tenant::work(int runner, std::vector<std::string> extra_options) {
  extra_options.insert(extra_options.end(), {"--runner-key", keys() + "/runner.key", "--lease", "2s", "--context",
                                             contexts_, "--state-dir", state_dir("agent" + std::to_string(runner))});
  agents.push_back(std::make_unique<Process>(start_agent(folder, redis, runner, extra_options)));
}

std::vector<std::string> Tenant::find_keys(const std::string& pattern) const {
  std::istringstream lines(cli({"KEYS", pattern}));
  std::vector<std::string> all;
  for (std::string each; std::getline(lines, each);) {
    if (!each.empty()) all.push_back(each);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::string> Tenant::msg_in() const {
  std::istringstream lines(cli({"LRANGE", "msg_in", "0", "-1"}));
  std::vector<std::string> all;
  for (std::string each; std::getline(lines, each);) {
    if (!each.empty()) all.insert(all.begin(), each);
  }
  return all;
}

void Tenant::expect_verified() const {
  const ProcessResult verified = (*this)({"verify"});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
}

// ---- both tenants ----

Tenants::Tenants(std::vector<std::string> redis_options)
    : bob(kBobsContext, redis_options, 8), alice(kAlicesContext, redis_options) {
  bobs_key = bob.make_key("bob");
  alices_key = alice.make_key("alice");
  bobs_supervisor = bob.make_key("supervisor");
  alices_supervisor = alice.make_key("supervisor");
  bob.make_key("runner");
  alice.make_key("runner");
}

void Tenants::create_peer_records(const std::string& bobs_url, const std::string& alices_url) {
  const auto run_command = [](const Tenant& tenant, std::vector<std::string> words) {
    const ProcessResult made = tenant(std::move(words));
    EXPECT_EQ(made.code, 0) << made.err;
  };
  run_command(bob, {"actor", "create", "--id", "12", "--key", bobs_key});
  run_command(bob, {"context", "create", "7", "--admin", "12"});
  run_command(bob, {"context", "create", "8", "--admin", "12", "--context", "8"});
  run_command(bob, {"runner", "create", "--id", "50", "--address", alices_url, "--pubkey", alices_supervisor});
  run_command(alice, {"actor", "create", "--id", "5", "--key", bobs_key, "--address", bobs_url});
  run_command(alice, {"actor", "create", "--id", "6", "--key", alices_key});
  run_command(alice, {"context", "create", "9", "--admin", "6", "--submitter", "5"});
  run_command(alice, {"runner", "create", "--id", "50", "--address", bobs_url, "--pubkey", bobs_supervisor});
}

void Tenants::start_both() {
  bob.start_coordinator();
  alice.start_coordinator();
  create_peer_records(bob.url(), alice.url());
}

Message message_of_bob(const Tenants& tenants, Id id, const std::string& script) {
  Message message;
  message.id = id;
  message.caller_id = kBob;
  message.context_id = kBobsContext;
  message.message_type = MessageType::job;
  message.target_context = kAlicesContext;
  message.target_address = tenants.alice.url();
  message.target_key = tenants.alices_supervisor;
  message.created_at = static_cast<std::uint32_t>(::time(nullptr));
  Job job;
  job.id = id;
  job.caller_id = kBob;
  job.context_id = kBobsContext;
  job.script = script;
  job.script_type = "python";
  message.job.push_back(job);
  EXPECT_TRUE(sign(message, tenants.bob.key("bob")));
  return message;
}

std::string delivery(const json& envelope) {
  return json{{"jsonrpc", "2.0"}, {"id", 1}, {"method", "message.deliver"}, {"params", {{"envelope", envelope}}}}
      .dump();
}

std::string delivery(const Tenants& tenants, const Message& message) {
  const Envelope envelope{EnvelopeKind::message, kAlicesContext, static_cast<std::uint64_t>(::time(nullptr)), {}};
  return delivery(seal(envelope, {{"message", to_json(message)}}, tenants.bob.key("supervisor")).value());
}

}  // namespace mycojobs::test
