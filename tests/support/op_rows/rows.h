// The rows that each file of row_files.def defines.
#ifndef AMPD_TESTS_SUPPORT_OP_ROWS_ROWS_H_
#define AMPD_TESTS_SUPPORT_OP_ROWS_ROWS_H_

#include <vector>

#include "tests/support/op_rows.h"

namespace ampd::testing {

#define X(name) std::vector<OpRow> name##Rows();
#include "tests/support/op_rows/row_files.def"
#undef X

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_OP_ROWS_ROWS_H_
