//go:build 386 || arm || mips || mipsle

package verbs

// This module needs a 64-bit platform: it keeps lengths and addresses in int and uint64 without
// checks. Everything in the module imports this package, so a build for a 32-bit platform stops at
// this line and says why.
var _ = this_module_needs_a_64_bit_platform
