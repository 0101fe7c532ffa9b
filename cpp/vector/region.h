// The code of each instruction set is compiled in its own target region and namespace, in the translation unit
// vector/sets/<name>.cpp. So the linker cannot put a function that is built for a newer CPU into code that older CPUs
// execute. Per-file flags (-mavx512f) do not ensure this: the linker keeps one copy of an inline function, from any of
// the files.
//
// Headers that several instruction sets share are included here, before a region opens, so that their functions and the
// templates of the standard library are built for the oldest CPU. tests/kernels/cpu/test_instruction_sets.py checks the
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
#include "vector/prefetch.h"

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
