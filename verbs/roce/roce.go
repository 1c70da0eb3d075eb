package roce

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	mrand "math/rand/v2"
	"net/netip"
	"strings"
	"sync"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/udp"
)

// Port is the UDP port of RoCEv2 (IANA; IBTA annex A17).
const Port = 4791

// Config says which NICs a provider has. The zero value has one for each address of the host.
type Config struct {
	// Addresses are the local addresses; each becomes a NIC. nil stands for those of
	// [LocalAddresses] that can be opened.
	Addresses []netip.Addr
	// Port is the UDP port of all NICs. 0 means 4791, or, on an IPv4 address whose port 4791 is
	// taken, any free one: such a NIC talks only to other ends of this package (see the package
	// comment). Over IPv6, a port other than 4791 must be the same at both ends.
	Port uint16
	// Window limits the bytes that a queue pair has in flight to another end of this package, and
	// the bytes that it reads at a time from a foreign one; 0 means 1 MiB, or the size of the
	// socket's receive buffer if that is less.
	Window int
	// Rate limits each queue pair to so many bytes of payload a second; 0 is no limit.
	Rate float64
	// Strict keeps to plain RoCEv2 with every peer: this end does not reveal that it is an end of
	// this package, and does not recognise others. See "Foreign peers" in the package comment.
	Strict bool
	// DisableGSO and DisableGRO turn off bursts of packets in the kernel, for sending and
	// receiving.
	DisableGSO, DisableGRO bool
	// ForeignGSO also sends bursts over IPv4 to foreign peers. Each packet's checksum covers its
	// IPv4 identification, which the kernel or NIC that cuts the burst chooses: Linux counts from
	// 0, and so do the checksums. If a NIC cuts bursts and counts otherwise, a foreign peer drops
	// all packets of a burst but the first. IPv6 has no identification, so there bursts go to every
	// peer.
	ForeignGSO bool
}

// Provider is the NICs of this process. It is a verbs.Provider.
type Provider struct {
	_        guard.NoCopy
	devices  []*Device
	unopened error

	mu     sync.Mutex
	closed bool
}

// Open makes the NICs. It needs no privilege.
func Open(cfg Config) (*Provider, error) {
	addrs := cfg.Addresses
	if addrs == nil {
		var err error
		if addrs, err = LocalAddresses(); err != nil {
			return nil, err
		}
	}
	switch {
	case len(addrs) == 0:
		return nil, openError("no address: give an interface of this host an address, or name one in " +
			"Config.Addresses")
	case len(addrs) > verbs.MaxDevices:
		return nil, openError(fmt.Sprintf("%d addresses, at most %d: name some in Config.Addresses",
			len(addrs),
			verbs.MaxDevices))
	case cfg.Window < 0:
		return nil, openError(fmt.Sprintf("Window %d cannot be negative", cfg.Window))
	case cfg.Rate != 0 && !(cfg.Rate >= 1 && cfg.Rate <= math.MaxFloat64):
		return nil, openError(fmt.Sprintf("Rate %v: must be 0 (no bound), or a byte a second at least",
			cfg.Rate))
	}
	p := &Provider{}
	for _, addr := range addrs {
		d, err := newDevice(verbs.DeviceID(len(p.devices)), addr, &cfg)
		if err != nil {
			p.unopened = errors.Join(p.unopened, fmt.Errorf("roce: open: %w", err))
			continue
		}
		p.devices = append(p.devices, d)
	}
	if p.unopened != nil && (cfg.Addresses != nil || len(p.devices) == 0) {
		for _, d := range p.devices {
			_ = d.close()
		}
		return nil, p.unopened
	}
	for _, d := range p.devices {
		d.provider = p
	}
	return p, nil
}

// Unopened returns which of the host's addresses could not become NICs, and why; nil if all did. If
// you named the addresses, Open returns such an error itself.
func (p *Provider) Unopened() error { return p.unopened }

func openError(detail string) error {
	return &verbs.OpError{Op: "roce: open", Err: verbs.ErrInvalid, Detail: detail}
}

// Name is "roce".
func (p *Provider) Name() string { return "roce" }

// Devices lists the NICs, in the order of the addresses.
func (p *Provider) Devices() ([]verbs.Device, error) {
	list := make([]verbs.Device, len(p.devices))
	for i, d := range p.devices {
		list[i] = d
	}
	return list, nil
}

// Device returns a NIC by its number, which must be below the number of addresses.
func (p *Provider) Device(i int) *Device { return p.devices[i] }

// Close closes the sockets. It returns verbs.ErrBusy while objects of the NICs are open.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &verbs.OpError{Op: "roce: close", Err: verbs.ErrClosed}
	}
	if open := p.closeDevices(); len(open) != 0 {
		return &verbs.OpError{Op: "roce: close", Err: verbs.ErrBusy, Detail: strings.Join(open, "; ") +
			" are open"}
	}
	p.closed = true
	var errs []error
	for _, d := range p.devices {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

// closeDevices makes the NICs refuse everything from now on. If objects of theirs are open, it
// returns these and changes nothing.
func (p *Provider) closeDevices() (open []string) {
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

// LocalAddresses returns the addresses of this host that can be NICs: those of interfaces that are
// up, without link-local ones. The addresses that other hosts can reach come first, IPv4 before
// IPv6, and loopback addresses last.
func LocalAddresses() ([]netip.Addr, error) {
	all, err := udp.LocalAddresses()
	if err != nil {
		return nil, fmt.Errorf("roce: %w", err)
	}
	return reachableFirst(all), nil
}

// reachableFirst returns the addresses that can be NICs in the order of LocalAddresses.
func reachableFirst(all []udp.LocalAddress) (list []netip.Addr) {
	for _, loopback := range []bool{false, true} {
		for _, is4 := range []bool{true, false} {
			for _, a := range all {
				if a.Up && a.Loopback == loopback && a.Addr.Is4() == is4 && !a.Addr.IsLinkLocalUnicast() {
					list = append(list, a.Addr)
				}
			}
		}
	}
	return list
}

// draw returns a number that nobody can guess.
func draw() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

// newRand makes a generator for numbers that need not be secret.
func newRand(draw func() uint32) *mrand.Rand {
	return mrand.New(mrand.NewPCG(uint64(draw()), uint64(draw())))
}
