//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// The registers, in both functions: SI is where the rest of the bytes begins and CX how many they
// are; DX is foldTable. Every block of 16 bytes has a lane, a quarter of Z or a half of Y; its
// earlier half is the lower quadword.
//
// To fold a lane is to multiply its halves by the two constants of a distance ($0x00 the lower ones,
// $0x11 the upper ones) and to add both products to the block that is so far behind it.

// REDUCE folds the blocks of 16 bytes that are left onto X0, and reduces it to the register: the
// first half of the 128 bits is folded to where 96 bits remain, the first quarter of what was to
// where 64 do, and of these Barrett's method takes the multiple of the polynomial that is in them.
// VZEROUPPER is there because instructions of SSE are slow while the upper parts of the vector
// registers are in use.
#define REDUCE(ret) \
	VZEROUPPER                          \
	VMOVDQU    const_by128(DX), X8      \
	CMPQ       CX, $16                  \
	JB         reduce                   \
block:                                  \
	VPCLMULQDQ $0x00, X8, X0, X4        \
	VPCLMULQDQ $0x11, X8, X0, X0        \
	VPXOR      (SI), X4, X4             \
	VPXOR      X4, X0, X0               \
	ADDQ       $16, SI                  \
	SUBQ       $16, CX                  \
	CMPQ       CX, $16                  \
	JAE        block                    \
reduce:                                 \
	VMOVDQU    const_narrow(DX), X8     \
	VMOVDQU    const_barrett(DX), X9    \
	VPXOR      X5, X5, X5               \
	VPCLMULQDQ $0x00, X8, X0, X4        \
	VPSRLDQ    $8, X0, X0               \
	VPXOR      X4, X0, X0               \
	VPBLENDD   $1, X0, X5, X4           \
	VPSRLDQ    $4, X0, X0               \
	VPCLMULQDQ $0x10, X8, X4, X4        \
	VPXOR      X4, X0, X0               \
	VPBLENDD   $1, X0, X5, X4           \
	VPCLMULQDQ $0x00, X9, X4, X4        \
	VPBLENDD   $1, X4, X5, X4           \
	VPCLMULQDQ $0x10, X9, X4, X4        \
	VPXOR      X4, X0, X0               \
	VPEXTRD    $1, X0, AX               \
	MOVL       AX, ret                  \
	RET

// func fold512(r uint32, p []byte) uint32
TEXT ·fold512(SB), NOSPLIT, $0-36
	MOVQ  p_base+8(FP), SI
	MOVQ  p_len+16(FP), CX
	LEAQ  ·foldTable(SB), DX
	MOVL  r+0(FP), AX
	VMOVD AX, X4
	VPXORQ (SI), Z4, Z0 // the register goes into the first four bytes
	CMPQ  CX, $256
	JB    one

	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	ADDQ  $256, SI
	SUBQ  $256, CX
	CMPQ  CX, $256
	JB    join
	VBROADCASTI32X4 const_by2048(DX), Z8

	PCALIGN $32
four:
	VPCLMULQDQ $0x00, Z8, Z0, Z4
	VPCLMULQDQ $0x00, Z8, Z1, Z5
	VPCLMULQDQ $0x00, Z8, Z2, Z6
	VPCLMULQDQ $0x00, Z8, Z3, Z7
	VPCLMULQDQ $0x11, Z8, Z0, Z0
	VPCLMULQDQ $0x11, Z8, Z1, Z1
	VPCLMULQDQ $0x11, Z8, Z2, Z2
	VPCLMULQDQ $0x11, Z8, Z3, Z3
	VPTERNLOGQ $0x96, (SI), Z4, Z0 // exclusive or of all three
	VPTERNLOGQ $0x96, 64(SI), Z5, Z1
	VPTERNLOGQ $0x96, 128(SI), Z6, Z2
	VPTERNLOGQ $0x96, 192(SI), Z7, Z3
	ADDQ  $256, SI
	SUBQ  $256, CX
	CMPQ  CX, $256
	JAE   four

join: // the first three are folded onto the last
	VBROADCASTI32X4 const_by1536(DX), Z8
	VBROADCASTI32X4 const_by1024(DX), Z9
	VBROADCASTI32X4 const_by512(DX), Z10
	VPCLMULQDQ $0x00, Z8, Z0, Z4
	VPCLMULQDQ $0x00, Z9, Z1, Z5
	VPCLMULQDQ $0x00, Z10, Z2, Z6
	VPCLMULQDQ $0x11, Z8, Z0, Z0
	VPCLMULQDQ $0x11, Z9, Z1, Z1
	VPCLMULQDQ $0x11, Z10, Z2, Z2
	VPTERNLOGQ $0x96, Z3, Z4, Z0
	VPTERNLOGQ $0x96, Z5, Z6, Z1
	VPTERNLOGQ $0x96, Z2, Z1, Z0
	JMP   next

