// How the code of one instruction set is compiled: in a target region and a namespace of its own, in the translation
// unit vector/sets/<name>.cpp. No function that is built for a newer CPU can then be linked into the path of an older
// one. Per-file flags (-mavx512f) cannot promise that: the linker keeps one copy of an inline function, whichever file
// it comes from.
//
// Every header that several instruction sets share is included here, before a region opens, so that its functions, and
// the standard library's templates, are built for the oldest CPU. tests/kernels/cpu/test_instruction_sets.py checks the
// object files.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/call.h"
#include "attention/pair_product.h"
#include "base/arena.h"
#include "base/numbers.h"
#include "vector/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define REDBLUE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define REDBLUE_BEGIN_REGION(options) \
  REDBLUE_PRAGMA(clang attribute push(__attribute__((target(options))), apply_to = function))
#define REDBLUE_END_REGION REDBLUE_PRAGMA(clang attribute pop)
#else
#define REDBLUE_BEGIN_REGION(options) REDBLUE_PRAGMA(GCC push_options) REDBLUE_PRAGMA(GCC target(options))
#define REDBLUE_END_REGION REDBLUE_PRAGMA(GCC pop_options)
#endif
