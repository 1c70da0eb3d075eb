/* What a crossing may not do to its caller. */
#include "standin.h"

/* The processor's frame pointer. */
static inline uintptr_t frame_pointer(void)
{
	uintptr_t fp;
#if defined(__aarch64__)
	__asm__ volatile("mov %0, x29" : "=r"(fp));
#else
	__asm__ volatile("mov %%rbp, %0" : "=r"(fp));
#endif
	return fp;
}

/* scribble fills its frame, from the caller's stack pointer down. */
static uintptr_t __attribute__((noinline)) scribble(uintptr_t a, uintptr_t b, uintptr_t c)
{
	volatile uintptr_t frame[32];

	for (int i = 0; i < 32; i++)
		frame[i] = 0x5c71bb1e;
	return frame[a] - frame[b] + c;
}

/*
 * standin_keeps_frame calls cross, the Go side's way into C, as the runtime does, with a crossing whose function fills its frame. It
 * returns 1 if the frame pointer is what it was afterwards and the crossing has its result, 0 otherwise.
 */
int standin_keeps_frame(int (*cross)(void *))
{
	struct {
		uintptr_t (*fn)(uintptr_t, uintptr_t, uintptr_t);
		uintptr_t args[3], result;
	} crossing = { scribble, { 1, 2, 42 }, 0 };
	uintptr_t before = frame_pointer();

	cross(&crossing);
	return frame_pointer() == before && crossing.result == 42;
}
