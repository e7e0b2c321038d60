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

HttpConnection::HttpConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in server_address{};
  server_address.sin_family = AF_INET;
  server_address.sin_port = htons(static_cast<std::uint16_t>(port));
  server_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{20, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&server_address), sizeof server_address) != 0)
    socket_.reset();
}

bool HttpConnection::send(const std::string& text) {
  for (std::size_t offset = 0; offset < text.size();) {
    const ssize_t sent = ::send(socket_.get(), text.data() + offset, text.size() - offset, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    offset += static_cast<std::size_t>(sent);
  }
  return true;
}

HttpConnection::Reply HttpConnection::read() {
  const auto read_more = [this] {
    char bytes[16384];
    const ssize_t received = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (received > 0) buffer_.append(bytes, static_cast<std::size_t>(received));
    return received > 0;
  };
  std::size_t head_end = 0;
  while ((head_end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!read_more()) return {};
  }
  Reply reply;
  reply.status = std::atoi(buffer_.c_str() + buffer_.find(' '));
  const auto length_position = buffer_.find("Content-Length: ");
  const std::size_t size =
      length_position < head_end ? std::strtoul(buffer_.c_str() + length_position + 16, nullptr, 10) : 0;
  while (buffer_.size() < head_end + 4 + size) {
    if (!read_more()) return {};
  }
  reply.body = buffer_.substr(head_end + 4, size);
  buffer_.erase(0, head_end + 4 + size);
  return reply;
}

HttpConnection::Reply HttpConnection::post(const std::string& path, const std::string& body,
                                           const std::string& extra_headers) {
  const bool sent = send("POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" +
                         extra_headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  // The server rejects the request before reading it completely; the response is still sent.
  (void)sent;
  return read();
}

// ---- one tenant ----

Tenant::Tenant(int first_context, std::vector<std::string> redis_options, int second_context)
    : context(first_context), redis(folder, std::move(redis_options)), context_list_(std::to_string(first_context)) {
  if (second_context > 0) context_list_ += "," + std::to_string(second_context);
}

std::vector<std::string> Tenant::make_argv(std::vector<std::string> words) const {
  words.insert(words.begin(), program_path());
  words.insert(words.end(), {"--redis", redis.url(), "--state-dir", state_dir("client")});
  if (std::find(words.begin(), words.end(), "--context") == words.end())
    words.insert(words.end(), {"--context", std::to_string(context)});
  return words;
}

ProcessResult Tenant::operator()(std::vector<std::string> words, std::string input) const {
  return run(folder, make_argv(std::move(words)), {"MYCOJOBS_KEYS_DIR=" + keys_dir()}, std::move(input));
}
Process Tenant::start_command(std::vector<std::string> words) const {
  return Process(folder, make_argv(std::move(words)), {"MYCOJOBS_KEYS_DIR=" + keys_dir()});
}

json Tenant::run_json(std::vector<std::string> words) const {
  words.emplace_back("--json");
  const ProcessResult result = (*this)(std::move(words));
  auto parsed = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
  return parsed;
}

std::string Tenant::make_key(const std::string& name) {
  const ProcessResult result = run(folder, {program_path(), "key", "new", name, "--keys-dir", keys_dir()});
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out.substr(0, result.out.find('\n'));
}

void Tenant::start_coordinator(std::vector<std::string> extra_options) {
  std::vector<std::string> argv{program_path(),
                                "coordinator",
                                "--redis",
                                redis.url(),
                                "--context",
                                context_list_,
                                "--api-listen",
                                "127.0.0.1:" + std::to_string(port),
                                "--coordinator-key",
                                keys_dir() + "/supervisor.key",
                                "--api-tokens",
                                folder / "tokens",
                                "--state-dir",
                                state_dir("coordinator"),
                                "--coordinator-lease",
                                "1s"};
  argv.insert(argv.end(), extra_options.begin(), extra_options.end());
  coordinator = std::make_unique<Process>(folder, argv);
  if (port != 0) return;
  const std::string log_prefix = "JSON-RPC at http://127.0.0.1:";
  ASSERT_TRUE(eventually([&] {
    const std::string text = coordinator->err();
    const auto offset = text.find(log_prefix);
    if (offset != std::string::npos) port = std::atoi(text.c_str() + offset + log_prefix.size());
    return port != 0;
  })) << coordinator->err();
}

void Tenant::start_runner(int runner_id, std::vector<std::string> extra_options) {
  extra_options.insert(extra_options.end(),
                       {"--runner-key", keys_dir() + "/runner.key", "--lease", "2s", "--context", context_list_,
                        "--state-dir", state_dir("agent" + std::to_string(runner_id))});
  agents.push_back(std::make_unique<Process>(start_agent(folder, redis, runner_id, extra_options)));
}

std::vector<std::string> Tenant::find_keys(const std::string& pattern) const {
  std::istringstream lines(cli({"KEYS", pattern}));
  std::vector<std::string> keys;
  for (std::string key; std::getline(lines, key);) {
    if (!key.empty()) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<std::string> Tenant::list_msg_in() const {
  std::istringstream lines(cli({"LRANGE", "msg_in", "0", "-1"}));
  std::vector<std::string> keys;  // the list of Redis has the newest entry first
  for (std::string key; std::getline(lines, key);) {
    if (!key.empty()) keys.insert(keys.begin(), key);
  }
  return keys;
}

void Tenant::expect_verify_succeeds() const {
  const ProcessResult result = (*this)({"verify"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
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
    const ProcessResult result = tenant(std::move(words));
    EXPECT_EQ(result.code, 0) << result.err;
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

Message make_message_from_bob(const Tenants& tenants, Id id, const std::string& script) {
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
  EXPECT_TRUE(sign(message, tenants.bob.load_key("bob")));
  return message;
}

std::string make_delivery_request(const json& envelope) {
  return json{{"jsonrpc", "2.0"}, {"id", 1}, {"method", "message.deliver"}, {"params", {{"envelope", envelope}}}}
      .dump();
}

std::string make_delivery_request(const Tenants& tenants, const Message& message) {
  const Envelope envelope{EnvelopeKind::message, kAlicesContext, static_cast<std::uint64_t>(::time(nullptr)), {}};
  return make_delivery_request(
      seal(envelope, {{"message", to_json(message)}}, tenants.bob.load_key("supervisor")).value());
}

}  // namespace mycojobs::test
