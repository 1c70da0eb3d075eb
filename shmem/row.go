package shmem

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// A row is what a PE passes to Config.Exchange: everything that the others must know. Each of them
// decodes the head and only the card for itself, since with n PEs there are n² cards.
//
//	head    JSON, and a line feed
//	table   for each PE four bytes, little-endian: where its card ends, from the first card on
//	cards   for each PE the card of the endpoint to it, JSON; none for the PE itself

// rowHead is the head of a row.
type rowHead struct {
	Version  int              `json:"version"` // of rows, the heap's layout and the protocols in it
	PE       int              `json:"pe"`
	PEs      int              `json:"pes"`
	HeapSize int              `json:"heap_size"`
	Heap     ibverbx.RemoteMR `json:"heap"`
}

// rowVersion is the version that this package speaks. Version 1 was a single JSON object; PEs of
// version 2 do not publish how many calls they have entered, those of version 3 carry out
// collective calls by other algorithms, and those of version 4 compare neither Close nor
// the types of elements.
const rowVersion = 5

// row is a row that is being written.
type row struct {
	head         rowHead
	table, cards []byte
	err          error // the first error
}

func newRow(head rowHead) *row { return &row{head: head} }

// add adds the card for the next PE, or none.
func (r *row) add(c *transport.Card) {
	if c != nil && r.err == nil {
		var b []byte
		b, r.err = json.Marshal(c)
		r.cards = append(r.cards, b...)
	}
	r.table = binary.LittleEndian.AppendUint32(r.table, uint32(len(r.cards)))
}

func (r *row) bytes() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	b, err := json.Marshal(&r.head)
	b = append(b, '\n')
	return append(append(b, r.table...), r.cards...), err
}

// parseHead decodes the head of a row, and returns the rest.
func parseHead(row []byte) (*rowHead, []byte, error) {
	text, table, _ := bytes.Cut(row, []byte{'\n'})
	head := &rowHead{}
	if err := json.Unmarshal(text, head); err != nil {
		return nil, nil, fmt.Errorf("%w: %.200s", verbs.ErrInvalid, err.Error())
	}
	return head, table, nil
}

// parseCard decodes the card for one of n PEs from the part of a row after its head.
func parseCard(table []byte, n, pe int, card *transport.Card) error {
	if len(table) < 4*n {
		return fmt.Errorf("%w: it ends within its table", verbs.ErrInvalid)
	}
	cards := table[4*n:]
	end := uint64(binary.LittleEndian.Uint32(table[4*pe:]))
	start := uint64(0)
	if pe > 0 {
		start = uint64(binary.LittleEndian.Uint32(table[4*pe-4:]))
	}
	if start >= end || end > uint64(len(cards)) {
		return fmt.Errorf("%w: it has no endpoint for PE %d", verbs.ErrInvalid, pe)
	}
	if err := json.Unmarshal(cards[start:end], card); err != nil {
		return fmt.Errorf("%w: %.200s", verbs.ErrInvalid, err.Error())
	}
	return nil
}
