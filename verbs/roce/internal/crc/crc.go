package crc

import "hash/crc32"

// Run runs bytes through a register, and returns what is in it then.
func Run(r uint32, p []byte) uint32 {
	r, p = fold(r, p)
	if len(p) == 0 {
		return r
	}
	return ^crc32.Update(^r, crc32.IEEETable, p)
}
