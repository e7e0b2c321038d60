// HTTPS as operators and users see it: the coordinator, commands, and the clients for Python and Node.
#include <gmock/gmock.h>

#include <csignal>

#include "support/build_paths.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class HttpsProgram : public testing::Test {
 protected:
  std::vector<std::string> make_argv(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), mj::test::program_path("mycojobs"));
    arguments.insert(arguments.end(), {"--config", config_});
    return arguments;
  }
  ProcessResult run_program(std::vector<std::string> arguments) const { return run(folder_, make_argv(arguments)); }
  std::vector<std::string> coordinator_arguments(const std::string& listen, std::vector<std::string> flags) const {
    std::vector<std::string> arguments{
        "coordinator",      "--redis",     redis_.plain_url(), "--context",    "1",   "--api-tokens",
        folder_ / "tokens", "--state-dir", folder_ / "s",      "--api-listen", listen};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  }
  std::vector<std::string> tls_flags() const {
    return {"--api-tls-cert", files_.certificate, "--api-tls-key", files_.key};
  }
  void create_token() {
    const ProcessResult result = run_program({"key", "token", "--operator", "--api-tokens", folder_ / "tokens"});
    EXPECT_EQ(result.code, 0) << result.err;
    token_ = result.out.substr(0, result.out.find('\n'));
  }
  // Starts a coordinator and sets port_ to its port.
  void start_coordinator(std::vector<std::string> flags, const std::string& listen = "127.0.0.1:0") {
    create_token();
    coordinator_ = std::make_unique<Process>(folder_, make_argv(coordinator_arguments(listen, std::move(flags))));
    const std::string start = "JSON-RPC at ";
    ASSERT_TRUE(eventually([&] {
      const std::string log = coordinator_->err();
      const auto begin = log.find(start);
      const auto end = log.find('\n', begin);
      if (begin == std::string::npos || end == std::string::npos) return !coordinator_->is_running();
      const std::string line = log.substr(begin + start.size(), end - begin - start.size());
      url_ = line.substr(0, line.find_first_of(" \""));
      port_ = url_.substr(url_.rfind(':') + 1);
      return true;
    }));
    ASSERT_NE(port_, "") << coordinator_->err();
  }
  ProcessResult call_rpc(const std::string& url, std::vector<std::string> flags = {}) const {
    std::vector<std::string> arguments{"rpc", "system.ping", "--url", url};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return run(folder_, make_argv(arguments), {"MYCOJOBS_TOKEN=" + token_});
  }
  ProcessResult run_python(const std::string& script, std::vector<std::string> environment = {}) const {
    environment.push_back("PYTHONPATH=" + mj::test::source_path("clients/python"));
    environment.push_back("PYTHONDONTWRITEBYTECODE=1");
    environment.push_back("MYCOJOBS_TOKEN=" + token_);
    return run(folder_, {"python3", "-c", script}, environment);
  }
  ProcessResult run_node(const std::string& script, std::vector<std::string> environment = {}) const {
    environment.push_back("MYCOJOBS_TOKEN=" + token_);
    return run(folder_,
               {"node", "--input-type=module", "-e",
                "import { Client } from '" + mj::test::source_path("clients/node/index.js") + "';\n" + script},
               environment);
  }

  TempDir folder_;
  TestCa ca_{folder_, "ca"};
  CertificateFiles files_ = ca_.issue("server", "DNS:localhost");
  TlsRedisServer redis_{folder_, ca_, files_};
  std::string config_ = folder_.write("config.toml", "");
  std::string token_, url_, port_;
  std::unique_ptr<Process> coordinator_;
};

