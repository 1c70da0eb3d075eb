//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"github.com/ebitengine/purego"

	"ibverbx/verbs"
)

// call calls C. It costs twice as much as a [crossing], which the hot paths use, and an allocation,
// since SyscallN lets its arguments escape. A call that blocks occupies the goroutine's thread, but
// no core.
func call(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// result returns the errno in the int that a call returned: 0, an errno, -errno, or -1. Drivers
// return all of these.
func result(r uintptr) syscall.Errno {
	switch e := int32(r); { // the upper half of the register is undefined
	case e == -1:
		return syscall.EIO
	case e < 0:
		return syscall.Errno(-e)
	default:
		return syscall.Errno(e)
	}
}

// status calls a C function that returns an int like that, where -1 means that errno is set.
func (l *library) status(fn uintptr, args ...uintptr) syscall.Errno {
	runtime.LockOSThread() // errno belongs to the thread
	defer runtime.UnlockOSThread()
	r := call(fn, args...)
	if int32(r) == -1 {
		return l.errno()
	}
	return result(r)
}

// pointer calls a C function that returns a pointer, or NULL with errno set.
func (l *library) pointer(fn uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	*object[int32](call(l.errnoLocation)) = 0
	if p := call(fn, args...); p != 0 {
		return p, 0
	}
	return 0, l.errno()
}

// errno returns the errno of the last call on this thread, which purego does not save on Linux. A
// call that failed without an errno counts as EIO.
func (l *library) errno() syscall.Errno {
	if e := *object[int32](call(l.errnoLocation)); e != 0 {
		return syscall.Errno(e)
	}
	return syscall.EIO
}

// crossing is a call of the hot path: a C function of up to three arguments, and what it returned.
// It is a field of the object that makes the call, and is used under that object's lock.
//
// It is on the heap, as part of a queue, never on a goroutine's stack, which C must not see.
//
// Its method call has two versions: crossing_asm.go, and crossing_purego.go for builds with the tag
// purego, which by convention means no assembly.
type crossing struct {
	fn     uintptr
	args   [3]uintptr
	result uintptr
}

// callError is a failed call into C. It wraps the sentinel and the errno.
type callError struct {
	call     string // "ibv_reg_mr"
	errno    syscall.Errno
	sentinel error // an error of package verbs, or nil
}

// Error returns a text like "ibv_reg_mr: cannot allocate memory (errno 12)".
func (e *callError) Error() string {
	return fmt.Sprintf("%s: %v (errno %d)", e.call, e.errno, int(e.errno))
}

// Unwrap returns the sentinel and the errno.
func (e *callError) Unwrap() []error {
	if e.sentinel == nil {
		return []error{e.errno}
	}
	return []error{e.sentinel, e.errno}
}

// filesHint returns what to do if the process is out of descriptors.
func filesHint(err error) string {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return "each device needs some descriptors: see the limit of open files (ulimit -n)"
	}
	return ""
}

// sentinelOf returns the error of package verbs for an errno of libibverbs. EIO is not among them:
// calls on a removed NIC return it, but drivers and firmware have other reasons for it too: see
// device.callErr.
func sentinelOf(errno syscall.Errno) error {
	switch errno {
	case syscall.EINVAL, syscall.EFAULT, syscall.E2BIG, syscall.ERANGE:
		return verbs.ErrInvalid
	case syscall.ENOMEM, syscall.EAGAIN, syscall.ENOSPC:
		return verbs.ErrNoMemory
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.ENOPROTOOPT, syscall.EPROTONOSUPPORT:
		return verbs.ErrNotSupported
	case syscall.ENODEV, syscall.ENXIO:
		return verbs.ErrDeviceGone
	case syscall.EBUSY:
		return verbs.ErrBusy
	}
	return nil
}

// callErr returns the error of a failed call. detail says what to do about it, and may be empty.
func callErr(op, device string, qp uint32, call string, errno syscall.Errno, detail string) error {
	return &verbs.OpError{Op: op, Device: device, QPNum: qp, Detail: detail,
		Err: &callError{call: call, errno: errno, sentinel: sentinelOf(errno)}}
}

// callErr returns the error of a failed call on the device.
func (d *device) callErr(op string, qp uint32, call string, errno syscall.Errno, detail string) error {
	if errno == syscall.EIO && d.removed() {
		return &verbs.OpError{Op: op, Device: d.name, QPNum: qp, Detail: detail,
			Err: &callError{call: call, errno: errno, sentinel: verbs.ErrDeviceGone}}
	}
	return callErr(op, d.name, qp, call, errno, detail)
}
