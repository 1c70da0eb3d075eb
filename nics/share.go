package nics

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/shm"
)

// Group is processes that all connect with each other: those of a *job.Job, or the two ends of a
// conversation, a *[rendezvous.Conn].
type Group interface {
	Route
	// AllGather passes mine to all processes, and returns what each has passed, in the order of
	// their ranks; without a method Rank a group has two ends, and mine comes first. All call it.
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)
}

// ReachingAll is [Host.Reaching] for the NICs that reach all processes of a group; all of them call
// it. Each offers shared memory first, unless its configuration asks for other NICs, and then its
// NICs. The former is taken if all offer it and each reaches each other one. All hear the same
// answers, so all take the same. A NIC of shared memory reaches this host only; if the provider
// [Shm] is named, and a process is not reached, that is an error.
func (h *Host) ReachingAll(ctx context.Context, g Group) ([]verbs.Device, error) {
	return prefixed(h.reachingAll(ctx, g, ""))
}

// reachingAll is ReachingAll without the package's name in its errors. If refused is not empty,
// this end has that reason against shared memory.
func (h *Host) reachingAll(ctx context.Context, g Group, refused string) (devices []verbs.Device, err error) {
	own, mine := h.offer(g, refused)
	_, named := h.Provider().(*shm.Provider)
	if own == nil && !named { // so an error comes before the others wait
		if devices, err = h.reaching(g); err != nil {
			return nil, err
		}
	}
	why, err := share(ctx, g, own, mine)
	if why != "" {
		h.cfg.Logger.Debug("ibverbx: no shared memory", "because", why)
	}
	switch {
	case err != nil:
		return nil, err
	case named && why != "":
		return nil, fmt.Errorf("%w: no shared memory: %s", verbs.ErrUnreachable, why)
	case named:
		return h.reaching(g)
	case why == "":
		h.logShared(g)
		return []verbs.Device{own}, nil
	case why == otherHost:
		h.logOwn(g, "")
	default:
		h.logOwn(g, why)
	}
	if own != nil {
		devices, err = h.reaching(g)
	}
	return devices, err
}

// offer is what a process tells the others of its group about shared memory, which it prefers to
// its NICs: first the NIC that it offers, and then whether it reaches those of the others.
type offer struct {
	NIC  *verbs.GID `json:"nic,omitempty"`
	Why  string     `json:"why,omitempty"`  // why it offers none, or reaches not all
	Host string     `json:"host,omitempty"` // the same in all containers of a host; empty if unknown
}

// share returns why not all processes of a group take NICs of shared memory; empty if all do.
func share(ctx context.Context, g Group, own *shm.Device, mine offer) (why string, err error) {
	all, err := gather(ctx, g, mine)
	if err != nil {
		return "", err
	}
	said := hosts(all)
	known := !said[""]
	switch why = refusalOf(g, all); {
	case why == otherHost && known && len(said) == 1:
		return otherNetwork, nil
	case why == "" && known && len(said) > 1: // all have a directory, or one address for several hosts
		return otherHost, nil
	case why != "":
		return why, nil
	}
	all, err = gather(ctx, g, offer{Why: unreached(own, all)})
	return refusalOf(g, all), err
}

// otherHost is the usual reason why memory is not shared. It is not worth a word.
const otherHost = "a process is on another host"

// otherNetwork takes its place for containers of one host.
const otherNetwork = "processes of this host have networks of their own: " + nameDirectory

const nameDirectory = "name a directory that they share, with " + envShmDir + " or Config.Shm.Dir"

// hosts returns what processes say of their hosts, which may be nothing.
func hosts(all []offer) map[string]bool {
	said := map[string]bool{}
	for _, o := range all {
		said[o.Host] = true
	}
	return said
}

// hostID returns what is the same in all containers of a host; empty if the host does not say.
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(boot)
	return hex.EncodeToString(sum[:8])
}

// offer returns this process's offer to the other end of a connection, and the NIC of shared memory
// that is part of it; nil if there is a reason against it.
func (h *Host) offer(r Route, refused string) (*shm.Device, offer) {
	mine := offer{Host: hostID()}
	var own *shm.Device
	_, named := h.Provider().(*shm.Provider)
	switch {
	case refused != "":
		mine.Why = refused
	case h.asked && !named:
		mine.Why = "NICs of provider " + h.Name() + " were asked for"
	case h.cfg.Shm.Dir == "" && !named && !sameHost(r):
		mine.Why = otherHost
	default:
		var err error
		if own, mine.NIC, err = h.memory(); err != nil {
			mine.Why = err.Error()
		}
	}
	return own, mine
}

// memory returns the NIC of shared memory, which it makes if there is none, and the NIC's GID. If
// the provider was named, that is its first NIC.
func (h *Host) memory() (*shm.Device, *verbs.GID, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end {
		return nil, nil, verbs.ErrClosed
	}
	p, named := h.Provider().(*shm.Provider)
	switch {
	case named:
	case h.shared == nil:
		var err error
		if p, err = openMemory(h.cfg.Shm); err != nil {
			return nil, nil, err
		}
		h.shared = p
	default:
		p = h.shared
	}
	own := p.Device(0)
	entry, err := own.QueryGID(1, 0)
	if err != nil {
		return nil, nil, err
	}
	return own, &entry.GID, nil
}

// gather passes one value to all processes of a group, and returns those of all.
func gather(ctx context.Context, g Group, mine offer) ([]offer, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	texts, err := g.AllGather(ctx, text)
	if err != nil {
		return nil, err
	}
	all := make([]offer, len(texts))
	for i := range texts {
		if err := json.Unmarshal(texts[i], &all[i]); err != nil {
			return nil, fmt.Errorf("%w: an offer of shared memory: %w", rendezvous.ErrProtocol, err)
		}
	}
	return all, nil
}

// maxWhy is the most characters kept of a reason from another process.
const maxWhy = 300

// refusalOf returns the first reason that a process of a group has given, and which process that
// is; empty if none has.
func refusalOf(g Group, all []offer) string {
	_, ranked := g.(interface{ Rank() int })
	for i, o := range all {
		switch o.Why {
		case "":
			continue
		case otherHost:
			return otherHost
		}
		why := cmp.Or(peertext.Line(o.Why, maxWhy), "no reason is given")
		switch {
		case ranked:
			return fmt.Sprintf("rank %d: %s", i, why)
		case i == 0:
			return "this end: " + why
		}
		return "the other end: " + why
	}
	return ""
}

// unreached returns why a NIC does not reach one of those that are offered; empty if it reaches
// all.
func unreached(own *shm.Device, all []offer) string {
	for _, o := range all {
		if own == nil || o.NIC == nil {
			return "a process offers none"
		}
		if err := own.CheckPath(1, *o.NIC); err != nil {
			return err.Error() + "; " + nameDirectory
		}
	}
	return ""
}
