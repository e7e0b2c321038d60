// Reads the files of TLS settings. OpenSSL's own functions open files without O_CLOEXEC, and wait for a pipe or a
// device. The functions here wait for no other process, and read a bounded amount of data.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/tls.h"

namespace mycojobs {

inline constexpr std::size_t kMaxPemFileBytes = 4U << 20;
inline constexpr std::size_t kMaxCaFiles = 1000;

struct PemFile {
  std::string text;
  struct stat info {};
};

// Reads a file. Errors: not_found, io, invalid (not a regular file, or too large). The message begins with the path.
Result<PemFile> read_pem_file(const std::string& path);

bool is_folder(const std::string& path);

struct CaFolder {
  // The names are those of `openssl rehash`, such as 5a3f1c20.0. Such a link may point to a file that was removed.
  bool has_hash_names = false;
  std::vector<std::string> files;  // paths with hash names; without any, the paths of *.pem, *.crt and *.cer; sorted
};

// Lists the certificates in a folder of CAs. Errors: io, invalid (too many entries). The message begins with the path.
Result<CaFolder> list_ca_folder(const std::string& path);

// Returns a text that differs if a file of the settings was changed or replaced. Only clients use the CAs of the system.
std::string describe_tls_files(const TlsSettings&, TlsRole);

}  // namespace mycojobs
