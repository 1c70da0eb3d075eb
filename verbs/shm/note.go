package shm

import (
	"encoding/binary"
	"errors"

	"ibverbx/verbs"
)

// noteKind is the kind of a message on a link.
type noteKind uint8

// A message of one byte is a bell.
const (
	noteHello     noteKind = 1 + iota // who speaks; with its page
	noteLane                          // a lane, with its memory
	noteDrop                          // the lane is not used any more
	noteArena                         // memory of the end that was dialed
	noteArenaGone                     // it is not used any more
)

// note is a message on a link.
type note struct {
	kind          noteKind
	id            uint64    // of the lane or arena
	size          uint64    // of the arena, bytes
	src, dst, psn uint32    // of a lane: the two queue pairs, and the first number
	from, to      verbs.GID // of a hello
	fd            int       // what goes with it; -1 for nothing
}

const (
	messageSize = 64
	// version is that of the messages, of the page and of lanes.
	version = 2
)

func (n *note) encode(b *[messageSize]byte) {
	b[0], b[1] = byte(n.kind), version
	binary.NativeEndian.PutUint32(b[4:], n.src)
	binary.NativeEndian.PutUint32(b[8:], n.dst)
	binary.NativeEndian.PutUint32(b[12:], n.psn)
	binary.NativeEndian.PutUint64(b[16:], n.id)
	copy(b[24:], n.from[:])
	copy(b[40:], n.to[:])
	binary.NativeEndian.PutUint64(b[56:], n.size)
}

func (n *note) decode(b []byte) error {
	if len(b) != messageSize || b[1] != version {
		return errors.New("the peer does not keep to the protocol, or has another version of it")
	}
	n.kind = noteKind(b[0])
	n.src = binary.NativeEndian.Uint32(b[4:])
	n.dst = binary.NativeEndian.Uint32(b[8:])
	n.psn = binary.NativeEndian.Uint32(b[12:])
	n.id = binary.NativeEndian.Uint64(b[16:])
	copy(n.from[:], b[24:])
	copy(n.to[:], b[40:])
	n.size = binary.NativeEndian.Uint64(b[56:])
	return nil
}
