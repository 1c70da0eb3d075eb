package ibverbx

import (
	"slices"
	"testing"

	"ibverbx/verbs"
)

// pieceKeys are keys that differ by region and by device.
func pieceKeys(region uint32) *Keys {
	return NewKeys(map[verbs.DeviceID]uint32{0: 10 * region, 3: 10*region + 3})
}

// A list is written with the keys of each piece, whole or cut into fragments, and empty pieces,
// which need no keys, are left out.
func TestPieceListNamesEachPieceWithItsKey(t *testing.T) {
	a, b := pieceKeys(1), pieceKeys(2)
	sge := func(addr uint64, length, key uint32) verbs.SGE {
		return verbs.SGE{Addr: addr, Length: length, LKey: key}
	}
	for _, c := range []struct {
		name string
		sgl  []Segment
		same *Keys
		// as device 3 names them, in fragments of 10 bytes and two pieces, and whole
		cut   [][]verbs.SGE
		whole []verbs.SGE
	}{
		{"one region", []Segment{{100, 4, a}, {200, 0, a}, {300, 9, a}}, a,
			[][]verbs.SGE{{sge(100, 4, 13), sge(300, 6, 13)}, {sge(306, 3, 13)}},
			[]verbs.SGE{sge(100, 4, 13), sge(300, 9, 13)}},
		{"two in turn", []Segment{{100, 15, a}, {200, 2, b}, {300, 2, a}}, nil,
			[][]verbs.SGE{{sge(100, 10, 13)}, {sge(110, 5, 13), sge(200, 2, 23)}, {sge(300, 2, 13)}},
			[]verbs.SGE{sge(100, 15, 13), sge(200, 2, 23), sge(300, 2, 13)}},
		{"runs", []Segment{{100, 3, a}, {110, 3, a}, {200, 3, b}, {210, 3, b}}, nil,
			[][]verbs.SGE{{sge(100, 3, 13), sge(110, 3, 13)}, {sge(200, 3, 23), sge(210, 3, 23)}},
			[]verbs.SGE{sge(100, 3, 13), sge(110, 3, 13), sge(200, 3, 23), sge(210, 3, 23)}},
		{"empty ones without keys", []Segment{{}, {100, 3, a}, {}, {200, 3, b}, {}}, nil,
			[][]verbs.SGE{{sge(100, 3, 13), sge(200, 3, 23)}},
			[]verbs.SGE{sge(100, 3, 13), sge(200, 3, 23)}},
		{"nothing", []Segment{{}, {}}, &noKeys, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l pieceList
			l.set([]Segment{{1, 1, b}, {2, 2, a}, {3, 3, b}, {4, 4, a}, {5, 5, b}}) // an earlier user
			keys := l.set(c.sgl)
			if keys != c.same {
				t.Errorf("keys of all: %p, want %p", keys, c.same)
			}
			left := uint64(0)
			for _, s := range c.sgl {
				left += s.Length
			}
			room := make([]verbs.SGE, 8)
			if n := l.all(room, keys, 3); !slices.Equal(room[:n], c.whole) {
				t.Errorf("whole: %v, want %v", room[:n], c.whole)
			}
			for i := 0; left != 0; i++ {
				n, got := l.take(room[:2], keys, 3, min(10, left))
				if i == len(c.cut) || !slices.Equal(room[:n], c.cut[i]) {
					t.Fatalf("fragment %d: %v, want %v", i, room[:n], c.cut)
				}
				left -= got
			}
		})
	}
}
