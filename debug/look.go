package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxAnswer is how many bytes of a process's answer are read.
const maxAnswer = 64 << 20

// lookPatience is how long one process may take to answer.
const lookPatience = 3 * time.Second

// collect gets a snapshot of each target: the number of a process of this user, or HOST:PORT where
// [Server] handles /debug/ibverbx; without targets of all processes of this user that listen. The
// error tells which have not answered.
func collect(ctx context.Context, targets []string) ([]Process, error) {
	targets, named, err := resolve(targets)
	if err != nil {
		return nil, err
	}
	got, errs := make([]*Process, len(targets)), make([]error, len(targets))
	var all sync.WaitGroup
	for i, target := range targets {
		all.Go(func() {
			p, err := get(ctx, target)
			switch {
			case err == nil:
				p.target = target
				got[i] = p
			case named || !forget(target, err):
				errs[i] = explain(target, err)
			}
		})
	}
	all.Wait()
	var list []Process
	for _, p := range got {
		if p != nil {
			list = append(list, *p)
		}
	}
	return list, errors.Join(errs...)
}

// explain says what the error of a look means.
func explain(target string, err error) error {
	_, bad := strconv.ParseUint(target, 10, 32)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not answer within %v: it is stopped, or too busy", target, lookPatience)
	case bad == nil && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)):
		return fmt.Errorf("process %s: %w: no process of this user with that number calls "+
			"debug.Server.Listen, as ibverbx perf does", target, err)
	}
	return fmt.Errorf("%s: %w", target, err)
}

// forget reports whether nobody listens at a socket, because its process was killed. It then
// removes the socket.
func forget(target string, err error) bool {
	pid, bad := strconv.Atoi(target)
	if bad != nil || !errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	if p, err := os.FindProcess(pid); err == nil && p.Signal(syscall.Signal(0)) == nil {
		return true // it may be about to listen
	}
	if dir, err := socketDir(); err == nil {
		_ = os.Remove(filepath.Join(dir, target+".sock"))
	}
	return true
}

// resolve lists the targets. named says that the user has named them.
func resolve(targets []string) (list []string, named bool, err error) {
	if len(targets) != 0 {
		return targets, true, nil
	}
	dir, err := socketDir()
	if err != nil {
		return nil, false, err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if pid, ok := strings.CutSuffix(e.Name(), ".sock"); ok {
			list = append(list, pid)
		}
	}
	return list, false, err
}

// get gets a snapshot of one target.
func get(ctx context.Context, target string) (*Process, error) {
	ctx, stop := context.WithTimeout(ctx, lookPatience)
	defer stop()
	address, transport := target, &http.Transport{DisableKeepAlives: true}
	if _, err := strconv.ParseUint(target, 10, 32); err == nil {
		dir, err := socketDir()
		if err != nil {
			return nil, err
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, target+".sock"))
		}
		address = "localhost"
	} else if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, errors.New("neither the number of a process nor HOST:PORT")
	}
	request, err := http.NewRequestWithContext(
		ctx,
		http.MethodGet,
		"http://"+address+"/debug/ibverbx",
		nil,
	)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf(
			"it refuses: %s: %s",
			response.Status,
			line(string(bytes.TrimSpace(body))),
		)
	}
	p := &Process{}
	if err := json.Unmarshal(body, p); err != nil {
		return nil, fmt.Errorf("it is no program of ibverbx: %w", err)
	}
	return p, nil
}

// Look is what is seen of several processes, between two snapshots of each.
type Look struct {
	Peers []PeerRow `json:"peers"` // the sickest first, then the fastest
	NICs  []NICRow  `json:"nics"`
	// Missing says which processes have not answered, and why.
	Missing string `json:"missing,omitempty"`
}

// PeerRow is what is seen of a connection, or of one of its rails.
type PeerRow struct {
	PID     int    `json:"pid,omitempty"`
	Target  string `json:"target,omitempty"` // what the process was asked by
	Process string `json:"process,omitempty"`
	Name    string `json:"name"` // group and peer, or the rail's device and place
	// Out and In are rates in bytes a second. In is negative where it is not known: the NIC
	// receives for a virtual queue pair without this end's processor.
	Out         float64 `json:"out_bytes_per_second"`
	In          float64 `json:"in_bytes_per_second"`
	Outstanding int     `json:"outstanding"` // fragments, or operations of an endpoint, under way
	Waiting     int     `json:"waiting"`     // requests that have found no room on the rails yet
	Lost        uint64  `json:"rails_lost"`  // since it was made
	Back        uint64  `json:"rails_back"`
	NotReady    int     `json:"receiver_not_ready"` // notifications that wait for this end's receives
	Errors      uint64  `json:"errors"`
	// Sick says what is wrong; empty for what is well.
	Sick  string    `json:"sick,omitempty"`
	Rails []PeerRow `json:"rails,omitempty"`

	sickness sickness
}

// NICRow is what is seen of a port of a NIC: by how much its counters have grown.
type NICRow struct {
	PID      int               `json:"pid"`
	Target   string            `json:"target,omitempty"`
	Device   string            `json:"device"`
	Port     int               `json:"port"`
	Grown    map[string]uint64 `json:"grown"`
	Sick     string            `json:"sick,omitempty"`
	sickness sickness
}

