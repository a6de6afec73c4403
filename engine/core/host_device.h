// AMPD_HOST_DEVICE before a function makes it callable from a GPU's code too, where a compiler for GPUs reads it: such
// functions are the one definition that every backend uses.
#ifndef AMPD_ENGINE_CORE_HOST_DEVICE_H_
#define AMPD_ENGINE_CORE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define AMPD_HOST_DEVICE __host__ __device__
#else
#define AMPD_HOST_DEVICE
#endif

#endif  // AMPD_ENGINE_CORE_HOST_DEVICE_H_
