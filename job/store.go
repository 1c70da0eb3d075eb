package job

import "fmt"

// store is the key-value store of a job, and who waits for what. The server's mu guards it.
type store struct {
	values map[string][]byte
	room   int // in bytes, for keys and values
	waits  map[string][]waiter
}

// waiter is a get that waits for a value.
type waiter struct {
	g  *guest
	id uint64
}

func newStore(room int) store {
	return store{values: map[string][]byte{}, room: room, waits: map[string][]waiter{}}
}

// put sets a value, answers, and answers those who have waited for it.
func (s *store) put(g *guest, r *request, most int) {
	old, there := s.values[r.Key]
	need := len(r.Data) - len(old)
	if !there {
		need += len(r.Key)
	}
	switch {
	case len(r.Data) > most:
		g.send(kindAnswer, answer{ID: r.ID,
			Full: fmt.Sprintf("%d bytes: at most %d (Config.MaxValue of rank 0)",
				len(r.Data), most)})
		return
	case need > s.room:
		g.send(kindAnswer, answer{ID: r.ID, Full: fmt.Sprintf("%d bytes: there is room for %d "+
			"(Config.MaxStore of rank 0)", need, s.room)})
		return
	}
	s.room -= need
	s.values[r.Key] = r.Data
	g.send(kindAnswer, answer{ID: r.ID})
	for _, w := range s.waits[r.Key] {
		w.g.waiting--
		w.g.send(kindAnswer, answer{ID: w.id, Data: r.Data})
	}
	delete(s.waits, r.Key)
}

// get answers with a value, now or once it is there.
func (s *store) get(g *guest, r *request) {
	switch v, there := s.values[r.Key]; {
	case there:
		g.send(kindAnswer, answer{ID: r.ID, Data: v})
	case g.waiting == maxWaiting:
		g.send(kindAnswer, answer{ID: r.ID, Full: fmt.Sprintf("%d gets of this process wait already",
			maxWaiting)})
	default:
		g.waiting++
		s.waits[r.Key] = append(s.waits[r.Key], waiter{g, r.ID})
	}
}

// forget ends a get that has not been answered.
func (s *store) forget(g *guest, r *request) {
	waits := s.waits[r.Key]
	for i, w := range waits {
		if w.g == g && w.id == r.ID {
			g.waiting--
			if waits = append(waits[:i], waits[i+1:]...); len(waits) == 0 {
				delete(s.waits, r.Key)
			} else {
				s.waits[r.Key] = waits
			}
			return
		}
	}
}
