// All time steps of an LSTM, or of its gradient, by one launch: for 16-bit layers whose recurrent weights one
// multiprocessor's registers hold. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_LSTM_SEQUENCE_H_
#define AMPD_ENGINE_BACKEND_CUDA_LSTM_SEQUENCE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/recurrent.h"
#include "engine/core/dtype.h"

namespace ampd::cuda {

// Addresses of lstm's tensors; null where an optional one is absent. No peepholes.
template <typename T>
struct LstmSequenceTensors {
  const int32_t* lengths;
  const float *b_ih, *b_hh;  // both or neither
  const T* weights;          // [4 hidden, hidden]
  const float* projected;    // the inputs' part of the gates [batch, time, 4 hidden]
  const T* h0;
  const float* c0;
  T *y, *h_n;
  float* c_n;
  T *gates, *cells;
};

// Of lstm_grad's; its states before are not among them.
template <typename T>
struct LstmSequenceGradTensors {
  const int32_t* lengths;
  const T *dy, *dh_n;
  const float* dc_n;
  const T *weights, *gates, *cells;
  const float* c0;
  T *dgates, *dh0;
  float* dc0;
};

// Whether the two below take a layer without peepholes in `dtype` on the context's device.
bool TakesLstmSequence(DType dtype, const recurrent::Sequence& sequence, const Context& context);

// T: Half or BFloat16. A sample's bits depend on nothing but its own rows and the parameters.
template <typename T>
absl::Status RunLstmSequence(const recurrent::Launcher& launcher, const recurrent::Sequence& sequence,
                             const LstmSequenceTensors<T>& tensors);
template <typename T>
absl::Status RunLstmSequenceGrad(const recurrent::Launcher& launcher, const recurrent::Sequence& sequence,
                                 const LstmSequenceGradTensors<T>& tensors);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_LSTM_SEQUENCE_H_
