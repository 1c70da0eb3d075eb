//go:build linux && !purego

#include "textflag.h"
#include "go_asm.h"

// cross calls the C function of a crossing, whose address is in R0. The runtime calls it as C does:
// on the thread's system stack, which is aligned to 16 bytes, with R19 to R29 and RSP to be kept.
// The assembler saves R30 in the frame, which keeps the alignment, and R29 below it.
TEXT cross<>(SB), NOSPLIT, $16-0
	MOVD R0, 16(RSP)
	MOVD crossing_fn(R0), R9
	MOVD crossing_args+16(R0), R2
	MOVD crossing_args+8(R0), R1
	MOVD crossing_args+0(R0), R0
	SUB  $16, RSP // the assembler keeps R29 at -8(RSP), where C writes
	BL   (R9)
	ADD  $16, RSP
	MOVD 16(RSP), R9
	MOVD R0, crossing_result(R9)
	MOVD $0, R0 // cgocall returns it; nobody looks
	RET

// The address of cross itself: a Go function value of it would be that of a wrapper.
GLOBL ·crossAddr(SB), NOPTR|RODATA, $8
DATA ·crossAddr(SB)/8, $cross<>(SB)
