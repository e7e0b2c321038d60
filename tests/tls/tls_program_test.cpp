// The program with Redis over TLS, as an operator uses it: settings, exit codes and texts.
#include <gmock/gmock.h>

#include <csignal>

#include "support/build_paths.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class TlsProgram : public testing::Test {
 protected:
  ProcessResult run_program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), mj::test::program_path("mycojobs"));
    arguments.insert(arguments.end(), {"--config", config_, "--state-dir", folder_ / "state"});
    return run(folder_, arguments);
  }
  void write_config(const std::string& text) { config_ = folder_.write("config.toml", text); }

  TempDir folder_;
  TestCa ca_{folder_, "ca"};
  CertificateFiles server_ = ca_.issue("server", "DNS:localhost");
  CertificateFiles client_ = ca_.issue("client", "");
  std::string config_ = folder_.write("config.toml", "");
};

TEST_F(TlsProgram, SettingsOfTheFileReachEveryCommand) {
  const TlsRedisServer server(folder_, ca_, server_, {"--tls-auth-clients", "yes"});
  write_config("redis = \"" + server.url() + "\"\n[redis_tls]\nca = \"" + ca_.file() + "\"\ncert = \"" +
               client_.certificate + "\"\nkey = \"" + client_.key + "\"\n");
  for (const auto& command : std::vector<std::vector<std::string>>{
           {"config", "check", config_}, {"job", "submit", folder_.write("script.py", "pass\n")}, {"job", "list"}}) {
    const ProcessResult result = run_program(command);
    EXPECT_EQ(result.code, 0) << command[0] << ' ' << command[1] << ": " << result.err;
  }
  const ProcessResult acl = run_program({"context", "acl", "1"});
  EXPECT_THAT(acl.err, HasSubstr("rediss://NAME:PASSWORD@HOST"));
}

TEST_F(TlsProgram, ContextHasItsOwnServerAndCertificates) {
  const TestCa own_ca(folder_, "own-ca");
  const TlsRedisServer server(folder_, own_ca, own_ca.issue("own", "DNS:redis.example.org"));
  const std::string address = "[contexts.3]\nredis = \"" + server.url() + "\"\n";
  write_config(address + "[redis_tls]\nca = \"" + ca_.file() + "\"\n");
  const ProcessResult refused = run_program({"job", "list", "--context", "3"});
  EXPECT_EQ(refused.code, 77);
  EXPECT_THAT(refused.err, HasSubstr("unknown CA, /CN=own-ca: set redis_tls.ca"));
  write_config(address + "[contexts.3.redis_tls]\nca = \"" + own_ca.file() + "\"\n");
  EXPECT_THAT(run_program({"job", "list", "--context", "3"}).err,
              HasSubstr("is for redis.example.org, not for localhost: use a name of the certificate in the address, or "
                        "set contexts.3.redis_tls.server_name"));
  write_config(address + "[contexts.3.redis_tls]\nca = \"" + own_ca.file() +
               "\"\nserver_name = \"redis.example.org\"\n");
  EXPECT_EQ(run_program({"job", "list", "--context", "3"}).code, 0);
}

TEST_F(TlsProgram, InsecureConnectionIsLoggedAtEveryStart) {
  const TlsRedisServer server(folder_, ca_, server_);
  for (int i = 0; i < 2; ++i) {
    const ProcessResult result = run_program({"job", "list", "--redis", server.url(":secret"), "--redis-tls-insecure"});
    EXPECT_THAT(result.err, HasSubstr("is not verified"));
    EXPECT_THAT(result.err, Not(HasSubstr("secret")));
  }
}

TEST_F(TlsProgram, DoctorShowsProtocolAndExpiry) {
  const TlsRedisServer server(folder_, ca_, server_);
  const ProcessResult result = run_program({"doctor", "--redis", server.url(), "--redis-tls-ca", ca_.file()});
  EXPECT_THAT(result.out, testing::ContainsRegex("TLSv1.3; the certificate of the server expires in 36[45] days"))
      << result.err;
  const ProcessResult refused = run_program({"doctor", "--redis", server.url()});
  EXPECT_THAT(refused.out, HasSubstr("unknown CA"));
  EXPECT_EQ(refused.out.find("unknown CA"), refused.out.rfind("unknown CA")) << "one row for a server that fails";
}

TEST_F(TlsProgram, WrongSettingsEndWithTheirReason) {
  const TlsRedisServer server(folder_, ca_, server_);
  const auto list_jobs = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments{"job", "list", "--redis", server.url("me:pa55word")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProcessResult result = run_program(arguments);
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(result.err, Not(HasSubstr("pa55word")));
    return result.err;
  };
  EXPECT_THAT(list_jobs({}), HasSubstr("unknown CA"));
  EXPECT_THAT(list_jobs({"--redis-tls-ca", "/nowhere.crt"}), HasSubstr("redis_tls.ca: /nowhere.crt: ENOENT"));
  EXPECT_THAT(list_jobs({"--redis-tls-ca", ca_.file(), "--redis-tls-cert", client_.certificate}),
              HasSubstr("redis_tls.key: is not set"));
  EXPECT_THAT(list_jobs({"--redis-tls-ca", ca_.file()}), HasSubstr("WRONGPASS"));
}

// The certificate of the server may be renewed, and the clock of this host may be set after its start.
TEST_F(TlsProgram, AgentWaitsForACertificateThatItAccepts) {
  const CertificateFiles expired = ca_.issue("expired", "DNS:localhost", "20200101000000Z", "20210101000000Z");
  const TlsRedisServer server(folder_, ca_, expired);
  const auto arguments = [&](const std::string& ca) {
    return std::vector<std::string>{mj::test::program_path("mycojobs"),
                                    "agent",
                                    "--runner",
                                    "1",
                                    "--redis",
                                    server.url(),
                                    "--redis-tls-ca",
                                    ca,
                                    "--config",
                                    config_,
                                    "--state-dir",
                                    folder_ / "state"};
  };
  Process agent(folder_, arguments(ca_.file()));
  EXPECT_TRUE(eventually([&] { return agent.err().find("expired on 2021-01-01") != std::string::npos; }))
      << agent.err();
  RedisConnection administrator(make_options(server.plain_url(), {}));
  ASSERT_TRUE(
      administrator.command({"CONFIG", "SET", "tls-cert-file", server_.certificate, "tls-key-file", server_.key}));
  EXPECT_TRUE(eventually([&] { return agent.err().find("runner 1 serves context") != std::string::npos; }))
      << agent.err();
  agent.signal(SIGTERM);
  const ProcessResult result = agent.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err.find("expired on"), result.err.rfind("expired on")) << result.err;

  EXPECT_THAT(run(folder_, arguments("/nowhere.crt")).err, HasSubstr("redis_tls.ca: /nowhere.crt: ENOENT"));
}

TEST_F(TlsProgram, PlainConnectionLoadsNoOpenSsl) {
  const TlsRedisServer server(folder_, ca_, server_);
  const ProcessResult traced = run(folder_, {"env", "LD_DEBUG=files", mj::test::program_path("mycojobs"), "job", "list",
                                             "--redis", server.plain_url(), "--config", config_});
  EXPECT_EQ(traced.code, 0);
  EXPECT_THAT(traced.err, HasSubstr("libhiredis"));
  EXPECT_THAT(traced.err, Not(HasSubstr("libssl")));
}

}  // namespace
}  // namespace mycojobs::test