TEST_F(HttpsProgram, CommandsCallTheCoordinatorOverHttps) {
  start_coordinator(tls_flags());
  EXPECT_EQ(url_, "https://127.0.0.1:" + port_);
  const std::string url = "https://localhost:" + port_;
  EXPECT_THAT(call_rpc(url, {"--https-ca", ca_.file()}).out, HasSubstr("pong"));
  EXPECT_THAT(call_rpc(url).err, HasSubstr("unknown CA: set https.ca"));
  EXPECT_THAT(call_rpc(url).err, Not(HasSubstr("is served by")));
  EXPECT_EQ(call_rpc(url).code, 69);
  EXPECT_THAT(call_rpc(url_, {"--https-ca", ca_.file()}).err, HasSubstr("is for another host"));
  EXPECT_THAT(call_rpc("http://localhost:" + port_, {"--https-ca", ca_.file()}).err, HasSubstr("write https://"));
  const ProcessResult health = run_program({"health", "--url", url, "--https-ca", ca_.file()});
  EXPECT_EQ(health.code, 0) << health.out << health.err;
  EXPECT_EQ(run_program({"health", "--url", url}).code, 1);
  const ProcessResult own_health =
      run(folder_, make_argv({"health"}),
          {"MYCOJOBS_API_LISTEN=127.0.0.1:" + port_, "MYCOJOBS_API_TLS_CERT=" + files_.certificate});
  EXPECT_EQ(own_health.code, 0) << own_health.out << own_health.err;
  const ProcessResult page = run(folder_, {"curl", "-sS", "--cacert", ca_.file(), "-D", "-", url + "/readyz"});
  EXPECT_THAT(page.out, HasSubstr("\"status\":\"ok\""));
  coordinator_->signal(SIGTERM);
  EXPECT_EQ(coordinator_->wait().code, 0) << coordinator_->err();
}

TEST_F(HttpsProgram, PlainHttpBeyondLoopbackIsRefused) {
  create_token();
  const ProcessResult refused = run_program(coordinator_arguments("0.0.0.0:0", {}));
  EXPECT_EQ(refused.code, 65) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("api.listen: 0.0.0.0:0 can be reached from other hosts, but has no TLS: set "
                                     "api.tls.cert and api.tls.key"));
  EXPECT_THAT(refused.err, HasSubstr("api.insecure = true"));
  const std::string settings = "[api]\nlisten = \"0.0.0.0:9652\"\n";
  EXPECT_THAT(run_program({"config", "check", folder_.write("open.toml", settings)}).err, HasSubstr("has no TLS"));
  EXPECT_EQ(run_program({"config", "check", folder_.write("open.toml", settings + "insecure = true\n")}).code, 0);
  start_coordinator({"--api-insecure"}, "0.0.0.0:0");
  EXPECT_THAT(coordinator_->err(), HasSubstr("has no TLS (api.insecure)"));
  EXPECT_THAT(call_rpc("http://127.0.0.1:" + port_).out, HasSubstr("pong"));
}

TEST_F(HttpsProgram, WrongCertificatesAreRefusedWithTheirSetting) {
  create_token();
  const CertificateFiles other = ca_.issue("other", "");
  const ProcessResult mismatched = run_program(
      coordinator_arguments("127.0.0.1:0", {"--api-tls-cert", files_.certificate, "--api-tls-key", other.key}));
  EXPECT_NE(mismatched.code, 0);
  EXPECT_THAT(mismatched.err, HasSubstr("api.tls.key: " + other.key + " is not the key of the certificate"));
  const std::string settings = folder_.write("half.toml", "[metrics.tls]\ncert = \"" + files_.certificate + "\"\n");
  EXPECT_THAT(run_program({"config", "check", settings}).err, HasSubstr("metrics.tls.key: is not set"));
  const std::string folder = folder_.path().string();
  const std::string ca_settings = folder_.write("ca.toml", "[https]\nca = \"" + folder + "\"\n");
  EXPECT_THAT(run_program({"config", "check", ca_settings}).err,
              HasSubstr("https.ca: " + folder + " is a folder: give a file"));
}

