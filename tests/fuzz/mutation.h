// Inputs that are almost right: the same seed gives the same.
#pragma once

#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include "fuzz/targets.h"

namespace mycojobs::fuzz {

using Random = std::mt19937_64;
using Corpus = std::map<std::string, std::string>;  // name of the file -> what is in it

// Of a target, below a folder; empty: there is none.
Corpus load_corpus(const std::string& folder, std::string_view target);

// One of the corpus, changed in one to eight places. Not empty: `corpus`.
std::string mutated(const Corpus& corpus, std::span<const std::string_view> pieces, Random&);

}  // namespace mycojobs::fuzz
