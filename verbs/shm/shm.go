package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"sync"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Config says which NICs a provider has. The zero value has one, and reaches the processes of the
// same user.
type Config struct {
	// Devices is the number of NICs; 0 means 1, at most verbs.MaxDevices.
	Devices int
	// Dir is a directory in which the NICs' sockets are files. Empty means abstract sockets, which
	// leave nothing behind and reach all processes of the same network namespace. Containers with
	// network namespaces of their own need a directory that they share. Both ends name the same
	// one, by at most 62 bytes, since the system bounds the names of sockets; the first is no '@'.
	Dir string
	// Allow reports whether processes of another user may connect. Nil allows the same user only.
	// Whoever is allowed shares memory with this process: see "Security" in the package comment.
	Allow func(uid uint32) bool
}

// Provider is the NICs of this process. It is a verbs.Provider.
type Provider struct {
	_       guard.NoCopy
	devices []*Device
	arenas  arenas

	mu     sync.Mutex
	closed bool
}

// Open makes the NICs. It needs no privilege.
func Open(cfg Config) (*Provider, error) {
	if cfg.Devices < 0 || cfg.Devices > verbs.MaxDevices {
		return nil, &verbs.OpError{Op: "shm: open", Err: verbs.ErrInvalid,
			Detail: fmt.Sprintf("%d devices, possible are 1 to %d", cfg.Devices, verbs.MaxDevices)}
	}
	if strings.HasPrefix(cfg.Dir, "@") || strings.Contains(cfg.Dir, "\x00") {
		return nil, &verbs.OpError{Op: "shm: open", Err: verbs.ErrInvalid,
			Detail: fmt.Sprintf("Dir: %q is the name of an abstract socket, not of a directory", cfg.Dir)}
	}
	p := &Provider{}
	for i := range max(cfg.Devices, 1) {
		d, err := newDevice(p, verbs.DeviceID(i), cfg)
		if err != nil {
			for _, d := range p.devices {
				d.close()
			}
			return nil, openError(cfg.Dir, err)
		}
		p.devices = append(p.devices, d)
	}
	for _, d := range p.devices {
		d.start()
	}
	return p, nil
}

// openError says what the system refused. A system call that is filtered, as in a sandbox, is not
// supported here.
func openError(dir string, err error) error {
	if errors.Is(err, verbs.ErrNotSupported) {
		return err
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok && call.Syscall == "bind" && dir != "" {
		return &verbs.OpError{Op: "shm: open", Err: fmt.Errorf("%w: %w", verbs.ErrInvalid, err),
			Detail: fmt.Sprintf("Dir: %s: no socket can be made there; it must exist, be writable, and have "+
				"a name of at most %d bytes", dir, maxDir)}
	}
	kind := verbs.ErrNoMemory
	if errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		kind = verbs.ErrNotSupported
	}
	return &verbs.OpError{Op: "shm: open", Err: fmt.Errorf("%w: %w", kind, err),
		Detail: "the system gives this process no shared memory, or no socket to pass it on"}
}

// Name is "shm".
func (p *Provider) Name() string { return "shm" }

// Devices lists the NICs.
func (p *Provider) Devices() ([]verbs.Device, error) {
	list := make([]verbs.Device, len(p.devices))
	for i, d := range p.devices {
		list[i] = d
	}
	return list, nil
}

// Device returns a NIC by its number, which must be below the number of devices.
func (p *Provider) Device(i int) *Device { return p.devices[i] }

// Close ends all links to peers. It returns verbs.ErrBusy while objects of the NICs are open.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &verbs.OpError{Op: "shm: close", Err: verbs.ErrClosed}
	}
	if open := p.refuse(); len(open) != 0 {
		return &verbs.OpError{Op: "shm: close", Err: verbs.ErrBusy, Detail: strings.Join(open, "; ") +
			" are open"}
	}
	p.closed = true
	for _, d := range p.devices {
		d.close()
	}
	return nil
}

// refuse makes the NICs refuse everything from now on. If objects of theirs are open, it returns
// these and changes nothing.
func (p *Provider) refuse() (open []string) {
	for _, d := range p.devices {
		d.mu.Lock()
		defer d.mu.Unlock()
		if o := d.open; o != (nic.Objects{}) {
			open = append(open, fmt.Sprintf("%s: %v", d.core.Name, o))
		}
	}
	if len(open) == 0 {
		for _, d := range p.devices {
			d.core.Closed = "the provider"
		}
	}
	return open
}

// maxDir is the longest name of a directory: the name of a socket has 107 bytes.
const maxDir = 62

// gidPrefix begins the GID of a NIC of this package: a unique local address of IPv6 (RFC 4193). The
// whole of it reads
//
//	fd73:686d:PLACE:PLACE:RANDOM:RANDOM:RANDOM:RANDOM
//
// where PLACE is the same for all NICs that can meet.
const gidPrefix = "\xfdshm"

// newGID draws the GID of a NIC.
func newGID(place uint32) (gid verbs.GID) {
	copy(gid[:], gidPrefix)
	binary.BigEndian.PutUint32(gid[4:], place)
	_, _ = rand.Read(gid[8:]) // never fails
	return gid
}

// placeOf returns a number that the NICs of one host and one directory share. If the host does not
// say which it is, all such hosts have the same number, and only dialing shows who is there.
func placeOf(dir string) uint32 {
	h := fnv.New32a()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	_, _ = h.Write(boot)
	if dir != "" {
		_, _ = h.Write([]byte{1}) // the directory may have another name in another container
	}
	return h.Sum32()
}

// checkPlace returns why a NIC cannot meet the one with a GID; empty if it may.
func checkPlace(own, peer verbs.GID) string {
	switch {
	case string(peer[:4]) != gidPrefix:
		return fmt.Sprintf("%v is no NIC of shared memory", peer)
	case peer[4] != own[4] || peer[5] != own[5] || peer[6] != own[6] || peer[7] != own[7]:
		return fmt.Sprintf("%v is on another host, or meets in a directory where this end does not", peer)
	}
	return ""
}

// draw returns a number that nobody can guess.
func draw() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}
