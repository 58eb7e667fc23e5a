#include "kernels/compiler/program_source.h"

namespace shadowgraph {

// Algorithms:
//
//     exp    2^n exp(r), |r| <= ln 2 / 2; Taylor series with a remainder below a tenth of an ulp; ln 2 in two parts, of
//            which n times the first is exact
//     log    f - s (f - R(s)) for m = 1 + f, s = f / (2 + f), by the series of artanh
//     expm1  as exp, with exp(r) - 1 separate from 2^n - 1
//     erf    its series up to 1, then 1 - exp(-x^2) p(1 / (1 + x / 2)), p fitted to erfc (7e-10)
//     cdf    of the normal distribution: half of 1 + x p(x^2) / q(x^2), fitted to 2e-8 of erf; clamped, since it is at
//            least 1 at 5.75
//
// Comparisons are written so that NaNs propagate.
std::string_view vector_math_source() {
  return R"(#define SG static inline __attribute__((always_inline))
typedef __INT64_TYPE__ i64; typedef __INT32_TYPE__ i32; typedef __UINT32_TYPE__ u32; typedef __UINT64_TYPE__ u64;
typedef __UINT16_TYPE__ u16;
#ifdef __FMA__
SG float mad(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SG double mad(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
SG float mad(float a, float b, float c) { return a * b + c; }
SG double mad(double a, double b, double c) { return a * b + c; }
#endif
SG float bits_f(i32 v) { return __builtin_bit_cast(float, v); }
SG double bits_d(i64 v) { return __builtin_bit_cast(double, v); }
SG float bf16_load(u16 v) { return __builtin_bit_cast(float, (u32)v << 16); }
SG u16 bf16_bits(float v) {
  u32 b = __builtin_bit_cast(u32, v);
  u32 r = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return (u16)(v != v ? 0x7fc0u : r);
}
SG u16 bf16_high(float v) { return (u16)(__builtin_bit_cast(u32, v) >> 16); }
SG float bf16_round(float v) { return bf16_load(bf16_bits(v)); }
SG float f16_round(float v) { return (float)(_Float16)v; }
SG float taylor(float r) {
  float p = 1.0f / 5040;
  p = mad(p, r, 1.0f / 720); p = mad(p, r, 1.0f / 120); p = mad(p, r, 1.0f / 24); p = mad(p, r, 1.0f / 6); p = mad(p, r, 0.5f);
  return mad(r * r, p, r);
}
SG double taylor(double r) {
  double p = 1.0 / 6227020800.0;
  p = mad(p, r, 1.0 / 479001600); p = mad(p, r, 1.0 / 39916800); p = mad(p, r, 1.0 / 3628800); p = mad(p, r, 1.0 / 362880);
  p = mad(p, r, 1.0 / 40320); p = mad(p, r, 1.0 / 5040); p = mad(p, r, 1.0 / 720); p = mad(p, r, 1.0 / 120); p = mad(p, r, 1.0 / 24);
  p = mad(p, r, 1.0 / 6); p = mad(p, r, 0.5);
  return mad(r * r, p, r);
}
SG float magic(float) { return 12582912.0f; }
SG double magic(double) { return 6755399441055744.0; }
SG i32 whole(float t) { return __builtin_bit_cast(i32, t) - 0x4b400000; }
SG i64 whole(double t) { return __builtin_bit_cast(i64, t) - 0x4338000000000000LL; }
SG float scale(i32 n) { return bits_f((n + 127) << 23); }
SG double scale(i64 n) { return bits_d((n + 1023) << 52); }
SG float clamped_exponent(float x) { x = x > 89.0f ? 89.0f : x; return x < -104.0f ? -104.0f : x; }
SG double clamped_exponent(double x) { x = x > 710.0 ? 710.0 : x; return x < -746.0 ? -746.0 : x; }
SG float reduced(float x, float& t) {
  t = mad(x, 1.44269504f, magic(x));
  float n = t - magic(x);
  return mad(n, 2.12194440e-4f, mad(n, -0.693359375f, x));
}
SG double reduced(double x, double& t) {
  t = mad(x, 1.4426950408889634, magic(x));
  double n = t - magic(x);
  return mad(n, -1.90821492927058770002e-10, mad(n, -6.93147180369123816490e-01, x));
}
template <class T> SG T exp_(T x) {
  T t;
  T q = taylor(reduced(clamped_exponent(x), t)) + T(1);
  auto n = whole(t), half = n >> 1;
  return q * scale(half) * scale(n - half);
}
SG float exp0_(float x) {
  float t, c = x > 89.0f ? 89.0f : x; c = c < -86.0f ? -86.0f : c;
  float q = taylor(reduced(c, t)) + 1.0f;
  float y = (q + q) * scale(whole(t) - 1);
  return x < -86.0f ? 0.0f : y;
}
SG double exp0_(double x) {
  double t, c = x > 710.0 ? 710.0 : x; c = c < -707.0 ? -707.0 : c;
  double q = taylor(reduced(c, t)) + 1.0;
  double y = (q + q) * scale(whole(t) - 1);
  return x < -707.0 ? 0.0 : y;
}
template <class T> SG T expm1_(T x) {
  T t;
  T c = clamped_exponent(x);
  T q = taylor(reduced(c, t));
  auto n = whole(t), half = n >> 1;
  T a = scale(half), b = scale(n - half);
  T small = q * a * b + (a * b - T(1));
  T large = (q + T(1)) * a * b;
  T y = c > T(60) ? large : small;
  y = n == 0 ? q : y;
  return x == T(0) ? x : y;
}
SG float log_(float x) {
  float y = x < 1.17549435e-38f ? x * 8388608.0f : x;
  i32 b = __builtin_bit_cast(i32, y);
  i32 e = ((b - 0x3f3504f3) >> 23);
  float n = (float)e - (x < 1.17549435e-38f ? 23.0f : 0.0f);
  float f = bits_f(b - (e << 23)) - 1.0f;
  float s = f / (2.0f + f), z = s * s, h = 0.5f * f * f;
  float r = 2.0f / 9; r = mad(r, z, 2.0f / 7); r = mad(r, z, 2.0f / 5); r = mad(r, z, 2.0f / 3); r = r * z;
  float v = n * 0.693359375f + (f - (h - (s * (h + r) + n * -2.12194440e-4f)));
  v = x == 0.0f ? -__builtin_inff() : v;
  v = x == __builtin_inff() ? x : v;
  return x < 0.0f ? __builtin_nanf("") : (x != x ? x : v);
}
SG double log_(double x) {
  double y = x < 2.2250738585072014e-308 ? x * 4503599627370496.0 : x;
  i64 b = __builtin_bit_cast(i64, y);
  i64 e = ((b - 0x3fe6a09e667f3bcdLL) >> 52);
  double n = bits_d(0x4338000000000000LL + e) - 6755399441055744.0 - (x < 2.2250738585072014e-308 ? 52.0 : 0.0);
  double f = bits_d(b - (i64)((u64)e << 52)) - 1.0;
  double s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
  double r = 2.0 / 21; r = mad(r, z, 2.0 / 19); r = mad(r, z, 2.0 / 17); r = mad(r, z, 2.0 / 15); r = mad(r, z, 2.0 / 13);
  r = mad(r, z, 2.0 / 11); r = mad(r, z, 2.0 / 9); r = mad(r, z, 2.0 / 7); r = mad(r, z, 2.0 / 5); r = mad(r, z, 2.0 / 3); r = r * z;
  double v = n * 6.93147180369123816490e-01 + (f - (h - (s * (h + r) + n * 1.90821492927058770002e-10)));
  v = x == 0.0 ? -__builtin_inf() : v;
  v = x == __builtin_inf() ? x : v;
  return x < 0.0 ? __builtin_nan("") : (x != x ? x : v);
}
template <class T> SG T with_sign(T v, T sign) {
  return sizeof(T) == 4 ? (T)__builtin_copysignf((float)v, (float)sign) : (T)__builtin_copysign((double)v, (double)sign);
}
template <class T> SG T tanh_(T x) {
  T a = x < T(0) ? -x : x;
  T e = expm1_(T(2) * (a > T(20) ? T(20) : a));
  T y = with_sign(e / (e + T(2)), x);
  return x != x ? x : y;
}
SG float erf_(float x) {
  float a = x < 0.0f ? -x : x, s = a * a;
  float p = 1.0f / 685440 - s * (1.0f / 6894720 - s * (1.0f / 76204800));
  p = 1.0f / 1320 - s * (1.0f / 9360 - s * (1.0f / 75600 - s * p));
  p = 1.0f / 3 - s * (0.1f - s * (1.0f / 42 - s * (1.0f / 216 - s * p)));
  float low = 1.12837917f * (a - a * s * p);
  float t = 1.0f / (1.0f + 0.5f * a);
  float q = 0.11878356523f;
  q = mad(q, t, -0.46916733915f); q = mad(q, t, 0.56015975040f); q = mad(q, t, -0.10098984348f); q = mad(q, t, 0.34648620384f);
  q = mad(q, t, 0.26008131515f); q = mad(q, t, 0.28484765656f); q = mad(q, t, -0.00014964023988f);
  float high = 1.0f - exp_(-s) * q;
  float y = a < 1.0f ? low : (a > 4.2f ? 1.0f : high);
  y = with_sign(y, x);
  return x != x ? x : y;
}
SG double erf_(double x) { return __builtin_erf(x); }
SG float cdf_(float x) {
  float c = x > 5.75f ? 5.75f : x; c = c < -5.75f ? -5.75f : c;
  float s = c * c;
  float p = 4.429012179230085e-08f;
  p = mad(p, s, 1.271293149329722e-05f); p = mad(p, s, 0.00034769854391925037f); p = mad(p, s, 0.00941450148820877f);
  p = mad(p, s, 0.06875205039978027f); p = mad(p, s, 0.797884464263916f);
  float q = 1.1801995469795656e-06f;
  q = mad(q, s, 7.5101139373146e-05f); q = mad(q, s, 0.00191297079436481f); q = mad(q, s, 0.02894003316760063f);
  q = mad(q, s, 0.25283363461494446f); q = mad(q, s, 1.0f);
  float y = mad(c * p / q, 0.5f, 0.5f);
  y = y < 0.0f ? 0.0f : y;
  return y > 1.0f ? 1.0f : y;
}
SG double cdf_(double x) { return 0.5 * (1.0 + __builtin_erf(x * 0.70710678118654752440)); }
template <class T> SG T maximum(T a, T b) { return a != a ? a : (b != b ? b : (a < b ? b : a)); }
template <class T> SG T minimum(T a, T b) { return a != a ? a : (b != b ? b : (b < a ? b : a)); }
template <class T> SG T absolute(T a) { return a < T(0) ? -a : a; }
SG float absolute(float a) { return __builtin_fabsf(a); }
SG double absolute(double a) { return __builtin_fabs(a); }
SG i32 order_of(float v) { i32 b = __builtin_bit_cast(i32, v != v ? __builtin_nanf("") : v); return b ^ ((b >> 31) & 0x7fffffff); }
SG i64 order_of(double v) { i64 b = __builtin_bit_cast(i64, v != v ? __builtin_nan("") : v); return b ^ ((b >> 63) & 0x7fffffffffffffffLL); }
SG float of_order(i32 b) { return bits_f(b ^ ((b >> 31) & 0x7fffffff)); }
SG double of_order(i64 b) { return bits_d(b ^ ((b >> 63) & 0x7fffffffffffffffLL)); }
)";
}

}  // namespace shadowgraph
