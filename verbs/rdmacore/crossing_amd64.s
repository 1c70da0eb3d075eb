//go:build linux && !purego

#include "textflag.h"
#include "go_asm.h"

// cross calls the C function of a crossing, whose address is in DI. The runtime calls it as C does:
// on the thread's system stack, which is aligned to 16 bytes before the call, with BP and SP to be
// kept. The frame of 16 bytes, the saved BP and the return address keep the alignment.
TEXT cross<>(SB), NOSPLIT, $16-0
	MOVQ DI, 8(SP)
	MOVQ crossing_fn(DI), AX
	MOVQ crossing_args+16(DI), DX
	MOVQ crossing_args+8(DI), SI
	MOVQ crossing_args+0(DI), DI
	CALL AX
	MOVQ 8(SP), DI
	MOVQ AX, crossing_result(DI)
	XORL AX, AX // cgocall returns it; nobody looks
	RET

// The address of cross itself: a Go function value of it would be that of a wrapper.
GLOBL ·crossAddr(SB), NOPTR|RODATA, $8
DATA ·crossAddr(SB)/8, $cross<>(SB)
