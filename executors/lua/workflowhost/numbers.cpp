#include "executors/lua/workflowhost/numbers.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace mycojobs::workflow {
namespace {

#if defined(__SIZEOF_FLOAT128__)
__extension__ using Wide = __float128;
#else
using Wide = long double;
#endif
static_assert(sizeof(Wide) == 16);

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Wide scale(std::uint64_t bits, int exponent) {
  return static_cast<Wide>(bits) * static_cast<Wide>(std::ldexp(1.0, exponent));
}
// The natural logarithm of 2: 0.B17217F7D1CF79AB C9E3B39803F2F6AF in base 16.
Wide ln2() { return scale(0xB17217F7D1CF79ABU, -64) + scale(0xC9E3B39803F2F6AFU, -128); }

// Returns 1/i from a table, because a division takes several times as long as a multiplication.
Wide reciprocal(int i) {
  struct Reciprocals {
    Wide values[64];
    Reciprocals() : values{} {
      for (int n = 1; n < 64; ++n) values[n] = static_cast<Wide>(1) / n;
    }
  };
  static const Reciprocals kReciprocals;
  return kReciprocals.values[i];
}

// Logarithm of a finite number above 0. The exponent is handled separately; the logarithm of the mantissa m is computed
// with the series in (m - 1) / (m + 1).
Wide wide_log(double value) {
  int exponent = 0;
  double mantissa = std::frexp(value, &exponent);
  if (mantissa < 0.7071067811865476) {
    mantissa *= 2;
    --exponent;
  }
  const Wide ratio = (static_cast<Wide>(mantissa) - 1) / (static_cast<Wide>(mantissa) + 1), square = ratio * ratio;
  Wide term = ratio, sum = ratio;
  for (int i = 3; i < 53; i += 2) {
    term *= square;
    sum += term * reciprocal(i);
  }
  return 2 * sum + exponent * ln2();
}

double wide_exp(Wide value) {
  if (value > 710) return kInfinity;
  if (value < -746) return 0;
  const Wide quotient = value / ln2();
  const int exponent = static_cast<int>(quotient + (quotient < 0 ? -0.5 : 0.5));
  const Wide remainder = value - exponent * ln2();
  Wide term = 1, sum = 1;
  for (int i = 1; i < 30; ++i) {
    term = term * remainder * reciprocal(i);
    sum += term;
  }
  return std::ldexp(static_cast<double>(sum), exponent);
}

bool is_integer(double value) { return std::floor(value) == value; }
bool is_odd(double value) { return is_integer(value) && !is_integer(value / 2); }

// Power for a base or exponent that is 0 or infinite.
double power_of_special_value(double base, double exponent) {
  if (std::isinf(exponent)) {
    const double magnitude = std::fabs(base);
    if (magnitude == 1) return 1;
    return (magnitude > 1) == (exponent > 0) ? kInfinity : 0;
  }
  const double magnitude = (base == 0) == (exponent > 0) ? 0 : kInfinity;
  return std::signbit(base) && is_odd(exponent) ? -magnitude : magnitude;
}

}  // namespace

double power(double base, double exponent) {
  if (exponent == 0 || base == 1) return 1;
  if (std::isnan(base) || std::isnan(exponent)) return kNan;
  if (base == 0 || std::isinf(base) || std::isinf(exponent)) return power_of_special_value(base, exponent);
  if (base < 0 && !is_integer(exponent)) return kNan;
  const double magnitude = wide_exp(static_cast<Wide>(exponent) * wide_log(std::fabs(base)));
  return base < 0 && is_odd(exponent) ? -magnitude : magnitude;
}

double exponential(double value) {
  if (std::isnan(value)) return kNan;
  if (std::isinf(value)) return value > 0 ? kInfinity : 0;
  return wide_exp(value);
}

double logarithm(double value) {
  if (std::isnan(value) || value < 0) return kNan;
  if (value == 0) return -kInfinity;
  return std::isinf(value) ? value : static_cast<double>(wide_log(value));
}

double logarithm(double value, double base) {
  const bool is_finite = value > 0 && !std::isinf(value) && base > 0 && !std::isinf(base) && base != 1;
  return is_finite ? static_cast<double>(wide_log(value) / wide_log(base)) : logarithm(value) / logarithm(base);
}

int format_shortest(double value, char* out, std::size_t size) {
  if (std::isnan(value)) {
    std::memcpy(out, "nan", 4);
    return 3;
  }
  const double magnitude = std::fabs(value);
  const bool is_fixed = magnitude == 0 || (magnitude >= 1e-5 && magnitude < 1e17);
  const auto format = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(out, out + size - 1, value, format);
  *end.ptr = '\0';
  return static_cast<int>(end.ptr - out);
}

}  // namespace mycojobs::workflow
