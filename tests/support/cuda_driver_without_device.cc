// A CUDA driver that finds no device, but loads any code: cuDNN builds whole plans with it for devices that are not
// there. Only functions that these plans need do anything; the rest must be there.
extern "C" {

using Result = int;
constexpr Result kSuccess = 0, kNoDevice = 100;  // of cuda.h's CUresult

Result cuInit(unsigned) { return kNoDevice; }
Result cuDeviceGetCount(int* count) {
  *count = 0;
  return kNoDevice;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "no device";
  return kSuccess;
}
// Handles are any address but null.
Result cuLibraryLoadData(void** library) {
  static char handle;
  *library = &handle;
  return kSuccess;
}
Result cuLibraryGetKernel(void** kernel) {
  static char handle;
  *kernel = &handle;
  return kSuccess;
}
Result cuLibraryUnload(void*) { return kSuccess; }

#define AMPD_NEVER_CALLED(name) \
  Result name() { return kNoDevice; }
AMPD_NEVER_CALLED(cuCtxGetCurrent)
AMPD_NEVER_CALLED(cuCtxGetLimit)
AMPD_NEVER_CALLED(cuCtxPopCurrent)
AMPD_NEVER_CALLED(cuCtxPushCurrent)
AMPD_NEVER_CALLED(cuDeviceGet)
AMPD_NEVER_CALLED(cuDriverGetVersion)
AMPD_NEVER_CALLED(cuGetErrorName)
AMPD_NEVER_CALLED(cuKernelGetAttribute)
AMPD_NEVER_CALLED(cuKernelSetAttribute)
AMPD_NEVER_CALLED(cuLaunchCooperativeKernel)
AMPD_NEVER_CALLED(cuLaunchKernel)
AMPD_NEVER_CALLED(cuLaunchKernelEx)
AMPD_NEVER_CALLED(cuLibraryLoadFromFile)
AMPD_NEVER_CALLED(cuLinkAddData)
AMPD_NEVER_CALLED(cuLinkComplete)
AMPD_NEVER_CALLED(cuLinkCreate)
AMPD_NEVER_CALLED(cuLinkDestroy)
AMPD_NEVER_CALLED(cuOccupancyMaxPotentialClusterSize)
AMPD_NEVER_CALLED(cuStreamGetCtx)
#undef AMPD_NEVER_CALLED

}  // extern "C"
