// fuzz TARGET [--seconds N] [--seed S] runs mutations of the target's corpus. fuzz TARGET FILE... runs these inputs.
// Used for compilers without libFuzzer; otherwise libfuzzer.cpp replaces this file.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/mutation.h"
#include "fuzz/watched.h"
#include "support/build_paths.h"

namespace mycojobs::fuzz {
namespace {

int usage() {
  std::fprintf(stderr, "usage: fuzz TARGET [--seconds N] [--seed S] | fuzz TARGET FILE...\ntargets:");
  for (const Target& each : targets())
    std::fprintf(stderr, " %.*s", static_cast<int>(each.name.size()), each.name.data());
  std::fprintf(stderr, "\n");
  return 64;
}

int run_files(const Target& target, const std::vector<std::string>& files) {
  for (const std::string& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) return std::fprintf(stderr, "%s: cannot be read\n", name.c_str()), 66;
    const std::string input{std::istreambuf_iterator<char>(file), {}};
    std::printf("%s: %s\n", name.c_str(), run_watched(target, input) == 1 ? "taken" : "refused");
  }
  return 0;
}

int run_mutations(const Target& target, std::uint64_t seconds, std::uint64_t seed) {
  const Corpus corpus = load_corpus(mj::test::source_path("tests/fuzz/corpus"), target.name);
  if (corpus.empty()) return std::fprintf(stderr, "there is no corpus\n"), 66;
  const std::string name(target.name);
  std::printf("%s: %llu s, --seed %llu\n", name.c_str(), static_cast<unsigned long long>(seconds),
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const auto& each : corpus) (void)run_watched(target, each.second);
  Random random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  unsigned long long rounds = 0, taken = 0;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 100; ++i, ++rounds)
      taken += static_cast<unsigned long long>(run_watched(target, mutated(corpus, target.pieces, random)));
  }
  std::printf("%s: %llu inputs, %llu taken, nothing found\n", name.c_str(), rounds, taken);
  return 0;
}

}  // namespace
}  // namespace mycojobs::fuzz

int main(int argc, char** argv) {
  using namespace mycojobs::fuzz;
  const Target* target = argc < 2 ? nullptr : find_target(argv[1]);
  if (target == nullptr) return usage();
  std::uint64_t seconds = 60, seed = std::random_device()();
  std::vector<std::string> files;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const bool number = word == "--seconds" || word == "--seed";
    if (number && i + 1 == argc) return usage();
    if (number) {
      (word == "--seed" ? seed : seconds) = std::strtoull(argv[++i], nullptr, 10);
    } else {
      files.push_back(word);
    }
  }
  return files.empty() ? run_mutations(*target, seconds, seed) : run_files(*target, files);
}
