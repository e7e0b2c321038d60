// The HTTPS listener for artifacts, and transfers that use it: served and refused requests, and how a receiver
// continues when it is not reached.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>
#include <thread>

#include "api/artifacts/file_listener.h"
#include "api/http/socket.h"
#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/loop_thread.h"
#include "base/sha256.h"
#include "net/http_transfer.h"
#include "net/tls_identity.h"
#include "raw_http.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string make_link_content(std::size_t bytes) {
  std::string content(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(i * 7 + i / 1000);
  return content;
}

class FileListenerTest : public ::testing::Test {
 protected:
  test::TempDir folder_;
  SystemClock clock_;
  test::ManualClock link_clock_;
  std::shared_ptr<Metrics> metrics_ = Metrics::make();
  std::shared_ptr<HeldFileLinks> links_ = std::make_shared<HeldFileLinks>(link_clock_);
  std::string identity_ = folder_ / "identity.pem";
  std::unique_ptr<api::FileListener> listener_;

  void start_listener(const std::string& advertise = "", std::uint64_t rate = 0) {
    const auto created = create_tls_identity(identity_);
    ASSERT_TRUE(created) << created.error().message;
    api::FileListener::Settings settings;
    settings.listen = "127.0.0.1:0";
    settings.advertise = advertise;
    settings.tls.table = "artifacts.tls";
    settings.tls.certificate = settings.tls.key = identity_;
    settings.rate = rate;
    auto listener = api::FileListener::start(settings, links_, clock_, metrics_);
    ASSERT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
  }
  FileLink make_link(const std::string& content, Id context = 1) {
    const std::string path = folder_ / sha256_hex(content);
    std::ofstream(path, std::ios::binary) << content;
    auto link = links_->create(context, Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), {"", content.size()});
    EXPECT_TRUE(link);
    return link.value_or(FileLink());
  }
  // Sends a GET for a path to the listener, and returns status and body.
  Result<HttpTransfer::Answer> get(const std::string& path, const std::vector<std::string>& headers = {},
                                   const std::string& method = "GET") {
    HttpTransfer::Request request;
    request.method = method;
    request.url = "https://127.0.0.1:" + std::to_string(listener_->port()) + path;
    request.headers = headers;
    request.server_key_sha256 = *read_public_key_sha256(identity_);
    return HttpTransfer().perform(request);
  }
  static std::string path_of(const FileLink& link) { return "/files?ticket=" + link.ticket; }
};

TEST_F(FileListenerTest, LinkIsServedOnce) {
  start_listener();
  const std::string content = make_link_content(300'000);
  const FileLink link = make_link(content);
  const auto answer = get(path_of(link), {"Range: bytes=100000-"});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 206);
  EXPECT_TRUE(answer->body == content.substr(100000));
  const auto stolen = get(path_of(link));
  ASSERT_TRUE(stolen);
  EXPECT_EQ(stolen->status, 404) << "used twice";
  const FileLink expired = make_link(content);
  link_clock_.advance(HeldFileLinks::kLifetimeMs);
  EXPECT_EQ(get(path_of(expired))->status, 404);
  EXPECT_THAT(metrics_->render(), HasSubstr(R"(context="1",direction="sent_https"} 200000)"));
}

