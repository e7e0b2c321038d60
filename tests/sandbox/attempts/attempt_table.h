// The attempts by section. Each attempt is a function of its words; words[0] is the name of the attempt.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mycojobs::test {

using Words = std::vector<std::string>;
using Attempts = std::map<std::string, std::function<std::string(const Words&)>>;

const Attempts& attempts_on_files();
const Attempts& attempts_on_processes();
const Attempts& attempts_on_signals();
const Attempts& attempts_on_network();
const Attempts& attempts_on_memory();
const Attempts& attempts_on_kernel();
const Attempts& attempts_combined();  // combine two rows of the list, or test something that has no row
const Attempts& attempts_to_escape();
const Attempts& attempts_on_limits();
const Attempts& attempts_at_random();
const Attempts& attempts_to_pin();    // allocate kernel memory
const Attempts& attempts_on_reuse();  // leave state in a sandbox, and search for it in the next job

std::string describe_result(long result);                     // "ok" or the name of errno
std::string errno_name();                                     // the name of errno
unsigned long parse_number(const Words&, std::size_t index);  // 0 if the word does not exist
// Forks a child that runs `then` and exits. Returns "ok" or the name of errno.
std::string fork_once(const std::function<void()>& body = [] {});
// Waits for a child that exits with the value of `then`. Returns that value, or -1 if the child ended in another way.
int in_child(const std::function<int()>& body);

}  // namespace mycojobs::test