one:
	ADDQ  $64, SI
	SUBQ  $64, CX
	VBROADCASTI32X4 const_by512(DX), Z10

next:
	CMPQ  CX, $64
	JB    lanes
	VPCLMULQDQ $0x00, Z10, Z0, Z4
	VPCLMULQDQ $0x11, Z10, Z0, Z0
	VPTERNLOGQ $0x96, (SI), Z4, Z0
	ADDQ  $64, SI
	SUBQ  $64, CX
	JMP   next

lanes: // each is folded by its own distance to the last, which is folded by none
	VMOVDQU64  const_by384(DX), Z8
	VPCLMULQDQ $0x00, Z8, Z0, Z4
	VPCLMULQDQ $0x11, Z8, Z0, Z0
	VPXORQ     Z4, Z0, Z0
	VEXTRACTI64X4 $1, Z0, Y4
	VPXOR      Y4, Y0, Y0
	VEXTRACTI128 $1, Y0, X4
	VPXOR      X4, X0, X0
	REDUCE(ret+32(FP))

// func fold256(r uint32, p []byte) uint32
TEXT ·fold256(SB), NOSPLIT, $0-36
	MOVQ  p_base+8(FP), SI
	MOVQ  p_len+16(FP), CX
	LEAQ  ·foldTable(SB), DX
	MOVL  r+0(FP), AX
	VMOVD AX, X4
	VPXOR (SI), Y4, Y0
	CMPQ  CX, $128
	JB    one

	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	ADDQ  $128, SI
	SUBQ  $128, CX
	CMPQ  CX, $128
	JB    join
	VBROADCASTI128 const_by1024(DX), Y8

	PCALIGN $32
four:
	VPCLMULQDQ $0x00, Y8, Y0, Y4
	VPCLMULQDQ $0x00, Y8, Y1, Y5
	VPCLMULQDQ $0x00, Y8, Y2, Y6
	VPCLMULQDQ $0x00, Y8, Y3, Y7
	VPCLMULQDQ $0x11, Y8, Y0, Y0
	VPCLMULQDQ $0x11, Y8, Y1, Y1
	VPCLMULQDQ $0x11, Y8, Y2, Y2
	VPCLMULQDQ $0x11, Y8, Y3, Y3
	VPXOR (SI), Y4, Y4
	VPXOR 32(SI), Y5, Y5
	VPXOR 64(SI), Y6, Y6
	VPXOR 96(SI), Y7, Y7
	VPXOR Y4, Y0, Y0
	VPXOR Y5, Y1, Y1
	VPXOR Y6, Y2, Y2
	VPXOR Y7, Y3, Y3
	ADDQ  $128, SI
	SUBQ  $128, CX
	CMPQ  CX, $128
	JAE   four

join: // the first three are folded onto the last
	VBROADCASTI128 const_by768(DX), Y8
	VBROADCASTI128 const_by512(DX), Y9
	VBROADCASTI128 const_by256(DX), Y10
	VPCLMULQDQ $0x00, Y8, Y0, Y4
	VPCLMULQDQ $0x00, Y9, Y1, Y5
	VPCLMULQDQ $0x00, Y10, Y2, Y6
	VPCLMULQDQ $0x11, Y8, Y0, Y0
	VPCLMULQDQ $0x11, Y9, Y1, Y1
	VPCLMULQDQ $0x11, Y10, Y2, Y2
	VPXOR Y3, Y4, Y4
	VPXOR Y4, Y0, Y0
	VPXOR Y5, Y1, Y1
	VPXOR Y6, Y2, Y2
	VPXOR Y1, Y0, Y0
	VPXOR Y2, Y0, Y0
	JMP   next

one:
	ADDQ  $32, SI
	SUBQ  $32, CX
	VBROADCASTI128 const_by256(DX), Y10

next:
	CMPQ  CX, $32
	JB    lanes
	VPCLMULQDQ $0x00, Y10, Y0, Y4
	VPCLMULQDQ $0x11, Y10, Y0, Y0
	VPXOR (SI), Y4, Y4
	VPXOR Y4, Y0, Y0
	ADDQ  $32, SI
	SUBQ  $32, CX
	JMP   next

lanes: // the first is folded onto the second, which is folded by nothing
	VMOVDQU    const_by128(DX), Y8
	VPCLMULQDQ $0x00, Y8, Y0, Y4
	VPCLMULQDQ $0x11, Y8, Y0, Y0
	VPXOR      Y4, Y0, Y0
	VEXTRACTI128 $1, Y0, X4
	VPXOR      X4, X0, X0
	REDUCE(ret+32(FP))

// func extendedFeatures() (ecx uint32)
TEXT ·extendedFeatures(SB), NOSPLIT, $0-4
	MOVL $7, AX
	XORL CX, CX
	CPUID
	MOVL CX, ecx+0(FP)
	RET
