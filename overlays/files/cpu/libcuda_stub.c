/*
 * Stand-in for the CUDA driver library on hosts without a GPU.
 *
 * The engine's binary packages (sgl_kernel, torch_memory_saver, deep_gemm, ...) are linked
 * against libcuda.so.1, which only comes with NVIDIA's driver. On a CPU host they have to
 * load, but nothing in them is called. Every function here answers CUDA_ERROR_NO_DEVICE,
 * so whoever does call one learns that there is no GPU.
 *
 * The functions are the undefined `cu*` symbols of the packages in the profile
 * sglang-0.5.11-cpu (`nm -D --undefined-only`), plus cuInit.
 *
 * Build (the libcuda.so.1 beside this file is the result, x86-64):
 *   gcc -Os -s -shared -fPIC -nostdlib -Wl,-soname,libcuda.so.1 -o libcuda.so.1 libcuda_stub.c
 */
#define CUDA_ERROR_NO_DEVICE 100
#define STUB(name) \
    int name(void) { return CUDA_ERROR_NO_DEVICE; }

STUB(cuCtxFromGreenCtx)
STUB(cuCtxGetCurrent)
STUB(cuCtxGetDevice)
STUB(cuCtxPopCurrent_v2)
STUB(cuCtxPushCurrent_v2)
STUB(cuCtxSetCurrent)
STUB(cuDevResourceGenerateDesc)
STUB(cuDevSmResourceSplitByCount)
STUB(cuDeviceGet)
STUB(cuDeviceGetAttribute)
STUB(cuDeviceGetDevResource)
STUB(cuDevicePrimaryCtxGetState)
STUB(cuDevicePrimaryCtxRetain)
STUB(cuDriverGetVersion)
STUB(cuFuncGetAttribute)
STUB(cuFuncSetAttribute)
STUB(cuFuncSetCacheConfig)
STUB(cuGetErrorName)
STUB(cuGetErrorString)
STUB(cuGetProcAddress_v2)
STUB(cuGreenCtxCreate)
STUB(cuGreenCtxDestroy)
STUB(cuGreenCtxGetDevResource)
STUB(cuInit)
STUB(cuLaunchCooperativeKernel)
STUB(cuLaunchKernel)
STUB(cuLaunchKernelEx)
STUB(cuLinkAddData_v2)
STUB(cuLinkComplete)
STUB(cuLinkCreate_v2)
STUB(cuMemAddressFree)
STUB(cuMemAddressReserve)
STUB(cuMemCreate)
STUB(cuMemGetAddressRange_v2)
STUB(cuMemMap)
STUB(cuMemRelease)
STUB(cuMemRetainAllocationHandle)
STUB(cuMemSetAccess)
STUB(cuMemUnmap)
STUB(cuModuleGetFunction)
STUB(cuModuleLoad)
STUB(cuModuleLoadData)
STUB(cuModuleLoadDataEx)
STUB(cuModuleUnload)
STUB(cuOccupancyMaxActiveBlocksPerMultiprocessor)
STUB(cuPointerGetAttribute)
STUB(cuStreamCreate)
STUB(cuTensorMapEncodeTiled)
