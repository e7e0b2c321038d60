// Mathematical functions with bit-identical results on all machines. They compute with 113 bits, use only +, -, * and
// /, for which IEEE 754 defines exact results, and round the final result to a double.
#pragma once

#include <cstddef>

namespace mycojobs::workflow {

// Work of one call of power(), exponential() or logarithm(), in instructions of the Lua virtual machine.
inline constexpr unsigned kPowerWork = 300;
double power(double base, double exponent);  // special cases as in C17, F.10.4.4
double exponential(double);
double logarithm(double);
double logarithm(double, double base);

// Writes the shortest text that parses to the same number: 0.1, 1e+100, inf, nan. Returns the length of the text.
// REQUIRES: size >= 32.
int format_shortest(double, char* out, std::size_t size);

}  // namespace mycojobs::workflow
