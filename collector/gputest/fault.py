"""A process that writes to an address nobody mapped on the GPU: the driver reports Xid 31 (MMU fault) for it.

    python3 fault.py [--device 0] [--wait-seconds 3] [--address 0xdead0000]

Needs the driver (libcuda.so.1) and nothing else: no torch, no compiler. Prints its pid, then the CUDA error.
Exit codes: 1 the GPU refused the write, as planned; 2 no driver, no GPU, or the kernel never ran; 3 the write went through.
"""

import argparse
import json
import os
import sys
import time

from driver import LIBRARY, Driver, DriverError

PTX = """
.version 6.0
.target sm_60
.address_size 64

.visible .entry wild_store(.param .u64 where)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [where];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def main(argv=None):
    """Runs the fault and returns the exit code."""
    parser = argparse.ArgumentParser(description="Write to an illegal GPU address (Xid 31).")
    parser.add_argument("--device", type=int, default=0, help="GPU index")
    parser.add_argument("--wait-seconds", type=float, default=3.0, help="hold the context so long before the write, so that monitors see the process")
    parser.add_argument("--address", type=lambda text: int(text, 0), default=0xdead0000, help="where to write")
    parser.add_argument("--library", default=LIBRARY, help="the driver's library")
    options = parser.parse_args(argv)
    print("pid %d" % os.getpid(), flush=True)
    try:
        driver = Driver(options.library)
        driver.use_device(options.device)
    except (OSError, AttributeError, DriverError) as error:
        print("error: open the CUDA driver: %s" % error, file=sys.stderr)
        print("hint: run this where %s is installed and a GPU is visible" % LIBRARY, file=sys.stderr)
        return 2
    time.sleep(max(0.0, options.wait_seconds))
    print(json.dumps({"planted": "illegal access", "time": time.time()}), flush=True)
    try:
        driver.launch(PTX, "wild_store", options.address)
    except DriverError as error:
        print("writing to 0x%x: %s" % (options.address, error), flush=True)
        # Only the kernel itself can hit the address; before it ran, something else was wrong.
        return 1 if error.name == "cuCtxSynchronize" else 2
    print("error: writing to 0x%x went through" % options.address, file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
