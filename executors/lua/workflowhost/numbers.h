// Numbers, the same to the last bit on every machine: computed with 113 bits by +, -, * and / alone, which IEEE 754
// leaves no choice in, and rounded to a double at the end.
#pragma once

#include <cstddef>

namespace mycojobs::workflow {

// In instructions of Lua's machine, what one of the three takes.
inline constexpr unsigned kWorkOfPower = 300;
double power(double base, double exponent);  // special cases as C has them (C17, F.10.4.4)
double exponential(double);
double logarithm(double);
double logarithm(double, double base);

// The shortest text that is read as this number again: 0.1, 1e+100, inf, nan. Returns its length. size: 32 at least.
int shortest(double, char* out, std::size_t size);

}  // namespace mycojobs::workflow
