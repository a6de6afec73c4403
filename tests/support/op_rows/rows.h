// The files of this folder: each defines `std::vector<OpRow> <Name>Rows()`. A new op's file is one line here.
#ifndef AMPD_TESTS_SUPPORT_OP_ROWS_ROWS_H_
#define AMPD_TESTS_SUPPORT_OP_ROWS_ROWS_H_

#include <vector>

#include "tests/support/op_rows.h"

#define AMPD_OP_ROW_FILES(X) \
  /* Elementwise */          \
  X(Relu)                    \
  /* Reductions */           \
  /* Moving data */          \
  /* Products, windows */    \
  /* Norms, attention */     \
  /* Sequences */            \
  /* Losses, metrics */      \
  /* 8-bit operands */       \
  X(Quantize)

namespace ampd::testing {

#define X(name) std::vector<OpRow> name##Rows();
AMPD_OP_ROW_FILES(X)
#undef X

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_OP_ROWS_ROWS_H_
