// Servers and clients that do not fit together: each error names the cause in words of an operator.
#include <gmock/gmock.h>

#include <filesystem>

#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kPastBegin = "20200101000000Z";
constexpr const char* kPastEnd = "20210101000000Z";
constexpr const char* kFutureBegin = "20900101000000Z";
constexpr const char* kFutureEnd = "20950101000000Z";

class TlsRefusal : public testing::Test {
 protected:
  TlsSettings trusting(const TestCa& ca) const {
    TlsSettings settings;
    settings.ca = ca.file();
    return settings;
  }
  // Starts a server with the certificate and returns the error of a client that trusts `ca_`.
  std::string error_with(const CertificateFiles& files) {
    const TlsRedisServer server(folder_, ca_, files);
    return connect_error(server.url("me:pa55word"), trusting(ca_));
  }

  TempDir folder_;
  TestCa ca_{folder_, "ca"};
  CertificateFiles good_ = ca_.issue("good", "DNS:localhost,IP:127.0.0.1");
};

TEST_F(TlsRefusal, UnknownCaIsNamed) {
  const TestCa other(folder_, "other-ca");
  const std::string error = error_with(other.issue("server", "DNS:localhost"));
  EXPECT_THAT(error, HasSubstr("denied: cannot connect to Redis at rediss://localhost:"));
  EXPECT_THAT(error, HasSubstr("its certificate was issued by an unknown CA, /CN=other-ca: set redis_tls.ca to the "
                               "file with the certificate of this CA"));
  EXPECT_THAT(error, Not(HasSubstr("pa55word")));
}

TEST_F(TlsRefusal, CaWithTheSameNameIsUnknown) {
  const TempDir elsewhere;
  const TestCa impostor(elsewhere, "ca");
  EXPECT_THAT(error_with(impostor.issue("server", "DNS:localhost")), HasSubstr("unknown CA, /CN=ca"));
}

