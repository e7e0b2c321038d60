// Mutations of valid inputs. The same seed gives the same mutations.
#pragma once

#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include "fuzz/targets.h"

namespace mycojobs::fuzz {

using Random = std::mt19937_64;
using Corpus = std::map<std::string, std::string>;  // maps file names to contents

// Loads the corpus of a target below a folder; empty if there is none.
Corpus load_corpus(const std::string& folder, std::string_view target);

// Changes a random input of the corpus in one to eight places. REQUIRES: `corpus` is not empty.
std::string mutated(const Corpus& corpus, std::span<const std::string_view> pieces, Random&);

}  // namespace mycojobs::fuzz
