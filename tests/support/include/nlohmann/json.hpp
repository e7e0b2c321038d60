// The JSON library as the tests see it: its classes are compiled once, in support/json_instance.cpp, instead of in each
// file. Without optimization that is a fifth of the compile time of a test. A system header, since #include_next is an
// extension of the compilers.
#pragma once
#pragma GCC system_header

#include_next <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

extern template class nlohmann::basic_json<>;
extern template class std::map<std::string, nlohmann::json, std::less<>>;
extern template class std::vector<nlohmann::json>;
