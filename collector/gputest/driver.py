"""The CUDA driver's own interface through ctypes: memory outside torch, and a kernel that needs no compiler.

It owns the handful of calls that the tests plant faults with. Nothing here is imported by a worker
without such a fault.
"""

import ctypes

LIBRARY = "libcuda.so.1"
WAIT_EQUAL = 1  # CU_STREAM_WAIT_VALUE_EQ


class DriverError(RuntimeError):
    """A call that did not return 0: name is the function's, code the CUresult."""

    def __init__(self, name, code, text):
        super().__init__("%s: %d %s" % (name, code, text))
        self.name = name
        self.code = code


class Driver:
    """libcuda, initialised. Raises OSError where the library is missing, DriverError where cuInit fails."""

    def __init__(self, library=LIBRARY):
        self.lib = ctypes.CDLL(library)
        self.call("cuInit", ctypes.c_uint(0))

    def text(self, code):
        """The driver's name and words for a result."""
        words = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            out = ctypes.c_char_p()
            if getattr(self.lib, name)(code, ctypes.byref(out)) == 0 and out.value:
                words.append(out.value.decode("ascii", "replace"))
        return ": ".join(words) or "unknown result"

    def call(self, name, *args):
        """Calls a driver function. Raises DriverError for any result but 0."""
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise DriverError(name, code, self.text(code))

    def use_device(self, index):
        """Makes a GPU's primary context, which torch shares, current on this thread."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size):
        """Takes so many bytes of the current context's GPU, which torch does not know of, and returns the address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def wait_value(self, stream, address, value):
        """Has a stream wait, without a kernel that spins, until the 32-bit word at that address, which the device can read, is value."""
        self.call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_uint32(value), ctypes.c_uint(WAIT_EQUAL))

    def launch(self, ptx, kernel, argument):
        """Compiles PTX text in the driver, runs one thread of it with one 64-bit argument, and waits for the end."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.encode("ascii")))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(kernel.encode("ascii")))
        value = ctypes.c_uint64(argument)
        values = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p))
        one, none = ctypes.c_uint(1), ctypes.c_void_p()
        self.call("cuLaunchKernel", function, one, one, one, one, one, one, ctypes.c_uint(0), none, values, none)
        self.call("cuCtxSynchronize")
