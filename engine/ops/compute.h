// How an ALLOW node computes where its operands' dtype does not say it. passes/precision writes these attributes,
// differentiation hands them on to the ALLOW nodes it emits, backends and passes/quantize_fp8 read them.
#ifndef AMPD_ENGINE_OPS_COMPUTE_H_
#define AMPD_ENGINE_OPS_COMPUTE_H_

namespace ampd::ops {

inline constexpr char kComputeAttribute[] = "compute";
// f32 operands are rounded to 10 fraction bits (to nearest even), products accumulate in fp32; storage stays f32.
inline constexpr char kComputeTf32[] = "tf32";
// passes/quantize_fp8 gives it 8-bit operands with scales; until then they are bf16.
inline constexpr char kComputeFp8[] = "fp8";
// With kComputeFp8: the name of the forward node, which its scales are named after.
inline constexpr char kScalesAttribute[] = "scales";

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_COMPUTE_H_
