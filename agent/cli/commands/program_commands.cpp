// mycojobs program add, mycojobs program list: programs for native jobs of a context on this host.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errno_text.h"
#include "base/sha256.h"
#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "executors/executor_settings.h"
#include "text/json.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_program(const std::string& path) {
  std::error_code unseen;
  const bool regular = fs::is_regular_file(path, unseen);
  if (unseen)
    return fail(unseen == std::errc::no_such_file_or_directory ? Code::not_found : Code::io,
                path + ": " + unseen.message());
  if (!regular) return fail(Code::invalid, path + ": is not a regular file");
  if (fs::file_size(path, unseen) > kMaxProgramBytes)
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

// Stores the program under its hash. The rename makes it visible atomically, because an agent may read at the same
// time.
Result<std::string> keep(const std::string& folder, const std::string& bytes) {
  const std::string hash = sha256_hex(bytes);
  ::umask(077);  // as for the agent's files
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return fail(Code::io, folder + ": " + failed.message());
  const std::string fresh = folder + "/." + hash + "." + std::to_string(::getpid());
  {
    std::ofstream file(fresh, std::ios::binary);
    file << bytes;
    file.close();
    if (!file) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed && ::chmod(fresh.c_str(), 0500) != 0) failed = {errno, std::generic_category()};
  if (!failed) fs::rename(fresh, folder + "/" + hash, failed);
  if (!failed) return hash;
  std::error_code unknown;
  fs::remove(fresh, unknown);
  return fail(Code::io, folder + ": " + failed.message());
}

Result<int> add_program(const Invocation& call) {
  MJ_TRY(bytes, read_program(call.arguments.at(0)));
  const Id context = context_of(call);
  MJ_TRY(hash, keep(programs_folder(call.settings.state_dir, context), bytes));
  if (call.json) {
    print(dump_json({{"context", context}, {"sha256", hash}, {"bytes", bytes.size()}}, 2) + "\n");
  } else {
    print(hash + "\n");
  }
  return 0;
}

Result<int> list_programs(const Invocation& call) {
  const std::string folder = programs_folder(call.settings.state_dir, context_of(call));
  auto rows = nlohmann::json::array();
  std::vector<std::vector<std::string>> table{{"SHA-256", "BYTES"}};
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.size() != 64 || name.front() == '.') continue;
    std::error_code gone;
    const std::uintmax_t bytes = entry->file_size(gone);
    if (gone) continue;
    rows.push_back({{"sha256", name}, {"bytes", bytes}});
    table.push_back({one_line(name), std::to_string(bytes)});
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail(Code::io, folder + ": cannot be read: " + error.message());
  if (call.json) {
    print(dump_json(rows, 2) + "\n");
  } else if (rows.empty()) {
    print_message("context " + std::to_string(context_of(call)) + " has no programs in " + printable(folder) +
                  ": add it with `mycojobs program add FILE`");
  } else {
    print_table(table);
  }
  return 0;
}

}  // namespace

int program_add_command(Invocation& call) { return finish(add_program(call)); }
int program_list_command(Invocation& call) { return finish(list_programs(call)); }

}  // namespace mycojobs
