// All code of one instruction set, and its row. Included once inside each target region of isa.cpp.
#include "vec.h"  // first: the others use its vector type

#include "bandwidth.h"
#include "peak.h"

// A constant: filling it must not run instructions that the CPU may not have.
constexpr Isa kRow = {
    kName,
    supported,
    sizeof(Vec),
    kRegisters,
    chains_fp32,
    chains_bf16,
    2L * kChains * kLanes,
    4L * kChains * kLanes,
    multiply_add_fp32,
    multiply_add_bf16,
    read,
};
