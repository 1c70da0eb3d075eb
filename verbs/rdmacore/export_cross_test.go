//go:build linux && (amd64 || arm64) && !purego

package rdmacore

// CrossAddr is the address of cross.
func CrossAddr() uintptr { return crossAddr }
