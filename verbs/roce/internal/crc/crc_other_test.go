//go:build !amd64 || purego

package crc

// assembly is empty: there is none.
func assembly() []way { return nil }
