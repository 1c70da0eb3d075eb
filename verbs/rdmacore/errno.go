//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"errors"
	"fmt"
	"syscall"

	"ibverbx/verbs"
)

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