// compare makes a look of snapshots of each process, the first and the last of which are compared.
// Those between them show which queues stand. A process, or a peer, that is only in the last has no
// rate.
func compare(shots ...[]Process) Look {
	l := Look{Peers: []PeerRow{}, NICs: []NICRow{}}
	before, after := shots[0], shots[len(shots)-1]
	stands := queuesOf(shots)
	for i := range after {
		p := &after[i]
		at := slices.IndexFunc(before, func(b Process) bool {
			return b.target == p.target && b.PID == p.PID && b.Name == p.Name
		})
		earlier := p
		if at >= 0 {
			earlier = &before[at]
		}
		nics := compareNICs(earlier, p)
		l.NICs = append(l.NICs, nics...)
		for g := range p.Groups {
			l.Peers = append(l.Peers, compareGroup(p, earlier, &p.Groups[g], nics, stands)...)
		}
	}
	slices.SortStableFunc(l.Peers, worse)
	slices.SortStableFunc(
		l.NICs,
		func(a, b NICRow) int { return int(b.sickness) - int(a.sickness) },
	)
	return l
}

// queue is how many fragments a rail had outstanding, at the least and at the most.
type queue struct{ least, most int }

// queues has the queue of each rail, by its process, group, peer and place.
type queues map[string]queue

func queuesOf(shots [][]Process) queues {
	all := queues{}
	for _, shot := range shots {
		for i := range shot {
			p := &shot[i]
			for _, g := range p.Groups {
				for k := range g.Peers {
					for n := range g.Peers[k].QP.Rails {
						all.add(place(p, &g, &g.Peers[k], n), g.Peers[k].QP.Rails[n].Outstanding)
					}
				}
			}
		}
	}
	return all
}

func (q queues) add(at string, outstanding int) {
	was, seen := q[at]
	if !seen {
		was.least = outstanding
	}
	q[at] = queue{min(was.least, outstanding), max(was.most, outstanding)}
}

// place names rail n of a peer.
func place(p *Process, g *Group, peer *Peer, n int) string {
	return fmt.Sprintf("%s %d %q %q %d", p.target, p.PID, g.Name, key(peer), n)
}

// worse orders rows: the sickest first, then those that move most.
func worse(a, b PeerRow) int {
	if a.sickness != b.sickness {
		return int(b.sickness) - int(a.sickness)
	}
	switch x, y := a.Out+max(a.In, 0), b.Out+max(b.In, 0); {
	case x > y:
		return -1
	case x < y:
		return 1
	}
	return 0
}

// compareGroup makes a row for each peer of a group.
func compareGroup(p, earlier *Process, g *Group, nics []NICRow, stands queues) (rows []PeerRow) {
	notReady := slices.ContainsFunc(nics, func(n NICRow) bool { return n.sickness == starved })
	old := map[string]*Peer{}
	var since time.Duration
	if i := slices.IndexFunc(earlier.Groups, func(e Group) bool { return e.Name == g.Name }); i >= 0 {
		e := &earlier.Groups[i]
		since = g.At.Sub(e.At)
		for k := range e.Peers {
			old[key(&e.Peers[k])] = &e.Peers[k]
		}
	}
	for i := range g.Peers {
		now := &g.Peers[i]
		row := comparePeer(old[key(now)], now, since)
		row.PID, row.Target, row.Process = p.PID, p.target, line(p.Name)
		row.Name = strings.TrimSpace(line(g.Name) + " " + row.Name)
		diagnose(&row, old[key(now)], now, since, notReady)
		diagnoseSpeed(&row, old[key(now)], now, func(rail int) queue {
			return stands[place(p, g, now, rail)]
		})
		if age := p.At.Sub(g.At); age > hungAfter && row.Outstanding+row.Waiting+row.NotReady > 0 {
			row.mark(hung, "its owner has not polled for %v", age.Round(time.Second))
		}
		blame(&row, now, nics)
		slices.SortStableFunc(row.Rails, worse)
		rows = append(rows, row)
	}
	return rows
}

// key tells peers of a group apart: two may have the same name.
func key(p *Peer) string {
	if len(p.QP.Rails) == 0 {
		return p.Name
	}
	return fmt.Sprint(p.Name, " ", p.QP.Rails[0].Device, " ", p.QP.Rails[0].QPNum)
}

// comparePeer computes what a peer and its rails have done. was is nil if it is new.
func comparePeer(was, now *Peer, since time.Duration) PeerRow {
	row := PeerRow{
		Name:     line(now.Name),
		In:       -1,
		Waiting:  now.QP.SendsWaiting,
		NotReady: now.QP.Banked,
		Lost:     now.QP.RailsLost,
		Back:     now.QP.RailsBack,
	}
	for i := range now.QP.Rails {
		r := &now.QP.Rails[i]
		rail := PeerRow{
			Name:        fmt.Sprintf("%s rail %d", line(r.Device), i),
			In:          -1,
			Outstanding: r.Outstanding,
			Errors:      r.Errors,
		}
		switch {
		case r.Notify:
			rail.Name = line(r.Device) + " notify"
		case r.Spare:
			rail.Name = fmt.Sprintf("%s spare %d", line(r.Device), i)
		}
		if was != nil && i < len(was.QP.Rails) {
			rail.Out = rate(was.QP.Rails[i].Bytes, r.Bytes, since)
		}
		row.Out += rail.Out
		row.Outstanding += r.Outstanding
		row.Errors += r.Errors
		row.Rails = append(row.Rails, rail)
	}
	if e := now.Endpoint; e != nil {
		if row.Outstanding == 0 { // a single queue pair does not count them
			row.Outstanding = e.Outstanding
		}
		row.In, row.Waiting = 0, row.Waiting+e.Pending
		if was != nil && was.Endpoint != nil {
			row.In = rate(was.Endpoint.ReceivedBytes, e.ReceivedBytes, since)
		}
	}
	return row
}

// rate returns how fast a counter has grown, a second.
func rate(from, to uint64, since time.Duration) float64 {
	if to < from || since <= 0 {
		return 0
	}
	return float64(to-from) / since.Seconds()
}
