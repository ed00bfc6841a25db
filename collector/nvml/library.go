//go:build cgo

package nvml

import (
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"lowtide/collector/status"
)

const hasBindings = true

// initialPIDNamespace is PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h).
const initialPIDNamespace = "pid:[4026531836]"

func openCards(path string) cards {
	var options []nvml.LibraryOption
	if path != "" {
		options = append(options, nvml.WithLibraryPath(path))
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return newSession(nvml.New(options...), err != nil || namespace != initialPIDNamespace)
}

// failedInit says why the library cannot be used.
func failedInit(ret nvml.Return) failure {
	text := map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND: "no libnvidia-ml.so.1; hint: it comes with the NVIDIA driver, in a container with the capability `utility`",
		nvml.ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded; hint: modprobe nvidia, or dmesg says why it does not load",
		nvml.ERROR_NO_PERMISSION:     "the NVIDIA driver may not be asked; hint: read and write on /dev/nvidiactl and /dev/nvidia*, under systemd DeviceAllow",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA library and the loaded driver are of different versions; hint: the driver was upgraded, load the new " +
			"kernel module or reboot, in a container start it again",
		nvml.ERROR_UNKNOWN: "NVML does not open: unknown error; hint: in a container this follows `systemctl daemon-reload` on the host, start it again; " +
			"else see dmesg",
	}[ret]
	if text == "" {
		text = "NVML does not open: " + words(ret)
	}
	return failure{kindOf(ret), text}
}

// kindOf is the status that a return code means.
func kindOf(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return status.Absent
	case nvml.ERROR_NO_PERMISSION:
		return status.Denied
	case nvml.ERROR_TIMEOUT:
		return status.Timeout
	default:
		if unsupported(ret) {
			return status.Unsupported
		}
		return status.Lost
	}
}

// unsupported tells a card, driver or library that does not know a question from one that failed to answer.
func unsupported(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	}
	return false
}

// gone is true of what no other question to the same card can mend.
func gone(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return true
	}
	return false
}

// words puts a return code into words; the library's own are used for what is rare.
func words(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return "the GPU is lost; hint: it fell off the bus or cannot be reached, see dmesg"
	case nvml.ERROR_RESET_REQUIRED:
		return "the GPU needs a reset; hint: drain it, then nvidia-smi --gpu-reset"
	case nvml.ERROR_NO_PERMISSION:
		return "not permitted"
	case nvml.ERROR_UNKNOWN:
		return "unknown error of the driver; hint: see dmesg"
	}
	if unsupported(ret) {
		return "not supported"
	}
	return fmt.Sprintf("%v (NVML error %d)", ret, int(ret))
}
