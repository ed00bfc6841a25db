import ctypes
import io
import json
import os
import unittest
from contextlib import redirect_stderr, redirect_stdout

import fault
from driver import Driver, DriverError


class FakeLibrary:
    """Answers driver calls by name: 0, or what it is told."""

    def __init__(self, **codes):
        self.codes = codes
        self.called = []

    def __getattr__(self, name):
        def call(*args):
            if name == "cuGetErrorName":
                args[1]._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS"
                return 0
            if name == "cuGetErrorString":
                args[1]._obj.value = b"an illegal memory access was encountered"
                return 0
            self.called.append(name)
            if name == "cuLaunchKernel":
                address = ctypes.cast(args[9][0], ctypes.POINTER(ctypes.c_uint64)).contents.value
                self.called.append(hex(address))
            return self.codes.get(name, 0)

        return call


def driver(library):
    made = Driver.__new__(Driver)
    made.lib = library
    return made


class FaultTest(unittest.TestCase):
    def run_fault(self, library):
        said, fell = io.StringIO(), io.StringIO()
        kept = fault.Driver
        fault.Driver = lambda path: driver(library)
        try:
            with redirect_stdout(said), redirect_stderr(fell):
                code = fault.main(["--wait-seconds", "0"])
        finally:
            fault.Driver = kept
        return code, said.getvalue(), fell.getvalue()

    def test_the_error_of_the_kernel_is_printed_with_the_pid(self):
        library = FakeLibrary(cuCtxSynchronize=700)
        code, said, _ = self.run_fault(library)
        self.assertEqual(code, 1)
        planted = said.split("\n")[1]
        self.assertEqual(json.loads(planted)["planted"], "illegal access")
        self.assertEqual(said.replace(planted + "\n", ""), "pid %d\nwriting to 0xdead0000: cuCtxSynchronize: 700 CUDA_ERROR_ILLEGAL_ADDRESS: "
                               "an illegal memory access was encountered\n" % os.getpid())
        self.assertEqual(library.called, ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuModuleLoadData",
                                          "cuModuleGetFunction", "cuLaunchKernel", "0xdead0000", "cuCtxSynchronize"])

    def test_a_kernel_that_never_ran_is_no_fault(self):
        self.assertEqual(self.run_fault(FakeLibrary(cuModuleLoadData=218))[0], 2)
        self.assertEqual(self.run_fault(FakeLibrary(cuDevicePrimaryCtxRetain=2))[0], 2)

    def test_a_write_that_went_through_is_told(self):
        code, _, fell = self.run_fault(FakeLibrary())
        self.assertEqual(code, 3)
        self.assertIn("went through", fell)

    def test_without_a_driver_it_says_so(self):
        fell = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(fell):
            self.assertEqual(fault.main(["--library", "/nonexistent/libcuda.so.1"]), 2)
        self.assertRegex(fell.getvalue(), r"(?s)^error: open the CUDA driver: .*hint: ")

    def test_a_failed_allocation_names_the_result(self):
        with self.assertRaisesRegex(DriverError, "^cuMemAlloc_v2: 2 ") as caught:
            driver(FakeLibrary(cuMemAlloc_v2=2)).allocate(1 << 20)
        self.assertEqual((caught.exception.name, caught.exception.code), ("cuMemAlloc_v2", 2))


if __name__ == "__main__":
    unittest.main()
