// The files of the settings: what is accepted, and the text of each refusal.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "net/tls_files.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TlsFiles : public testing::Test {
 protected:
  static std::string load_error(const TlsSettings& settings) {
    const auto loaded = TlsContext(settings).load();
    return loaded ? "" : std::string(to_string(loaded.error().code)) + ": " + loaded.error().message;
  }
  TlsSettings client_settings() const { return make_client_settings(ca_, client_); }

  TempDir folder_;
  TestCa ca_{folder_, "ca"};
  CertificateFiles client_ = ca_.issue("client", "");
};

TEST_F(TlsFiles, CompleteSettingsAreAccepted) {
  EXPECT_EQ(load_error({}), "") << "the CAs of the system";
  EXPECT_EQ(load_error(client_settings()), "");
}

TEST_F(TlsFiles, MissingAndWrongFilesAreNamed) {
  TlsSettings settings = client_settings();
  settings.ca = folder_ / "none.crt";
  EXPECT_EQ(load_error(settings), "not_found: redis_tls.ca: " + settings.ca + ": ENOENT (No such file or directory)");
  settings.ca = folder_.write("empty.crt", "no certificate\n");
  EXPECT_THAT(load_error(settings), HasSubstr("invalid: redis_tls.ca: " + settings.ca + " has no certificate in PEM"));
  settings = client_settings();
  settings.certificate = folder_ / "none.crt";
  EXPECT_THAT(load_error(settings), HasSubstr("not_found: redis_tls.cert: "));
  settings.certificate = client_.key;
  EXPECT_THAT(load_error(settings), HasSubstr("invalid: redis_tls.cert: "));
  settings = client_settings();
  settings.key = client_.certificate;
  EXPECT_EQ(::chmod(settings.key.c_str(), 0600), 0);
  EXPECT_EQ(load_error(settings), "invalid: redis_tls.key: " + settings.key + " has no private key in PEM");
}

TEST_F(TlsFiles, CertificateAndKeyBelongTogether) {
  TlsSettings settings = client_settings();
  settings.key = ca_.issue("other", "").key;
  EXPECT_EQ(load_error(settings),
            "invalid: redis_tls.key: " + settings.key + " is not the key of the certificate in " + client_.certificate);
  settings.key.clear();
  EXPECT_EQ(load_error(settings), "invalid: redis_tls.key: is not set, but redis_tls.cert is");
  settings = client_settings();
  settings.certificate.clear();
  settings.table = "contexts.3.redis_tls";
  EXPECT_EQ(load_error(settings), "invalid: contexts.3.redis_tls.cert: is not set, but contexts.3.redis_tls.key is");
}

TEST_F(TlsFiles, KeyThatOthersCanReadIsRefused) {
  for (const mode_t mode : {0640U, 0604U, 0660U}) {
    ASSERT_EQ(::chmod(client_.key.c_str(), mode), 0);
    EXPECT_THAT(load_error(client_settings()), HasSubstr("so that other users can read it: chmod 600"));
  }
  ASSERT_EQ(::chmod(client_.key.c_str(), 0400), 0);
  EXPECT_EQ(load_error(client_settings()), "");
}

TEST_F(TlsFiles, KeyWithAPassphraseIsRefusedWithoutAQuestion) {
  TlsSettings settings = client_settings();
  settings.key = folder_ / "encrypted.key";
  run_openssl(folder_, {"pkey", "-in", client_.key, "-aes256", "-passout", "pass:secret", "-out", settings.key});
  ASSERT_EQ(::chmod(settings.key.c_str(), 0600), 0);
  EXPECT_EQ(load_error(settings),
            "invalid: redis_tls.key: " + settings.key + " needs a passphrase: decrypt it with `openssl pkey`");
}

TEST_F(TlsFiles, FolderOfCertificatesNeedsNoHashNames) {
  TlsSettings settings;
  settings.ca = folder_ / "cas";
  fs::create_directory(settings.ca);
  EXPECT_EQ(load_error(settings), "invalid: redis_tls.ca: " + settings.ca + " has no file *.pem, *.crt or *.cer");
  fs::copy(ca_.file(), settings.ca + "/company.pem");
  EXPECT_EQ(load_error(settings), "");
}

// OpenSSL would wait for a process that writes to the pipe.
TEST_F(TlsFiles, PipesAndDevicesAreRefusedWithoutAWait) {
  const std::string pipe = folder_ / "pipe.pem";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    TlsSettings settings = client_settings();
    settings.ca = path;
    EXPECT_EQ(load_error(settings), "invalid: redis_tls.ca: " + path + " is not a regular file");
    settings = client_settings();
    settings.certificate = path;
    EXPECT_EQ(load_error(settings), "invalid: redis_tls.cert: " + path + " is not a regular file");
    settings = client_settings();
    settings.key = path;
    EXPECT_EQ(load_error(settings), "invalid: redis_tls.key: " + path + " is not a regular file");
  }
  TlsSettings settings;
  settings.ca = folder_ / "cas";
  fs::create_directory(settings.ca);
  fs::create_symlink(pipe, settings.ca + "/pipe.pem");
  EXPECT_EQ(load_error(settings), "invalid: redis_tls.ca: " + settings.ca + "/pipe.pem is not a regular file");
}

TEST_F(TlsFiles, LargeFilesAndFoldersAreRefused) {
  TlsSettings settings = client_settings();
  settings.certificate = folder_.write("large.crt", std::string(kMaxPemFileBytes + 1, '\n'));
  EXPECT_EQ(load_error(settings), "invalid: redis_tls.cert: " + settings.certificate + " has more than 4 MiB");
  settings = {};
  settings.ca = folder_ / "cas";
  fs::create_directory(settings.ca);
  for (std::size_t i = 0; i <= kMaxCaFiles; ++i)
    fs::create_symlink(ca_.file(), settings.ca + fmt::format("/{}.pem", i));
  EXPECT_EQ(load_error(settings), "invalid: redis_tls.ca: " + settings.ca + " has more than 1000 certificates");
}

TEST_F(TlsFiles, DamagedCertificateBehindAGoodOneIsRefused) {
  TlsSettings settings = client_settings();
  settings.ca = folder_.write("two.crt",
                              read_file(ca_.file()) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_THAT(load_error(settings), HasSubstr(settings.ca + " has a certificate that is not valid PEM"));
}

TEST_F(TlsFiles, HashNamesMayPointToRemovedFiles) {
  TlsSettings settings;
  settings.ca = folder_ / "cas";
  fs::create_directory(settings.ca);
  fs::copy(ca_.file(), settings.ca + "/company.pem");
  run_openssl(folder_, {"rehash", settings.ca});
  fs::create_symlink("removed.pem", settings.ca + "/12345678.0");
  EXPECT_EQ(load_error(settings), "");
}

TEST_F(TlsFiles, ChangedFilesAreReadAgain) {
  TlsContext context(client_settings());
  const auto before = *context.load();
  EXPECT_EQ(*context.load(), before);
  const CertificateFiles renewed = ca_.issue("renewed", "");
  fs::rename(renewed.certificate, client_.certificate);
  EXPECT_EQ(*context.load(), before) << "the key was not replaced yet";
  fs::rename(renewed.key, client_.key);
  const auto after = *context.load();
  EXPECT_NE(after, before);
  EXPECT_EQ(*context.load(), after);
}

}  // namespace
}  // namespace mycojobs::test
