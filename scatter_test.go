package ibverbx

import (
	"fmt"
	"slices"
	"testing"

	"ibverbx/verbs"
)

// Buffers of 100, 200 and 150 bytes and fragments of 150, on queue pairs that take one piece a work
// request: a fragment ends where its buffer ends, so there are four. With two pieces a work request
// a fragment crosses from one buffer into the next, and there are three.
func TestFragmentsOfAScatterListByPiecesAWorkRequest(t *testing.T) {
	keys := NewKeys(map[verbs.DeviceID]uint32{0: 1})
	const a, b, c, remote = 0x1000, 0x2000, 0x3000, 0x10000
	type fragment struct {
		remote uint64
		pieces []verbs.SGE
	}
	piece := func(addr uint64, n uint32) verbs.SGE { return verbs.SGE{Addr: addr, Length: n, LKey: 1} }
	cut := map[int][]fragment{
		1: {{remote, []verbs.SGE{piece(a, 100)}}, {remote + 100, []verbs.SGE{piece(b, 150)}},
			{remote + 250, []verbs.SGE{piece(b+150, 50)}}, {remote + 300, []verbs.SGE{piece(c, 150)}}},
		2: {{remote, []verbs.SGE{piece(a, 100), piece(b, 50)}}, {remote + 150, []verbs.SGE{piece(b+50, 150)}},
			{remote + 300, []verbs.SGE{piece(c, 150)}}},
	}
	for width, want := range cut {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
			for _, scheme := range []Scheme{DQPLB, Spray} {
				t.Run(fmt.Sprintf("%d, %v, %v", width, op, scheme), func(t *testing.T) {
					r := newRecorded(t, 1, 4, Config{Scheme: scheme, FragmentSize: 150})
					for _, rl := range r.send.rails.data {
						rl.maxSGE = width
					}
					if _, err := r.PostSend(SendWR{ID: 7, Opcode: op, Flags: verbs.SendSignaled,
						SGL: []Segment{{Addr: a, Length: 100, Keys: keys}, {Addr: b, Length: 200, Keys: keys},
							{Addr: c, Length: 150, Keys: keys}},
						Remote: RemoteSegment{Addr: remote, Length: 450, Keys: keys}}); err != nil {
						t.Fatal(err)
					}
					var got []fragment
					for _, qp := range r.qps { // fragment i goes out on rail i
						for _, wr := range qp.posts {
							got = append(got, fragment{wr.RemoteAddr, wr.SGL})
						}
					}
					if !slices.EqualFunc(got, want, func(x, y fragment) bool {
						return x.remote == y.remote && slices.Equal(x.pieces, y.pieces)
					}) {
						t.Errorf("got  %x\nwant %x", got, want)
					}
				})
			}
		}
	}
}