// A server that is not the holder's could send a body without an end.
TEST_F(FileListenerTest, BodyOfAnotherStatusIsNotReceived) {
  auto listening = api::open_listening({"127.0.0.1", 0, true});
  ASSERT_TRUE(listening);
  std::thread server([&] {
    pollfd connection{listening->socket.get(), POLLIN, 0};  // the socket does not block
    ::poll(&connection, 1, 60000);
    const Fd client(::accept4(listening->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    (void)write_all(client.get(), "HTTP/1.1 200 OK\r\n\r\n");
    const std::string block(65536, 'x');
    while (write_all(client.get(), block)) {
    }
  });
  HttpTransfer::Request request;
  request.url = "http://127.0.0.1:" + std::to_string(listening->port) + "/";
  request.body_status = 206;
  request.on_body = [](std::string_view) { return Result<void>(); };
  const auto answer = HttpTransfer().perform(request);
  server.join();
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
}

TEST_F(FileListenerTest, OtherRequestsLearnNothing) {
  start_listener();
  const FileLink link = make_link("content");
  for (const std::string& path :
       {std::string("/"), std::string("/files"), std::string("/files?ticket="), "/files?ticket=" + std::string(32, '0'),
        "/files/" + link.ticket, "/healthz?ticket=" + link.ticket, "/../etc/passwd?ticket=" + link.ticket}) {
    const auto refused = get(path);
    ASSERT_TRUE(refused) << path;
    EXPECT_EQ(refused->status, 404) << path;
    EXPECT_EQ(refused->body, "") << path;
  }
  for (const char* method : {"PUT", "DELETE", "POST"}) EXPECT_EQ(get(path_of(link), {}, method)->status, 404) << method;
  for (const char* range : {"Range: bytes=7-", "Range: bytes=0-3", "Range: bytes=x"}) {
    const FileLink other = make_link("content");
    EXPECT_EQ(get(path_of(other), {range})->status, 404) << range;
  }
  EXPECT_EQ(get(path_of(link))->body, "content") << "the refused requests have not used the link";
  const Fd plain = test::connect_to_loopback(listener_->port());
  ASSERT_TRUE(write_all(plain.get(), "GET " + path_of(make_link("content")) + " HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(test::read_raw_reply(plain).status, 0) << "plain HTTP";
}

TEST_F(FileListenerTest, ServerWithAnotherKeyGetsNoTicket) {
  start_listener();
  const FileLink link = make_link("content");
  HttpTransfer::Request request;
  request.url = format_link_url(link);
  request.server_key_sha256 = std::string(64, '0');
  const auto refused = HttpTransfer().perform(request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("another key"));
  EXPECT_TRUE(links_->find_context(link.ticket)) << "the request was not sent";
}

TEST_F(FileListenerTest, AddressOutsideOfTheNetworksIsNotConnected) {
  start_listener();
  const Networks networks = *Networks::parse({"10.0.0.0/8"});
  HttpTransfer::Request request;
  request.url = format_link_url(make_link("content"));
  request.networks = &networks;
  const auto refused = HttpTransfer().perform(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::denied);
}

// Clients that never send a request, and a client that reads nothing, do not hold up others.
TEST_F(FileListenerTest, SilentAndSlowClientsHoldUpNobody) {
  start_listener();
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(test::connect_to_loopback(listener_->port()));
  const std::string content = make_link_content(64U << 20);
  std::atomic<bool> is_stopped{false};
  std::vector<std::thread> slow;
  for (int i = 0; i < 3; ++i) {
    slow.emplace_back([&is_stopped, link = make_link(content)] {
      HttpTransfer::Request request;
      request.url = format_link_url(link);
      request.server_key_sha256 = link.server_key_sha256;
      request.on_body = [&](std::string_view) -> Result<void> {
        while (!is_stopped) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return fail(Code::unavailable, "the test ends");
      };
      (void)HttpTransfer().perform(request);
    });
  }
  for (int i = 0; i < 5; ++i) {
    const auto answer = get(path_of(make_link("content")));
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->body, "content");
  }
  is_stopped = true;
  for (std::thread& thread : slow) thread.join();
}

TEST_F(FileListenerTest, IdentityIsCreatedOnce) {
  start_listener();
  const std::string key = *read_public_key_sha256(identity_);
  struct stat info {};
  ASSERT_EQ(::stat(identity_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  ASSERT_TRUE(create_tls_identity(identity_));
  EXPECT_EQ(*read_public_key_sha256(identity_), key);
  EXPECT_FALSE(create_tls_identity(folder_ / "missing/identity.pem"));
}

TEST(LinkAddress, OtherHostsMustBeAbleToUseIt) {
  EXPECT_EQ(*api::make_link_address("10.0.0.5:7443", "", 0), "10.0.0.5:7443");
  EXPECT_EQ(*api::make_link_address("10.0.0.5:0", "", 1234), "10.0.0.5:1234");
  EXPECT_EQ(*api::make_link_address("[::1]:7443", "", 0), "[::1]:7443");
  EXPECT_EQ(*api::make_link_address(":7443", "agent.example.org", 0), "agent.example.org:7443");
  EXPECT_EQ(*api::make_link_address(":7443", "agent.example.org:443", 0), "agent.example.org:443");
  for (const char* listen : {":7443", "0.0.0.0:7443", "[::]:7443"})
    EXPECT_FALSE(api::make_link_address(listen, "", 0)) << listen;
  EXPECT_FALSE(api::make_link_address("10.0.0.5:7443", "a/b", 0));
}

// Forwards connections to a port until it has passed on a number of bytes to the client, and then closes each of them.
class CuttingProxy {
 public:
  CuttingProxy(std::uint16_t target, std::uint64_t max_bytes) : target_(target), max_bytes_(max_bytes) {
    listening_ = std::move(*api::open_listening({"127.0.0.1", 0, true}));
    thread_ = std::thread([this] { run(); });
  }
  ~CuttingProxy() {
    is_stopped_ = true;
    thread_.join();
  }
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;
  std::uint16_t port() const { return listening_.port; }
  int connections() const { return connections_; }

 private:
  void run() {
    while (!is_stopped_) {
      pollfd entry{listening_.socket.get(), POLLIN, 0};
      if (::poll(&entry, 1, 20) <= 0) continue;
      const Fd client(::accept(listening_.socket.get(), nullptr, nullptr));
      ++connections_;
      if (client) forward(client, test::connect_to_loopback(target_));
    }
  }
  void forward(const Fd& client, const Fd& server) {
    std::vector<char> buffer(65536);
    while (!is_stopped_ && sent_bytes_ < max_bytes_) {
      pollfd entries[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
      if (::poll(entries, 2, 20) <= 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (entries[i].revents == 0) continue;
        const ssize_t count = ::recv(entries[i].fd, buffer.data(), buffer.size(), 0);
        if (count <= 0) return;
        if (i == 1) sent_bytes_ += static_cast<std::uint64_t>(count);
        if (!write_all(entries[1 - i].fd, {buffer.data(), static_cast<std::size_t>(count)})) return;
      }
    }
  }

  const std::uint16_t target_;
  const std::uint64_t max_bytes_;
  std::uint64_t sent_bytes_ = 0;
  api::ListeningSocket listening_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

// Two processes with separate state folders, an imitation of Redis between them, and the listener of the holder.
class LinkTransferTest : public FileListenerTest {
 protected:
  struct Host {
    std::unique_ptr<Store> store;
    std::unique_ptr<TransferLoop> loop;
    std::optional<LoopThread<TransferLoop>> thread;
    ~Host() { thread.reset(); }
  };
  MemoryServer redis_{clock_};
  std::unique_ptr<Store> store_ = *redis_.open();
  const std::string content_ = make_link_content(20U << 20);
  Host holder_, receiver_;
  std::shared_ptr<Metrics> receiver_metrics_ = Metrics::make();

  // The download does not depend on the speed of the host, except in tests where it fails.
  static constexpr LinkTimes kLongTimes{30000, 30000, 60000};

  void start_hosts(const std::vector<std::string>& networks = {"any"}, std::uint64_t rate = 0,
                   LinkTimes times = kLongTimes) {
    TransferLoop::Settings holder;
    holder.contexts = {1};
    holder.holder = 30;
    holder.state_dir = folder_ / "holder";
    holder.links = links_;
    holder.rate = rate;
    start_host(holder_, holder, no_metrics());
    TransferLoop::Settings receiver;
    receiver.contexts = {1};
    receiver.state_dir = folder_ / "receiver";
    receiver.link_networks = std::make_shared<const Networks>(*Networks::parse(networks));
    receiver.link_times = times;
    start_host(receiver_, receiver, receiver_metrics_);
  }
  void start_host(Host& host, const TransferLoop::Settings& settings, const std::shared_ptr<Metrics>& metrics) {
    host.store = *redis_.open();
    host.loop = std::make_unique<TransferLoop>(*host.store, settings, clock_, metrics);
    ASSERT_TRUE(host.loop->subscribe(redis_));
    host.thread.emplace(*host.loop);
  }
  std::string store_artifact() {
    auto run = make_run_artifacts(folder_ / "holder", 1, *artifact_store_name(*store_, 1), "job:12:1", 1U << 30);
    EXPECT_TRUE(run->open("name", false));
    run->write(content_);
    run->close();
    EXPECT_NE(run->finish(), "");
    return sha256_hex(content_);
  }
  FetchEnd fetch(const std::string& sha256) {
    const ArtifactCache cache(ArtifactFolder(folder_ / "receiver", 1), {});
    const auto promise = std::make_shared<std::promise<FetchEnd>>();
    auto future = promise->get_future();
    receiver_.loop->fetch({1, 30, "job:12:1", {sha256, content_.size()}, "the artifact"},
                          cache.make_target(*artifact_store_name(*store_, 1), "job:12:1"),
                          [promise](FetchEnd end) { promise->set_value(std::move(end)); });
    return future.get();
  }
  void expect_received(const std::string& sha256) {
    const FetchEnd end = fetch(sha256);
    ASSERT_EQ(end.status, FetchStatus::received) << end.reason;
    std::ifstream file(
        ArtifactFolder(folder_ / "receiver", 1).cache_folder(*artifact_store_name(*store_, 1), "job:12:1") + '/' +
            sha256,
        std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(text.str() == content_);
  }
  double received_bytes(const std::string& direction) {
    const std::string text = receiver_metrics_->render();
    const std::string series = "mycojobs_artifact_transfer_bytes_total{context=\"1\",direction=\"" + direction + "\"} ";
    const auto at = text.find(series);
    return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size()));
  }
};

TEST_F(LinkTransferTest, LargeFileIsReceivedOverHttps) {
  start_listener();
  start_hosts();
  expect_received(store_artifact());
  EXPECT_GT(received_bytes("received_https"), 10U << 20);
  EXPECT_EQ(received_bytes("received_https") + received_bytes("received"), static_cast<double>(content_.size()));
}

TEST_F(LinkTransferTest, BlockedPortIsNotNeeded) {
  const auto unused = api::open_listening({"127.0.0.1", 0, true});
  start_listener("127.0.0.1:" + std::to_string(unused->port));  // accepts no connection
  start_hosts({"any"}, 0, LinkTimes());
  expect_received(store_artifact());
  EXPECT_EQ(received_bytes("received_https"), 0);
}

TEST_F(LinkTransferTest, HolderOutsideOfTheNetworksSendsThroughRedis) {
  start_listener();
  start_hosts({"10.0.0.0/8"});
  expect_received(store_artifact());
  EXPECT_EQ(received_bytes("received_https"), 0);
}

TEST_F(LinkTransferTest, NoLinkIsRequestedWithoutANetwork) {
  start_listener();
  std::atomic<int> links{0};
  links_->set_server(listener_->address(), [&] {
    ++links;
    return read_public_key_sha256(identity_);
  });
  start_hosts({});
  expect_received(store_artifact());
  EXPECT_EQ(links, 0);
}

TEST_F(LinkTransferTest, ServerWithAnotherKeyIsNotUsed) {
  start_listener();
  links_->set_server(listener_->address(), [] { return std::string(64, '0'); });
  start_hosts();
  expect_received(store_artifact());
  EXPECT_EQ(received_bytes("received_https"), 0);
}

TEST_F(LinkTransferTest, BrokenConnectionLosesNothing) {
  start_listener();
  CuttingProxy proxy(listener_->port(), 6U << 20);
  links_->set_server("127.0.0.1:" + std::to_string(proxy.port()), [this] { return read_public_key_sha256(identity_); });
  start_hosts();
  expect_received(store_artifact());
  EXPECT_GT(received_bytes("received_https"), 4U << 20);
  EXPECT_GT(received_bytes("received"), 10U << 20);
  EXPECT_EQ(received_bytes("received_https") + received_bytes("received"), static_cast<double>(content_.size()));
  EXPECT_GE(proxy.connections(), 2) << "the holder is tried once more";
}

// The file on the disk of the holder is damaged: neither way delivers it.
TEST_F(LinkTransferTest, WrongBytesAreNotStored) {
  start_listener();
  start_hosts();
  const std::string sha256 = store_artifact();
  std::fstream(
      ArtifactFolder(folder_ / "holder", 1).job_folder(*artifact_store_name(*store_, 1), "job:12:1") + '/' + sha256,
      std::ios::in | std::ios::out)
      << "damage";
  EXPECT_EQ(fetch(sha256).status, FetchStatus::damaged);
  EXPECT_GT(received_bytes("received_https"), 0);
  EXPECT_GE(received_bytes("received"), static_cast<double>(content_.size())) << "the second attempt uses Redis";
}

TEST_F(LinkTransferTest, CancelledTransferEndsItsDownload) {
  constexpr std::uint64_t kRate = 512U << 10;  // the transfer takes 40 s by any way
  start_listener("", kRate);
  start_hosts({"any"}, kRate);
  const std::string sha256 = store_artifact();
  const ArtifactCache cache(ArtifactFolder(folder_ / "receiver", 1), {});
  const auto number =
      receiver_.loop->fetch({1, 30, "job:12:1", {sha256, content_.size()}, "the artifact"},
                            cache.make_target(*artifact_store_name(*store_, 1), "job:12:1"), [](const FetchEnd&) {});
  ASSERT_TRUE(test::eventually([&] { return received_bytes("received_https") > 0; }));
  receiver_.loop->cancel(number);
  ASSERT_TRUE(test::eventually(
      [&] { return std::filesystem::is_empty(ArtifactFolder(folder_ / "receiver", 1).spool_folder()); }));
}

}  // namespace
}  // namespace mycojobs
