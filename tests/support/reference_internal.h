// Internal to tests/support: the parts of ReferenceOp().
#ifndef AMPD_TESTS_SUPPORT_REFERENCE_INTERNAL_H_
#define AMPD_TESTS_SUPPORT_REFERENCE_INTERNAL_H_

#include <vector>

#include "tests/support/op_rows.h"
#include "tests/support/reference.h"

namespace ampd::testing {

RefTensor Conv2dReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor Conv2dGradInputReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor Conv2dGradFilterReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor MaxPoolReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor MaxPoolGradReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor AvgPoolReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor AvgPoolGradReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor GlobalAvgPoolReference(const RefTensors& in);
RefTensor GlobalAvgPoolGradReference(const runtime::NodeDesc& desc, const RefTensors& in);

RefTensors BatchNormReference(const runtime::NodeDesc& desc, const RefTensors& in);
// The gradient that comes to batch_norm_grad, through its gate if it has one.
RefTensor BatchNormGated(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensors BatchNormGradReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensor BatchNormInferenceReference(const runtime::NodeDesc& desc, const RefTensors& in);
RefTensors BatchNormUpdateReference(const runtime::NodeDesc& desc, const RefTensors& in);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_REFERENCE_INTERNAL_H_
