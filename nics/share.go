package nics

import (
	"context"
	"encoding/json"
	"fmt"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/shm"
)

// Group is processes that all connect with each other: those of a *job.Job, or the two ends of a
// conversation, a *[rendezvous.Conn].
type Group interface {
	Route
	// AllGather passes mine to all processes, and returns what each has passed. All call it.
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)
}

// ReachingAll is [Host.Reaching] for the NICs that reach all processes of a group; all of them call
// it. Where it would be sockets at all of them, it is a NIC of shared memory instead, if each of
// them reaches that of each other. Such a NIC reaches this host only.
func (h *Host) ReachingAll(ctx context.Context, g Group) ([]verbs.Device, error) {
	return prefixed(h.reachingAll(ctx, g))
}

func (h *Host) reachingAll(ctx context.Context, g Group) (devices []verbs.Device, err error) {
	own, mine := h.sharedWith(g)
	if own == nil { // so an error comes before the others wait
		if devices, err = h.reaching(g); err != nil {
			return nil, err
		}
	}
	why, err := share(ctx, g, own, mine)
	switch {
	case err != nil:
		return nil, err
	case why == "":
		h.logInstead(g, &h.sharing, "sharing memory with processes of this host (provider shm)")
		return []verbs.Device{own}, nil
	case why == otherHost:
		h.logSockets(g, "")
	default:
		h.logSockets(g, "; no shared memory: "+why)
	}
	if own != nil {
		devices, err = h.reaching(g)
	}
	return devices, err
}

// sharing is what a process tells the others of its group: first the NIC of shared memory that it
// offers, and then whether it reaches those of the others.
type sharing struct {
	NIC *verbs.GID `json:"nic,omitempty"`
	Why string     `json:"why,omitempty"` // why it offers none, or reaches not all
}

// share returns why not all processes of a group take NICs of shared memory; empty if all do.
func share(ctx context.Context, g Group, own *shm.Device, mine sharing) (why string, err error) {
	all, err := gather(ctx, g, mine)
	if why = refusalOf(all); err != nil || why != "" {
		return why, err
	}
	all, err = gather(ctx, g, sharing{Why: unreached(own, all)})
	return refusalOf(all), err
}

// otherHost is the usual reason why memory is not shared. It is not worth a word.
const otherHost = "a process is on another host"

// sharedWith returns the NIC of shared memory for processes of this host. It is nil if NICs were
// asked for, if there are real ones, or if this host has none.
func (h *Host) sharedWith(r Route) (*shm.Device, sharing) {
	switch {
	case h.instead == nil || h.named != nil:
		return nil, sharing{Why: "a process has NICs of " + h.Name()}
	case h.cfg.Shm.Dir == "" && !sameHost(r):
		return nil, sharing{Why: otherHost}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared == nil && !h.end {
		p, err := shm.Open(h.cfg.Shm)
		if err != nil {
			return nil, sharing{Why: err.Error()}
		}
		h.shared = p
	}
	if h.end {
		return nil, sharing{Why: verbs.ErrClosed.Error()}
	}
	own := h.shared.Device(0)
	entry, err := own.QueryGID(1, 0)
	if err != nil {
		return nil, sharing{Why: err.Error()}
	}
	return own, sharing{NIC: &entry.GID}
}

// gather passes one value to all processes of a group, and returns those of all.
func gather(ctx context.Context, g Group, mine sharing) ([]sharing, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	texts, err := g.AllGather(ctx, text)
	if err != nil {
		return nil, err
	}
	all := make([]sharing, len(texts))
	for i := range texts {
		if err := json.Unmarshal(texts[i], &all[i]); err != nil {
			return nil, fmt.Errorf("%w: an offer of shared memory: %w", rendezvous.ErrProtocol, err)
		}
	}
	return all, nil
}

// maxWhy is the most characters kept of a reason from another process.
const maxWhy = 300

// refusalOf returns the first reason that a process has given; empty if none has.
func refusalOf(all []sharing) string {
	for _, s := range all {
		if s.Why != "" {
			return peertext.Line(s.Why, maxWhy)
		}
	}
	return ""
}

// unreached returns why a NIC does not reach one of those that are offered; empty if it reaches
// all.
func unreached(own *shm.Device, all []sharing) string {
	for _, s := range all {
		if own == nil || s.NIC == nil {
			return "a process offers none"
		}
		if err := own.CheckPath(1, *s.NIC); err != nil {
			return err.Error()
		}
	}
	return ""
}
