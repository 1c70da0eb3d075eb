//go:build 386 || arm || mips || mipsle

package verbs

// RDMA on a machine of 32 bits is nobody's: lengths and addresses are counted in int and uint64
// here without looking. Everything in the module imports this package, so a build for such a
// machine stops at this line, and says why.
var _ = this_module_needs_a_64_bit_platform
