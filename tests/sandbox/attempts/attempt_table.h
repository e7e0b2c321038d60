// The tables of all attempts. An attempt is a function whose arguments are the words of a line; words[0] is the name of
// the attempt.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mycojobs::test {

using Words = std::vector<std::string>;
using Attempts = std::map<std::string, std::function<std::string(const Words&)>>;

const Attempts& file_attempts();
const Attempts& process_attempts();
const Attempts& signal_attempts();
const Attempts& network_attempts();
const Attempts& memory_attempts();
const Attempts& kernel_attempts();
const Attempts& combined_attempts();  // Attempts that combine two rows of rows.txt, or have no row.
const Attempts& escape_attempts();
const Attempts& limit_attempts();
const Attempts& random_attempts();
const Attempts& kernel_memory_attempts();  // Attempts to allocate kernel memory.
const Attempts& reuse_attempts();          // Attempts to leave state in a sandbox or to find such state.

// Returns "ok", or the name of errno if the result is negative.
std::string describe_result(long result);
std::string get_errno_name();
// Returns 0 if there is no word with this index.
unsigned long parse_number(const Words&, std::size_t index);
// Forks a child that runs `body` and exits. The child is not reaped. Returns "ok" or the name of errno.
std::string fork_without_waiting(const std::function<void()>& body = [] {});
// Forks a child that exits with the value of `body`, and waits for the end of the child. Returns the value, or -1 if
// the child ended in another way.
int run_in_child(const std::function<int()>& body);

}  // namespace mycojobs::test
