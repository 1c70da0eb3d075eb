package job

import (
	"slices"

	"ibverbx/rendezvous"
)

// partLen is how many bytes of values a message carries; longer ones come in several messages. So
// no message holds up a slow link for long, and verdicts and signs of life pass between them.
const partLen = 64 << 10

// maxMaxValue is the largest Config.MaxValue.
const maxMaxValue = 1 << 28

// parts calls send with the parts of a value in turn; more says whether another follows.
func parts(value []byte, send func(part []byte, more bool) error) error {
	for len(value) > partLen {
		if err := send(value[:partLen], true); err != nil {
			return err
		}
		value = value[partLen:]
	}
	return send(value, false)
}

// assembly is a value that arrives in parts.
type assembly struct {
	data []byte
	size int // of all parts, even of those that were not kept
}

// add adds a part. For a value that is longer than most it keeps only the size.
func (a *assembly) add(part []byte, most int) {
	switch a.size += len(part); {
	case a.size > most:
		a.data = nil
	case a.size == len(part):
		a.data = part
	default:
		a.data = append(a.data, part...)
	}
}

// rowCost is what a row costs in a message beside its bytes, as text of JSON.
const rowCost = 8

// encodeRows encodes all contributions to a collective call.
func encodeRows(seq uint64, all [][]byte) (frames []rendezvous.Frame, err error) {
	for first, at := 0, 0; first < len(all); {
		m := rows{Seq: seq, First: first}
		for room := partLen; room > 0 && first < len(all); {
			row := all[first][at:]
			if m.More = len(row) > room; m.More {
				row = row[:room]
				at += room
			} else {
				first, at = first+1, 0
			}
			m.Data = append(m.Data, row)
			room -= len(row) + rowCost
		}
		f, err := rendezvous.Encode(kindRows, m)
		if err != nil {
			return nil, err
		}
		frames = append(frames, f)
	}
	return frames, nil
}

// listLen is how many processes a message lists, however long the names of their hosts are.
const listLen = 128

// encodeList encodes the list of all processes.
func encodeList(all []Process) (frames []rendezvous.Frame) {
	for part := range slices.Chunk(all, listLen) {
		frames = append(frames, encode(kindReady, part))
	}
	return frames
}

// all returns the rows of a complete collective call.
func (g *gathering) all() [][]byte {
	all := make([][]byte, len(g.rows))
	for i := range all {
		all[i] = g.rows[i].data
	}
	return all
}

// take adds a message of rows to a collective call, and reports whether it is complete.
func (g *gathering) take(m *rows) (complete, ok bool) {
	if m.Seq != g.seq || m.First != g.got || len(m.Data) == 0 || len(m.Data) > len(g.rows)-g.got {
		return false, false
	}
	for i, part := range m.Data {
		row := &g.rows[g.got]
		if row.add(part, maxMaxValue); row.size > maxMaxValue {
			return false, false
		}
		if !m.More || i < len(m.Data)-1 {
			g.got++
		}
	}
	return g.got == len(g.rows), true
}
