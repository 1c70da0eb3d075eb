package vqp_test

import (
	"errors"
	"flag"
	"net/netip"
	"strings"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/roce"
)

var localFlag = flag.String("local", "", "local `addresses` that become NICs of roce, for -provider "+
	"roce-rdmacore "+
	"and rdmacore-roce: each in turn reaches one of -devices")

// NICs of UDP sockets at one end and the kernel's at the other. Their links stay up.
var (
	_ = offer("roce-rdmacore", crossedProvider(false))
	_ = offer("rdmacore-roce", crossedProvider(true))
)

// crossedProvider has roce at the first end, or at the second.
func crossedProvider(second bool) provider {
	return provider{
		open:    func(devices int) (verbs.Provider, error) { return openCrossed(devices, second) },
		crossed: true,
		slow:    4,
		patient: patientNIC,
		hasty:   hastyNIC,
		setLink: func(tb testing.TB, _ verbs.Device, _ bool) {
			tb.Helper()
			tb.Skip("links of two kinds of NICs")
		},
	}
}

// crossed is two providers as one. The first half of its devices is of the first.
type crossed struct {
	first, second verbs.Provider
	devices       []verbs.Device
}

func openCrossed(devices int, second bool) (verbs.Provider, error) {
	if *devicesFlag == "" || *localFlag == "" {
		return nil, errors.New("-devices and -local name the NICs of both kinds")
	}
	cfg := roce.Config{}
	for _, s := range strings.Split(*localFlag, ",") {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return nil, err
		}
		cfg.Addresses = append(cfg.Addresses, addr)
	}
	ours, err := roce.Open(cfg)
	if err != nil {
		return nil, err
	}
	foreign, err := rdmacore.Open(rdmacore.Config{Devices: *devicesFlag})
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	c := &crossed{first: ours, second: foreign}
	if second {
		c.first, c.second = foreign, ours
	}
	for _, p := range []verbs.Provider{c.first, c.second} {
		list, err := p.Devices()
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.devices = append(c.devices, list[:min(len(list), (devices+1)/2)]...)
	}
	return c, nil
}

func (c *crossed) Name() string { return c.first.Name() + "-" + c.second.Name() }

func (c *crossed) Devices() ([]verbs.Device, error) { return c.devices, nil }

func (c *crossed) Close() error { return errors.Join(c.first.Close(), c.second.Close()) }
