package bench

import "ibverbx/cmd/ibverbx/internal/layers"

// Failures of a cell.
var (
	// ErrVerify: what arrived is not what was sent, or completions came out of order or in the
	// wrong number.
	ErrVerify = layers.ErrVerify
	// ErrStalled: nothing completed for so long that the round was given up.
	ErrStalled = layers.ErrStalled
	// errFailed: requests completed unsuccessfully; the virtual queue pair says why.
	errFailed = layers.ErrRequests
)
