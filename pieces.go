package ibverbx

import (
	"math"

	"ibverbx/verbs"
)

// pieceList is the scatter list of a send request, copied since it outlives the post, and how far
// fragmentation has come in it. Pieces are stored apart from their keys: the copy of a piece then
// has no pointer, which would cost a write barrier, and a run of pieces looks up its key once. If
// all have the same keys, as is usual, the request has them (sendReq.localKeys) and there are no
// runs.
//
// Invariant: runs[i] covers the pieces from runs[i-1].end, or from 0, up to its own end, which is
// greater; the last one ends at len(pieces).
type pieceList struct {
	pieces []piece
	runs   []keyRun
	// The next fragment begins in pieces[next], which is in runs[run], offset bytes from its
	// beginning.
	next, run int
	offset    uint64
}

// piece is a piece of local memory.
type piece struct {
	addr, length uint64
}

// keyRun is a run of pieces with the same keys.
type keyRun struct {
	keys *Keys // noKeys for empty pieces without keys
	end  int
}

// set copies a list of two pieces or more. keys are those of all of them; nil if they differ.
func (l *pieceList) set(sgl []Segment, keys *Keys) {
	if cap(l.pieces) < len(sgl) {
		l.pieces = make([]piece, len(sgl))
	}
	pieces := l.pieces[:len(sgl)]
	l.pieces, l.runs = pieces, l.runs[:0]
	l.next, l.run, l.offset = 0, 0, 0
	for i := range pieces {
		s, p := &sgl[i], &pieces[i]
		p.addr, p.length = s.Addr, s.Length
	}
	if keys == nil {
		l.findRuns(sgl)
	}
}

// findRuns records the keys of each run of pieces.
func (l *pieceList) findRuns(sgl []Segment) {
	for i := range sgl {
		k := sgl[i].Keys
		if i+1 < len(sgl) && k == sgl[i+1].Keys {
			continue
		}
		if k == nil {
			k = &noKeys
		}
		l.runs = append(l.runs, keyRun{k, i + 1})
	}
}

// all writes all non-empty pieces with a device's keys into sgl, which has room. keys is what set
// was given. It returns how many pieces it wrote.
func (l *pieceList) all(sgl []verbs.SGE, keys *Keys, device uint8) (count int) {
	if keys != nil {
		return listPieces(sgl, l.pieces, keys.at(device))
	}
	begin := 0
	for i := range l.runs {
		r := &l.runs[i]
		count += listPieces(sgl[count:], l.pieces[begin:r.end], r.keys.at(device))
		begin = r.end
	}
	return count
}

// listPieces writes the non-empty pieces with one key, and returns how many.
func listPieces(sgl []verbs.SGE, pieces []piece, key uint32) (count int) {
	for i := range pieces {
		if p := &pieces[i]; p.length != 0 {
			sgl[count] = verbs.SGE{Addr: p.addr, Length: uint32(p.length), LKey: key}
			count++
		}
	}
	return count
}

// part writes the pieces of size bytes from offset into sgl, which has room for them: a fragment
// that take has cut earlier. keys is what set was given. It returns how many pieces it wrote.
func (l *pieceList) part(sgl []verbs.SGE, keys *Keys, device uint8, offset, size uint64) (count int) {
	run := 0
	for i := 0; size != 0; i++ {
		p, k := &l.pieces[i], keys
		if k == nil {
			if i == l.runs[run].end {
				run++
			}
			k = l.runs[run].keys
		}
		if offset >= p.length {
			offset -= p.length
			continue
		}
		n := min(size, p.length-offset, math.MaxUint32)
		sgl[count] = verbs.SGE{Addr: p.addr + offset, Length: uint32(n), LKey: k.at(device)}
		count++
		size -= n
		offset = 0
	}
	return count
}

// take writes the pieces of the next fragment into sgl: as many as it has room for, at most size
// bytes. keys is what set was given. It returns how many pieces and bytes it wrote.
func (l *pieceList) take(sgl []verbs.SGE, keys *Keys, device uint8, size uint64) (count int, got uint64) {
	for got < size && count < len(sgl) {
		p, k := &l.pieces[l.next], keys
		if k == nil {
			k = l.runs[l.run].keys
		}
		n := min(size-got, p.length-l.offset, math.MaxUint32)
		if n != 0 {
			sgl[count] = verbs.SGE{Addr: p.addr + l.offset, Length: uint32(n), LKey: k.at(device)}
			count++
			got += n
		}
		if l.offset += n; l.offset == p.length {
			l.next, l.offset = l.next+1, 0
			if keys == nil && l.next == l.runs[l.run].end {
				l.run++
			}
		}
	}
	return count, got
}
