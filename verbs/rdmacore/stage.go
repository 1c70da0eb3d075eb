//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"syscall"

	"ibverbx/verbs"
)

// postBatch is the most requests that one call into C passes. As with pollBatch, the crossing is a
// small part of a full batch.
const postBatch = 64

// stage is the array in which requests of one direction are written for C to read. It is linked
// once, and each request has its own scatter list. The driver copies what it needs during the call.
type stage[T any, P request[T]] struct {
	wrs    []T
	sges   []ibvSGE // maxSGE for each request, at least one
	bad    *uintptr // C stores the request that it refused here
	post   crossing // the queue pair, the first request, bad
	maxSGE int

	doubtful bool // the driver called a request invalid: see qp.why
}

// request is a work request in C's layout.
type request[T any] interface {
	*T
	links() (next, sgList *uintptr)
}

func (w *ibvSendWR) links() (next, sgList *uintptr) { return &w.next, &w.sgList }
func (w *ibvRecvWR) links() (next, sgList *uintptr) { return &w.next, &w.sgList }

// stageSize returns the bytes that a stage of n requests takes.
func stageSize[T any](n, maxSGE int) int {
	return carved[T](n) + carved[ibvSGE](n*max(maxSGE, 1)) + carved[uintptr](1)
}

func (s *stage[T, P]) carve(m *mapping, n, maxSGE int, fn, qp uintptr) {
	s.maxSGE = maxSGE
	s.wrs, s.sges, s.bad = carve[T](m, n), carve[ibvSGE](m, n*max(maxSGE, 1)), &carve[uintptr](m, 1)[0]
	s.post = crossing{fn: fn, args: [3]uintptr{qp, address(&s.wrs[0]), address(s.bad)}}
	for i := range s.wrs {
		next, sgList := P(&s.wrs[i]).links()
		*sgList = address(&s.list(i)[0])
		if i+1 < n {
			*next = address(&s.wrs[i+1])
		}
	}
}

// list returns the scatter list of a request.
func (s *stage[T, P]) list(i int) []ibvSGE { return s.sges[i*max(s.maxSGE, 1):] }

// fill writes the scatter list of a request and returns its length.
func (s *stage[T, P]) fill(i int, sgl []verbs.SGE) int32 {
	list := s.list(i)
	for j := range sgl {
		list[j] = ibvSGE{addr: sgl[j].Addr, length: sgl[j].Length, lkey: sgl[j].LKey}
	}
	return int32(len(sgl))
}

// handOver calls C with the first n requests. It returns how many the driver accepted, and why it
// refused the next.
func (s *stage[T, P]) handOver(n int) (accepted int, errno syscall.Errno) {
	last, _ := P(&s.wrs[n-1]).links()
	next := *last
	*last, *s.bad = 0, 0
	errno = result(s.post.call())
	*last = next
	switch {
	case errno == 0 && *s.bad == 0:
		return n, 0
	case errno == 0:
		errno = syscall.ENOMEM // siw names the request, but returns no error
	}
	s.doubtful = errno == syscall.EINVAL
	return indexOf(s.wrs[:n], *s.bad), errno
}

// indexOf returns the index of the request that C refused; earlier ones were accepted. If a driver
// fails without naming one (librxe, when the kernel refuses to look at the queue), the queue pair
// is unusable, and none of them will complete.
func indexOf[T any](wrs []T, bad uintptr) int {
	if i := (bad - address(&wrs[0])) / uintptr(sizeOf[T]()); bad != 0 && i < uintptr(len(wrs)) {
		return int(i)
	}
	return 0
}