TEST_F(HttpsProgram, MetricsAndDoctorShowTheExpiry) {
  const std::string metrics_port = std::to_string(find_free_port());
  std::vector<std::string> flags = tls_flags();
  flags.insert(flags.end(), {"--metrics-listen", "127.0.0.1:" + metrics_port, "--metrics-tls-cert", files_.certificate,
                             "--metrics-tls-key", files_.key});
  start_coordinator(flags);
  const ProcessResult metrics =
      run(folder_, {"curl", "-sS", "--cacert", ca_.file(), "https://localhost:" + metrics_port + "/metrics"});
  EXPECT_THAT(metrics.out, ContainsRegex("mycojobs_api_certificate_expiry_days.listener=\"api\". 36[45]"));
  EXPECT_THAT(metrics.out, ContainsRegex("mycojobs_api_certificate_expiry_days.listener=\"metrics\". 36[45]"));
  std::vector<std::string> doctor{"doctor", "--redis", redis_.plain_url()};
  const CertificateFiles old = ca_.issue("old", "", "20200101000000Z", "20210101000000Z");
  doctor.insert(doctor.end(), {"--api-tls-cert", old.certificate, "--api-tls-key", old.key, "--metrics-tls-cert",
                               files_.certificate, "--metrics-tls-key", files_.key});
  const ProcessResult rows = run_program(doctor);
  EXPECT_THAT(rows.out, ContainsRegex("api.tls +certificate +error +has expired"));
  EXPECT_THAT(rows.out, ContainsRegex("metrics.tls +certificate +ok +expires in 36[45] days"));
}

TEST_F(HttpsProgram, PythonClientVerifiesTheCertificate) {
  start_coordinator(tls_flags());
  const auto call = [&](const std::string& url, const std::string& options, std::vector<std::string> environment = {}) {
    const ProcessResult result = run_python("import mycojobs\ntry:\n  print(mycojobs.Client('" + url + "'" + options +
                                                ").call('system.ping'))\nexcept mycojobs.Error as error:\n"
                                                "  print(error.word, error)\n",
                                            std::move(environment));
    return result.out + result.err;
  };
  const std::string url = "https://localhost:" + port_, ca = ", ca='" + ca_.file() + "'";
  EXPECT_EQ(call(url, ca), "pong\n");
  EXPECT_EQ(call(url, "", {"MYCOJOBS_HTTPS_CA=" + ca_.file()}), "pong\n");
  EXPECT_THAT(call(url, ""), HasSubstr("tls the certificate of localhost was issued by an unknown CA (give"));
  EXPECT_THAT(call(url_, ca), HasSubstr("is for another host"));
  EXPECT_THAT(call(url, ", ca='/nowhere'"), HasSubstr("invalid ca: /nowhere: No such file"));
  EXPECT_THAT(call(url, ", ca='" + files_.key + "'"), HasSubstr("give a file with certificates in PEM"));
  EXPECT_THAT(call("http://localhost:" + port_, ca), HasSubstr("this port uses TLS: write https://"));
  const ProcessResult events =
      run_python("import mycojobs\nclient = mycojobs.Client('" + url + "'" + ca + ")\njob = client.submit('pass')\n" +
                 "print(next(iter(client.events(job=job.key, after='0'))).kind)\n");
  EXPECT_EQ(events.out, "job\n") << events.err;
}

