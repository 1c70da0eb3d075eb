package bench

import (
	"slices"

	"ibverbx"
)

// Loss says why queue pairs of a NIC were taken out of service, and how many times.
type Loss struct {
	End    string `json:"end"` // "a" or "b"; those of another process are not among them
	Device string `json:"device"`
	Cause  string `json:"cause"`
	Times  int    `json:"times"`
}

// maxLosses bounds the causes that are told apart at an end. Further ones are left out.
const maxLosses = 32

// noteLoss takes in that an end has lost a queue pair, for [ibverbx.Config].OnRail. Each end may be
// played by a goroutine of its own.
func (c *pair) noteLoss(end int, e ibverbx.RailEvent) {
	if !e.Down {
		return
	}
	list := &c.losses[end]
	l := Loss{End: endName(end), Device: e.Device, Cause: e.Cause.Error()}
	at := slices.IndexFunc(*list, func(of Loss) bool { return of.Device == l.Device && of.Cause == l.Cause })
	if at < 0 && len(*list) < maxLosses {
		at = len(*list)
		*list = append(*list, l)
	}
	if at >= 0 {
		(*list)[at].Times++
	}
}

// lossesSince is what was lost of a column since it had lost before.
func (c *pair) lossesSince(before [2][]Loss) (since []Loss) {
	for end := range c.losses {
		for i, l := range c.losses[end] { // a list only grows, so places are kept
			if i < len(before[end]) {
				l.Times -= before[end][i].Times
			}
			if l.Times > 0 {
				since = append(since, l)
			}
		}
	}
	return since
}

// lossesSoFar is a copy of what was lost so far.
func (c *pair) lossesSoFar() (before [2][]Loss) {
	for end := range c.losses {
		before[end] = slices.Clone(c.losses[end])
	}
	return before
}
