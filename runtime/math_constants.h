// Numbers that every table of kernels shares. The functions they belong to are defined in
// runtime/scalar_math.h; the coefficients come from tools/fit_polynomials.py.
#pragma once

namespace adder {

// Adding and subtracting it rounds |x| < 2^22 to the nearest even integer. After the addition the
// low mantissa bits are that integer, in two's complement.
inline constexpr float kRoundingShift = 0x1.8p23f;

// 2^r = 1 + r (c1 + r (c2 + ...)) for |r| <= 1/2, relative error 9.4e-8 before rounding.
inline constexpr float kExp2C1 = 0x1.62e42ap-1f;
inline constexpr float kExp2C2 = 0x1.ebf9c2p-3f;
inline constexpr float kExp2C3 = 0x1.c6b6d8p-5f;
inline constexpr float kExp2C4 = 0x1.3ce8acp-7f;
inline constexpr float kExp2C5 = 0x1.5bda40p-10f;

// Arguments below the first give 0, above the second they count as the second. The limits of Exp
// are those of Exp2 times ln 2, rounded towards zero.
inline constexpr float kExp2Min = -126.0f;
inline constexpr float kExp2Max = 127.0f;
inline constexpr float kExpMin = -0x1.5d589ep6f;  // -87.33654
inline constexpr float kExpMax = 0x1.601e66p6f;   // 88.02969

// log2(e) as the sum of two floats.
inline constexpr float kLog2eHigh = 0x1.715476p0f;
inline constexpr float kLog2eLow = 0x1.4ae0cp-26f;

// atanh(s) / s = 1 + z (c1 + z (c2 + ...)) with z = s^2 <= 1/9, relative error 4.5e-9.
inline constexpr float kAtanhC1 = 0x1.555502p-2f;
inline constexpr float kAtanhC2 = 0x1.99d1ccp-3f;
inline constexpr float kAtanhC3 = 0x1.1ec040p-3f;
inline constexpr float kAtanhC4 = 0x1.1eca1ap-3f;

// pi / 2 as the sum of three doubles. The first two have 28 bits, so that their products with
// integers below 2^25 are exact.
inline constexpr double kHalfPiHigh = 0x1.921fb54p0;
inline constexpr double kHalfPiMiddle = 0x1.10b461p-30;
inline constexpr double kHalfPiLow = 0x1.a62633145c06ep-58;
inline constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Gelu: erfc(a / sqrt 2) exp(a^2 / 2) = t (1 + z (c1 + z (c2 + ...))) with t = 1 / (1 + scale a)
// and z = 1 - t, relative error 6.2e-8 for 0 <= a <= 6; up to 14, where it is 7e-5, nothing depends
// on it.
inline constexpr float kGeluMax = 14.0f;
inline constexpr float kGeluScale = 0.375f;
inline constexpr float kGeluC1 = -0x1.20b0c2p+0f;
inline constexpr float kGeluC2 = 0x1.338166p-2f;
inline constexpr float kGeluC3 = 0x1.e9cd1ap-3f;
inline constexpr float kGeluC4 = -0x1.c01996p-6f;
inline constexpr float kGeluC5 = -0x1.54902cp-4f;
inline constexpr float kGeluC6 = -0x1.cbef7ep-5f;
inline constexpr float kGeluC7 = 0x1.c12350p-5f;

// tanh(x) / x = 1 + z (c1 + z (c2 + ...)) with z = x^2, |x| <= kTanhMax, relative error 4.5e-9.
inline constexpr float kTanhMax = 0.625f;
inline constexpr float kTanhC1 = -0x1.555532p-2f;
inline constexpr float kTanhC2 = 0x1.1106f6p-3f;
inline constexpr float kTanhC3 = -0x1.b835a4p-5f;
inline constexpr float kTanhC4 = 0x1.51f8cep-6f;
inline constexpr float kTanhC5 = -0x1.750ce4p-8f;

// sin(x) / x = 1 + z (c1 + z (c2 + ...)) with z = x^2, |x| <= pi / 2, relative error 6.2e-9.
inline constexpr float kTwoPi = 0x1.921fb6p2f;
inline constexpr float kSinC1 = -0x1.55554cp-3f;
inline constexpr float kSinC2 = 0x1.110edap-7f;
inline constexpr float kSinC3 = -0x1.9f70eep-13f;
inline constexpr float kSinC4 = 0x1.5dc8c4p-19f;

// quantize_row: a group whose largest |x| is below this is all zeros.
inline constexpr float kQuantizeMin = 0x1p-100f;

}  // namespace adder
