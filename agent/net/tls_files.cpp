#include "net/tls_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/errno_text.h"
#include "base/fd.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxFolderEntries = 10000;

std::string describe_file(const std::string& path) {
  struct stat info {};
  if (path.empty() || ::stat(path.c_str(), &info) != 0) return path + ";";
  return fmt::format("{}:{}:{}:{}.{}:{}.{};", path, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
}

// Returns true for names such as 5a3f1c20.0, by which OpenSSL finds a certificate.
bool is_hash_name(std::string_view name) {
  constexpr std::size_t kHashDigits = 8;
  if (name.size() < kHashDigits + 2 || name[kHashDigits] != '.') return false;
  const auto is_hex_digit = [](unsigned char c) { return std::isxdigit(c) != 0; };
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  return std::all_of(name.begin(), name.begin() + kHashDigits, is_hex_digit) &&
         std::all_of(name.begin() + kHashDigits + 1, name.end(), is_digit);
}

// Returns the folder of the CAs of the system, which update-ca-certificates changes.
std::string system_ca_folder() {
  const char* const folder = std::getenv("SSL_CERT_DIR");
  return folder == nullptr ? "/etc/ssl/certs" : folder;
}

tl::unexpected<Error> file_error(const std::string& path, int error) {
  return fail(error == ENOENT ? Code::not_found : Code::io, path + ": " + errno_text(error));
}

}  // namespace

Result<PemFile> read_pem_file(const std::string& path) {
  PemFile out;
  const auto check = [&]() -> Result<void> {
    if (!S_ISREG(out.info.st_mode)) return fail(Code::invalid, path + " is not a regular file");
    if (static_cast<std::size_t>(out.info.st_size) <= kMaxPemFileBytes) return {};
    return fail(Code::invalid, fmt::format("{} has more than {} MiB", path, kMaxPemFileBytes >> 20));
  };
  // The first check comes before open(), because it may have an effect on a device.
  if (::stat(path.c_str(), &out.info) != 0) return file_error(path, errno);
  MJ_CHECK(check());
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd || ::fstat(fd.get(), &out.info) != 0) return file_error(path, errno);
  MJ_CHECK(check());
  out.text.resize(static_cast<std::size_t>(out.info.st_size));
  std::size_t size = 0;
  while (size < out.text.size()) {
    const ssize_t count = ::read(fd.get(), out.text.data() + size, out.text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  out.text.resize(size);
  return out;
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

Result<CaFolder> list_ca_folder(const std::string& path) {
  std::vector<std::string> hashed_files, other_files;
  std::size_t entry_count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (++entry_count > kMaxFolderEntries)
      return fail(Code::invalid, fmt::format("{} has more than {} entries", path, kMaxFolderEntries));
    const std::filesystem::path& file = entry->path();
    const std::string extension = file.extension().string();
    if (is_hash_name(file.filename().string())) hashed_files.push_back(file.string());
    if (extension == ".pem" || extension == ".crt" || extension == ".cer") other_files.push_back(file.string());
  }
  if (error) return file_error(path, error.value());
  CaFolder out{!hashed_files.empty(), std::move(hashed_files.empty() ? other_files : hashed_files)};
  if (out.files.size() > kMaxCaFiles)
    return fail(Code::invalid, fmt::format("{} has more than {} certificates", path, kMaxCaFiles));
  std::sort(out.files.begin(), out.files.end());
  return out;
}

// A hash name covers only the subject of a certificate, so that a CA with a new key may have the same name.
std::string describe_tls_files(const TlsSettings& settings, TlsRole role) {
  std::string out = describe_file(settings.certificate) + describe_file(settings.key) + describe_file(settings.ca);
  if (settings.ca.empty()) {
    if (role == TlsRole::server) return out;
    const char* const bundle = std::getenv("SSL_CERT_FILE");
    return out + describe_file(system_ca_folder()) +
           describe_file(bundle == nullptr ? system_ca_folder() + "/ca-certificates.crt" : bundle);
  }
  if (!is_folder(settings.ca)) return out;
  const auto folder = list_ca_folder(settings.ca);
  for (const std::string& file : folder ? folder->files : std::vector<std::string>()) out += describe_file(file);
  return out;
}

}  // namespace mycojobs
