package sim

import "ibverbx/test/internal/lab"

// Columns of events beside those of the moods: worlds whose rails die, and those in which a peer
// breaks the rules, too.
const (
	railsDie = 3 + iota
	railsDieHostile
)

// events are what happens, and how often in each mood: calm, faulty, hostile, and where rails die.
var events = []lab.Kind[*end]{
	{Name: "step", Often: []int{400, 400, 400, 420, 420},
		Do: func(e *end) { e.w.Steps(1 + e.w.Rng.IntN(8)) }},
	{Name: "post send", Often: []int{160, 160, 160, 170, 170},
		Do: func(e *end) { e.postSends(1 + e.w.Rng.IntN(4)) }},
	{Name: "post recv", Often: []int{130, 130, 130, 140, 140},
		Do: func(e *end) { e.postRecvs(1 + e.w.Rng.IntN(3)) }},
	{Name: "burst", Often: []int{3, 3, 3, 3, 3}, Do: (*end).burst},
	{Name: "poll", Often: []int{180, 180, 180, 230, 230}, Do: func(e *end) { e.cq.poll() }},
	{Name: "look", Often: []int{8, 8, 8, 8, 8}, Do: (*end).look},
	{Name: "slow", Often: []int{12, 8, 5, 8, 8}, Do: func(e *end) { e.w.slow(e) }},
	{Name: "strike", Often: []int{0, 14, 4, 36, 36}, Do: func(e *end) { e.w.strike(e) }},
	{Name: "heal", Often: []int{12, 14, 10, 12, 12}, Do: func(e *end) { e.w.Heal() }},
	{Name: "reset", Often: []int{5, 10, 10, 2, 2}, Do: (*end).reset},
	{Name: "connect", Often: []int{40, 40, 40, 40, 40}, Do: func(e *end) { e.w.reconnect(e.conn) }},
	{Name: "renew", Often: []int{3, 8, 8, 8, 8}, Do: func(e *end) { e.w.renew(e.conn) }},
	{Name: "drain", Often: []int{3, 5, 3, 2, 2}, Do: (*end).drain},
	{Name: "close", Often: []int{1, 3, 2, 1, 1}, Do: (*end).close},
	{Name: "break rules", Often: []int{0, 0, 14, 0, 12}, Do: func(e *end) { e.w.breakRules(e) }},
	{Name: "replay", Often: []int{3, 4, 10, 3, 3}, Do: func(e *end) { e.w.replay(e) }},
}

// renew resets both ends and connects them again. What was closed is made anew.
func (w *world) renew(c *conn) {
	for _, e := range c.ends {
		if e.state != closed {
			e.reset()
		}
	}
	w.reconnect(c)
	w.replace(c)
}
