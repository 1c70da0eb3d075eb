package job

import "fmt"

// values has the values that processes have put, and the gets that wait for further ones. The
// server's mu guards it.
type values struct {
	byKey map[string]*stored
	room  int // in bytes, for keys, values and entries
	waits map[string][]waiter
}

// stored is a value. Answers in the queues of guests share it, so it takes room until they are
// written, even if another has replaced it.
type stored struct {
	data     []byte
	readers  int // answers with it that are queued or being written
	replaced bool
}

// entryCost is the room that an entry takes beside its key and its value, in bytes: about its real
// memory.
const entryCost = 128

// waiter is a get that waits for a value.
type waiter struct {
	g  *guest
	id uint64
}

func newValues(room int) values {
	return values{byKey: map[string]*stored{}, room: room, waits: map[string][]waiter{}}
}

// put sets a value of some size, answers, and answers the gets that have waited for it.
func (vs *values) put(g *guest, r *request, size, most int) {
	old, there := vs.byKey[r.Key]
	need := len(r.Data)
	switch {
	case !there:
		need += len(r.Key) + entryCost
	case old.readers == 0:
		need -= len(old.data)
	}
	switch {
	case size > most:
		g.send(kindAnswer, answer{ID: r.ID,
			Full: fmt.Sprintf("%d bytes: at most %d (Config.MaxValue of rank 0)", size, most)})
		return
	case need > vs.room:
		g.send(kindAnswer, answer{ID: r.ID, Full: fmt.Sprintf("%d bytes: there is room for %d "+
			"(Config.MaxStore of rank 0)", need, vs.room)})
		return
	}
	vs.room -= need
	if there {
		old.replaced = true
	}
	value := &stored{data: r.Data}
	vs.byKey[r.Key] = value
	g.send(kindAnswer, answer{ID: r.ID})
	for _, w := range vs.waits[r.Key] {
		w.g.waiting--
		w.g.answer(w.id, value)
	}
	delete(vs.waits, r.Key)
}

// get answers with a value, now or once it is there.
func (vs *values) get(g *guest, r *request) {
	switch v, there := vs.byKey[r.Key]; {
	case there:
		g.answer(r.ID, v)
	case g.waiting == maxWaiting:
		g.send(kindAnswer, answer{ID: r.ID, Full: fmt.Sprintf("%d gets of this process wait already",
			maxWaiting)})
	default:
		g.waiting++
		vs.waits[r.Key] = append(vs.waits[r.Key], waiter{g, r.ID})
	}
}

// forget ends a get that has not been answered.
func (vs *values) forget(g *guest, r *request) {
	waits := vs.waits[r.Key]
	for i, w := range waits {
		if w.g == g && w.id == r.ID {
			g.waiting--
			if waits = append(waits[:i], waits[i+1:]...); len(waits) == 0 {
				delete(vs.waits, r.Key)
			} else {
				vs.waits[r.Key] = waits
			}
			return
		}
	}
}

// answer answers a get with the value. The server's mu is held.
func (g *guest) answer(id uint64, value *stored) {
	if !g.ended {
		value.readers++
		g.queue(message{kind: kindAnswer, id: id, value: value})
	}
}

// written records that an answer with a value was written.
func (vs *values) written(value *stored) {
	if value.readers--; value.replaced && value.readers == 0 {
		vs.room += len(value.data)
	}
}
