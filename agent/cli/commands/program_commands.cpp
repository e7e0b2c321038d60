// mycojobs program add, mycojobs program list: programs for native jobs of a context on this host.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errno_text.h"
#include "base/sha256.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/terminal.h"
#include "executors/executor_settings.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_program(const std::string& path) {
  std::error_code error;
  const bool is_regular = fs::is_regular_file(path, error);
  if (error)
    return fail(error == std::errc::no_such_file_or_directory ? Code::not_found : Code::io,
                path + ": " + error.message());
  if (!is_regular) return fail(Code::invalid, path + ": is not a regular file");
  if (fs::file_size(path, error) > kMaxProgramBytes)
    return fail(Code::too_large, path + ": a program has at most " + std::to_string(kMaxProgramBytes) + " bytes");
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (!file) return fail(Code::io, "cannot read " + path);
  const bool is_program = bytes.starts_with(
                              "\x7f"
                              "ELF") ||
                          bytes.starts_with("#!");
  if (!is_program) return fail(Code::invalid, path + ": is neither an ELF program nor a script that begins with #!");
  return bytes;
}

// Stores a program under its hash, which is returned. A rename makes the file visible atomically, because an agent may
// read at the same time.
Result<std::string> store_program(const std::string& folder, const std::string& bytes) {
  const std::string hash = sha256_hex(bytes);
  ::umask(077);  // as for the agent's files
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return fail(Code::io, folder + ": " + error.message());
  const std::string temporary_file = folder + "/." + hash + "." + std::to_string(::getpid());
  {
    std::ofstream file(temporary_file, std::ios::binary);
    file << bytes;
    file.close();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error && ::chmod(temporary_file.c_str(), 0500) != 0) error = {errno, std::generic_category()};
  if (!error) fs::rename(temporary_file, folder + "/" + hash, error);
  if (!error) return hash;
  std::error_code remove_error;
  fs::remove(temporary_file, remove_error);
  return fail(Code::io, folder + ": " + error.message());
}

}  // namespace

Result<int> program_add_command(Invocation& call) {
  MJ_TRY(bytes, read_program(call.arguments.at(0)));
  const Id context = call.context();
  MJ_TRY(hash, store_program(programs_folder(call.settings.state_dir, context), bytes));
  if (call.json) return print_json({{"context", context}, {"sha256", hash}, {"bytes", bytes.size()}});
  print(hash + "\n");
  return 0;
}

Result<int> program_list_command(Invocation& call) {
  const std::string folder = programs_folder(call.settings.state_dir, call.context());
  auto array = nlohmann::json::array();
  TableRows rows{{"SHA-256", "BYTES"}};
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.size() != 64 || name.front() == '.') continue;
    std::error_code size_error;
    const std::uintmax_t bytes = entry->file_size(size_error);
    if (size_error) continue;
    array.push_back({{"sha256", name}, {"bytes", bytes}});
    rows.push_back({to_printable_line(name), std::to_string(bytes)});
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail(Code::io, folder + ": cannot be read: " + error.message());
  if (!call.json && array.empty()) {
    print_message("context " + std::to_string(call.context()) + " has no programs in " + to_printable(folder) +
                  ": add it with `mycojobs program add FILE`");
    return 0;
  }
  return print_listing(call, array, rows);
}

}  // namespace mycojobs
