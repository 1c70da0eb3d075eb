package layers

import "unsafe" //nolint:depguard // Go has no other way to read atomically what a NIC writes

// The words behind the slots of a target, by their offset from Config.Tail, and how many bytes they
// take together.
const (
	wordCounter = 0 // of atomics
	wordFlag    = 8 // says which message was put last
	TailSize    = 16
)

// word is the word at an offset of b. It must be aligned. This is the only place of the package
// that needs package unsafe.
func word(b []byte, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[at : at+8])))
}