TEST_F(HttpsProgram, NodeClientVerifiesTheCertificate) {
  start_coordinator(tls_flags());
  const auto call = [&](const std::string& url, const std::string& options, std::vector<std::string> environment = {}) {
    const ProcessResult result = run_node("try { console.log(await new Client({ url: '" + url + "'" + options +
                                              " }).call('system.ping')); } catch (error) { console.log(error.word, "
                                              "error.message); }",
                                          std::move(environment));
    return result.out + result.err;
  };
  const std::string url = "https://localhost:" + port_, ca = ", ca: '" + ca_.file() + "'";
  EXPECT_EQ(call(url, ca), "pong\n");
  EXPECT_EQ(call(url, "", {"MYCOJOBS_HTTPS_CA=" + ca_.file()}), "pong\n");
  EXPECT_THAT(call(url, ""), HasSubstr("tls the certificate of the server was issued by an unknown CA (give"));
  EXPECT_THAT(call(url_, ca), HasSubstr("is for another host"));
  EXPECT_THAT(call(url, ", ca: '/nowhere'"), HasSubstr("invalid ca: /nowhere: ENOENT"));
  EXPECT_THAT(call("http://localhost:" + port_, ca), HasSubstr("this port uses TLS: write https://"));
  const ProcessResult events = run_node("const client = new Client({ url: '" + url + "'" + ca +
                                        " });\nconst job = await client.submit('pass');\nfor await (const event of "
                                        "client.events({ job: job.key, after: '0' })) { console.log(event.kind); "
                                        "break; }");
  EXPECT_EQ(events.out, "job\n") << events.err;
}

// Python 3.13 verifies certificates strictly.
TEST_F(HttpsProgram, CertificatesPassStrictVerification) {
  run_openssl(folder_, {"verify", "-x509_strict", "-CAfile", ca_.file(), ca_.file(), files_.certificate});
  const std::string example = folder_ / "example";
  const ProcessResult made = run(
      folder_, {mj::test::source_path("examples/tenants/certificates.sh"), example, "here=localhost,127.0.0.1,::1"});
  EXPECT_EQ(made.code, 0) << made.err;
  run_openssl(folder_, {"verify", "-x509_strict", "-CAfile", example + "/ca.crt", "-purpose", "sslserver",
                        "-verify_hostname", "localhost", example + "/here.crt"});
  run_openssl(folder_, {"verify", "-x509_strict", "-CAfile", example + "/ca.crt", example + "/ca.crt"});
}

TEST_F(HttpsProgram, NodeClientRejectsInvalidStatuses) {
  const ProcessResult result = run_node(
      "import { createServer } from 'node:https';\nimport { readFileSync } from 'node:fs';\n"
      "const server = createServer({ cert: readFileSync('" +
      files_.certificate + "'), key: readFileSync('" + files_.key +
      "') }, (request, response) => {\n"
      "  request.resume().on('end', () => response.writeHead(status).end(status === 205 ? '' : 'text'));\n});\n"
      "await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));\n"
      "const client = new Client({ url: `https://localhost:${server.address().port}`, ca: '" +
      ca_.file() +
      "', retryFor: 0 });\nlet status;\nfor (status of [205, 600, 999])\n"
      "  await client.call('system.ping').catch((error) => console.log(status, error.word, error.message));\n"
      "process.exit(0);");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("205 "));
  EXPECT_THAT(result.out, HasSubstr("600 unavailable the server does not answer: the status 600 is invalid"));
  EXPECT_THAT(result.out, HasSubstr("999 unavailable the server does not answer: the status 999 is invalid"));
}

TEST_F(HttpsProgram, ClientsReportAnExpiredCertificate) {
  files_ = ca_.issue("old", "DNS:localhost", "20200101000000Z", "20210101000000Z");
  start_coordinator(tls_flags());
  const std::string url = "https://localhost:" + port_;
  EXPECT_THAT(call_rpc(url, {"--https-ca", ca_.file()}).err, HasSubstr("has expired: renew it"));
  EXPECT_THAT(
      run_python("import mycojobs\nmycojobs.Client('" + url + "', ca='" + ca_.file() + "').call('system.ping')").err,
      HasSubstr("the certificate of localhost has expired (renew it)"));
  EXPECT_THAT(run_node("await new Client({ url: '" + url + "', ca: '" + ca_.file() + "' }).call('system.ping');").err,
              HasSubstr("the certificate of the server has expired (renew it)"));
}

}  // namespace
}  // namespace mycojobs::test