TEST_F(TlsRefusal, SelfSignedCertificateIsNamed) {
  const CertificateFiles files{folder_ / "self.crt", folder_ / "self.key"};
  run_openssl(folder_, {"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        files.key, "-out", files.certificate, "-subj", "/CN=localhost"});
  EXPECT_THAT(error_with(files), HasSubstr("its certificate is self-signed and not trusted"));
  const TlsRedisServer server(folder_, ca_, files);
  TlsSettings settings;
  settings.ca = files.certificate;
  EXPECT_EQ(connect_error(server.url(), settings), "");
}

TEST_F(TlsRefusal, CertificateOfTheServerCanBeTrustedItself) {
  const TlsRedisServer server(folder_, ca_, good_);
  TlsSettings settings;
  settings.ca = good_.certificate;
  EXPECT_EQ(connect_error(server.url(), settings), "");
}

TEST_F(TlsRefusal, ExpiredCertificateHasItsDate) {
  EXPECT_THAT(error_with(ca_.issue("server", "DNS:localhost", kPastBegin, kPastEnd)),
              HasSubstr("its certificate expired on 2021-01-01 00:00 UTC: renew it"));
}

TEST_F(TlsRefusal, CertificateOfTheFutureHasItsDate) {
  EXPECT_THAT(error_with(ca_.issue("server", "DNS:localhost", kFutureBegin, kFutureEnd)),
              HasSubstr("its certificate is not valid before 2090-01-01 00:00 UTC: check the clocks of both hosts"));
}

TEST_F(TlsRefusal, OtherNamesAreListed) {
  EXPECT_THAT(error_with(ca_.issue("server", "DNS:redis.example.org,IP:192.0.2.7")),
              HasSubstr("its certificate is for redis.example.org, 192.0.2.7, not for localhost"));
  const TlsRedisServer server(folder_, ca_, ca_.issue("only-a-common-name", ""));
  EXPECT_THAT(connect_error("rediss://127.0.0.1:" + std::to_string(server.tls_port()), trusting(ca_)),
              HasSubstr("its certificate is for /CN=only-a-common-name, not for 127.0.0.1"));
}

TEST_F(TlsRefusal, ExpectedNameCanBeSet) {
  const TlsRedisServer server(folder_, ca_, ca_.issue("server", "DNS:redis.example.org"));
  TlsSettings settings = trusting(ca_);
  settings.server_name = "redis.example.org";
  EXPECT_EQ(connect_error(server.url(), settings), "");
  settings.server_name = "other.example.org";
  EXPECT_THAT(connect_error(server.url(), settings), HasSubstr("not for other.example.org"));
  settings.insecure = true;
  EXPECT_EQ(connect_error(server.url(), settings), "");
}

TEST_F(TlsRefusal, AddressesOfTheCertificateAreAccepted) {
  const TlsRedisServer server(folder_, ca_, good_);
  EXPECT_EQ(connect_error("rediss://127.0.0.1:" + std::to_string(server.tls_port()), trusting(ca_)), "");
}

TEST_F(TlsRefusal, SystemCasAreTheDefault) {
  const TlsRedisServer server(folder_, ca_, good_);
  EXPECT_THAT(connect_error(server.url(), {}), HasSubstr("unknown CA, /CN=ca"));
}

TEST_F(TlsRefusal, PlainTextPortIsNamed) {
  const TlsRedisServer server(folder_, ca_, good_);
  const std::string url = "rediss://me:pa55word@localhost:" + std::to_string(server.plain_port());
  constexpr std::uint32_t kDayMs = 24 * 3600 * 1000;  // the answer does not wait for a part of it
  const std::string error = connect_error(url, trusting(ca_), kDayMs);
  EXPECT_THAT(error, HasSubstr("unavailable: cannot connect to Redis at rediss://localhost:"));
  EXPECT_THAT(error, HasSubstr("the server answers in plain text: use its port for TLS"));
  EXPECT_THAT(error, Not(HasSubstr("pa55word")));
}

TEST_F(TlsRefusal, TlsPortIsNamedToAPlainClient) {
  const TlsRedisServer server(folder_, ca_, good_);
  const std::string error = connect_error("redis://me:pa55word@localhost:" + std::to_string(server.tls_port()), {});
  EXPECT_THAT(error, HasSubstr("this port requires TLS: use rediss://"));
  EXPECT_THAT(error, Not(HasSubstr("pa55word")));
}

TEST_F(TlsRefusal, MissingClientCertificateIsNamed) {
  for (const char* protocol : {"TLSv1.3", "TLSv1.2"}) {
    const TlsRedisServer server(folder_, ca_, good_, {"--tls-auth-clients", "yes", "--tls-protocols", protocol});
    TlsSettings insecure;
    insecure.insecure = true;
    EXPECT_THAT(connect_error(server.url(), insecure), HasSubstr("requires a client certificate")) << protocol;
    const std::string error = connect_error(server.url("me:pa55word"), trusting(ca_));
    EXPECT_THAT(error, HasSubstr("denied: ")) << protocol;
    EXPECT_THAT(error, HasSubstr("requires a client certificate")) << protocol;
    EXPECT_THAT(error, HasSubstr("redis_tls.cert")) << protocol;
    EXPECT_THAT(error, Not(HasSubstr("pa55word"))) << protocol;
    TlsSettings settings = trusting(ca_);
    const CertificateFiles client = ca_.issue("client", "");
    settings.certificate = client.certificate;
    settings.key = client.key;
    EXPECT_EQ(connect_error(server.url(), settings), "") << protocol;
  }
}

TEST_F(TlsRefusal, RejectedClientCertificateIsNamed) {
  const TestCa other(folder_, "other-ca");
  const CertificateFiles untrusted = other.issue("client", "");
  const CertificateFiles expired = ca_.issue("expired", "", kPastBegin, kPastEnd);
  for (const char* protocol : {"TLSv1.3", "TLSv1.2"}) {
    const TlsRedisServer server(folder_, ca_, good_, {"--tls-auth-clients", "yes", "--tls-protocols", protocol});
    TlsSettings settings = trusting(ca_);
    settings.certificate = untrusted.certificate;
    settings.key = untrusted.key;
    EXPECT_THAT(connect_error(server.url(), settings),
                HasSubstr("the server does not trust the CA of the client certificate (redis_tls.cert)"))
        << protocol;
    settings.certificate = expired.certificate;
    settings.key = expired.key;
    EXPECT_THAT(connect_error(server.url(), settings),
                HasSubstr("the server rejects the client certificate (redis_tls.cert): it has expired"))
        << protocol;
  }
}

TEST_F(TlsRefusal, WrongPasswordIsNoMatterOfTls) {
  const TlsRedisServer server(folder_, ca_, good_, {"--requirepass", "right"});
  const std::string error = connect_error(server.url("me:pa55word"), trusting(ca_));
  EXPECT_THAT(error, HasSubstr("denied: redis: WRONGPASS"));
  EXPECT_THAT(error, Not(HasSubstr("pa55word")));
  EXPECT_EQ(connect_error(server.url(":right"), trusting(ca_)), "");
}

}  // namespace
}  // namespace mycojobs::test
