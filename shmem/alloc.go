package shmem

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"ibverbx/internal/collective"
)

// Alloc allocates a zeroed block for n elements on every PE, at the same place of its heap, aligned
// to 64 bytes. It is collective and ends in a barrier. If PEs ask for different sizes, all get the
// same [ErrMismatch], which says what each asked for. If there is no room, all get [ErrNoMemory].
// Neither error has an effect, and the PEs can go on.
func Alloc[T Element](ctx context.Context, pe *PE, n int) (Sym[T], error) {
	const op = "alloc"
	if err := pe.enter(op); err != nil {
		return Sym[T]{}, err
	}
	defer pe.collective.Unlock()
	off, err := pe.alloc(ctx, op, request{n: n, size: collective.SizeOf[T]()})
	if err != nil {
		return Sym[T]{}, err
	}
	return Sym[T]{off: off, n: n}, nil
}

// Free frees a block of [Alloc] on all PEs. It is collective, and completes all earlier calls of
// the PEs. PEs that free different blocks all get ErrMismatch; anything but a whole block is
// verbs.ErrInvalid.
func Free[T Element](ctx context.Context, pe *PE, s Sym[T]) error {
	const op = "free"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	return pe.freeBlock(ctx, op, request{n: s.n, size: collective.SizeOf[T](), off: s.off})
}

// request is one PE's call of Alloc or Free.
type request struct {
	n, size int    // elements, and bytes of each
	off     uint64 // Free: the block's offset
}

// requestBytes is the length of an encoded request.
const requestBytes = 24

// append encodes the request.
func (r request) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(r.n))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.size))
	return binary.LittleEndian.AppendUint64(b, r.off)
}

// parseRequest decodes a request.
func parseRequest(b []byte) request {
	return request{
		n: int(binary.LittleEndian.Uint64(b)), size: int(binary.LittleEndian.Uint64(b[8:])),
		off: binary.LittleEndian.Uint64(b[16:]),
	}
}

// bytes returns the size of the block; r.n must be between 0 and the size of the heap.
func (r request) bytes() uint64 { return uint64(r.n) * uint64(r.size) }

func (r request) String() string {
	s := fmt.Sprintf("%d elements of %d bytes", r.n, r.size)
	if r.off != 0 {
		s += fmt.Sprintf(" at offset %d", r.off)
	}
	return s
}

// alloc is Alloc with collective held.
func (p *PE) alloc(ctx context.Context, op string, r request) (uint64, error) {
	if err := p.agree(ctx, op, kindAlloc, r); err != nil {
		return 0, err
	}
	if r.n < 0 {
		return 0, invalid(op, "n %d: must not be negative", r.n)
	}
	if uint64(r.n) > p.blocks.size {
		return 0, opError(op, fmt.Errorf("%w: %v wanted, %d bytes are all", ErrNoMemory, r, p.blocks.size))
	}
	off, err := p.blocks.alloc(r.bytes())
	if err != nil {
		return 0, opError(op, err)
	}
	p.updateUsage()
	clear(p.heap[off : off+r.bytes()])
	return off, p.barrier(ctx, op)
}

// freeBlock is Free with collective held.
func (p *PE) freeBlock(ctx context.Context, op string, r request) error {
	if err := p.checkInStep(ctx, op); err != nil {
		return err
	}
	if err := p.quiet(ctx, op); err != nil {
		return p.explain(op, err) // this PE has not entered the call, and may make it again
	}
	if err := p.agree(ctx, op, kindFree, r); err != nil {
		return err
	}
	if r.n < 0 || uint64(r.n) > p.blocks.size || !p.blocks.holds(r.off, r.bytes()) {
		return invalid(op, "s: %d elements of %d bytes at offset %d: no such block: it was freed, or is "+
			"part of one", r.n, r.size, r.off)
	}
	p.blocks.release(r.off)
	p.updateUsage()
	return nil
}

// agree exchanges what the PEs ask for, and fails unless it is the same.
func (p *PE) agree(ctx context.Context, op string, kind kind, r request) error {
	mine := r.append(make([]byte, 0, requestBytes))
	all := make([]byte, requestBytes*len(p.peers))
	a := gatherOf(op, kind, all, mine)
	if err := p.world.carryOut(ctx, &a); err != nil {
		return err
	}
	same := true
	asked := make([]request, len(p.peers))
	for i := range asked {
		asked[i] = parseRequest(all[requestBytes*i:])
		same = same && asked[i] == asked[0]
	}
	if same {
		return nil
	}
	return opError(op, fmt.Errorf("%w: %s", ErrMismatch, whoAsked(asked)))
}

// whoAsked lists what each PE asked for, in the order of the PEs; it cuts a long list.
func whoAsked(asked []request) string {
	const most = 8
	var groups []string
	listed := make(map[request]bool)
	for i, r := range asked {
		if listed[r] {
			continue
		}
		listed[r] = true
		if len(listed) > most {
			groups = append(groups, "and others")
			break
		}
		var who []string
		for j := i; j < len(asked); j++ {
			if asked[j] != r {
				continue
			}
			if len(who) == most {
				who = append(who, "...")
				break
			}
			who = append(who, fmt.Sprint(j))
		}
		groups = append(groups, fmt.Sprintf("PE %s asked for %v", strings.Join(who, ", "), r))
	}
	return strings.Join(groups, "; ")
}
