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

Wide scaled(std::uint64_t bits, int exponent) {
  return static_cast<Wide>(bits) * static_cast<Wide>(std::ldexp(1.0, exponent));
}
// The natural logarithm of 2: 0.B17217F7D1CF79AB C9E3B39803F2F6AF in base 16.
Wide ln2() { return scaled(0xB17217F7D1CF79ABU, -64) + scaled(0xC9E3B39803F2F6AFU, -128); }

// Returns 1/i from a table, because a division takes several times as long as a multiplication.
Wide part(int i) {
  struct Parts {
    Wide of[64];
    Parts() : of{} {
      for (int each = 1; each < 64; ++each) of[each] = static_cast<Wide>(1) / each;
    }
  };
  static const Parts kParts;
  return kParts.of[i];
}

// Logarithm of a finite number above 0. The exponent is handled separately; the logarithm of the mantissa m is computed
// with the series in (m - 1) / (m + 1).
Wide wide_log(double value) {
  int exponent = 0;
  double rest = std::frexp(value, &exponent);
  if (rest < 0.7071067811865476) {
    rest *= 2;
    --exponent;
  }
  const Wide ratio = (static_cast<Wide>(rest) - 1) / (static_cast<Wide>(rest) + 1), square = ratio * ratio;
  Wide term = ratio, sum = ratio;
  for (int i = 3; i < 53; i += 2) {
    term *= square;
    sum += term * part(i);
  }
  return 2 * sum + exponent * ln2();
}

double wide_exp(Wide value) {
  if (value > 710) return kInfinity;
  if (value < -746) return 0;
  const Wide turns = value / ln2();
  const int whole = static_cast<int>(turns + (turns < 0 ? -0.5 : 0.5));
  const Wide rest = value - whole * ln2();
  Wide term = 1, sum = 1;
  for (int i = 1; i < 30; ++i) {
    term = term * rest * part(i);
    sum += term;
  }
  return std::ldexp(static_cast<double>(sum), whole);
}

bool is_integer(double value) { return std::floor(value) == value; }
bool is_odd(double value) { return is_integer(value) && !is_integer(value / 2); }

// Power for a base or exponent that is 0 or infinite.
double special_power(double base, double exponent) {
  if (std::isinf(exponent)) {
    const double size = std::fabs(base);
    if (size == 1) return 1;
    return (size > 1) == (exponent > 0) ? kInfinity : 0;
  }
  const double size = (base == 0) == (exponent > 0) ? 0 : kInfinity;
  return std::signbit(base) && is_odd(exponent) ? -size : size;
}

}  // namespace

double power(double base, double exponent) {
  if (exponent == 0 || base == 1) return 1;
  if (std::isnan(base) || std::isnan(exponent)) return kNan;
  if (base == 0 || std::isinf(base) || std::isinf(exponent)) return special_power(base, exponent);
  if (base < 0 && !is_integer(exponent)) return kNan;
  const double size = wide_exp(static_cast<Wide>(exponent) * wide_log(std::fabs(base)));
  return base < 0 && is_odd(exponent) ? -size : size;
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
  const bool plain = value > 0 && !std::isinf(value) && base > 0 && !std::isinf(base) && base != 1;
  return plain ? static_cast<double>(wide_log(value) / wide_log(base)) : logarithm(value) / logarithm(base);
}

int shortest(double value, char* out, std::size_t size) {
  if (std::isnan(value)) {
    std::memcpy(out, "nan", 4);
    return 3;
  }
  const double magnitude = std::fabs(value);
  const bool plain = magnitude == 0 || (magnitude >= 1e-5 && magnitude < 1e17);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(out, out + size - 1, value, format);
  *end.ptr = '\0';
  return static_cast<int>(end.ptr - out);
}

}  // namespace mycojobs::workflow
