package main

import (
	"fmt"
	"net/netip"
	"strings"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The providers by name.
const (
	softNICs = bench.Soft
	realNICs = "rdmacore"
	roceNICs = "roce"
)

// providers are the sources of devices. A further one is an entry more.
var providers = []provider{
	{name: softNICs, open: func(o nicOptions) (verbs.Provider, error) {
		return soft.New(soft.Config{Devices: o.count})
	}},
	{name: realNICs, open: openReal},
	{name: roceNICs, open: openRoCE},
}

type provider struct {
	name string
	open func(o nicOptions) (verbs.Provider, error)
}

// nicOptions say which NICs are wanted.
type nicOptions struct {
	count   int        // of a provider that makes any number; for others it has no effect
	filter  string     // as [verbs.ParseDeviceFilter] reads it; of roce, as parseAddresses does
	library string     // path of libibverbs; empty for the loader's choice
	local   netip.Addr // of the NIC of roce where filter is empty; not valid for all of the host
	port    uint16     // UDP port of the NICs of roce; 0 for 4791, or a free one where that is taken
	rate    units.Rate // that a queue pair of roce sends at most; 0 is no bound

	trafficClass uint8 // of the packets of roce; others take that of their queue pairs
}

// openProvider opens a provider by its name.
func openProvider(name string, o nicOptions) (verbs.Provider, error) {
	for _, p := range providers {
		if p.name == name {
			return p.open(o)
		}
	}
	return nil, checkProvider(name)
}

// unopened says which of a provider's NICs could not be opened, and why; nil when all were.
func unopened(p verbs.Provider) error {
	if some, ok := p.(interface{ Unopened() error }); ok {
		return some.Unopened()
	}
	return nil
}

// checkProvider says whether there is a provider of that name.
func checkProvider(name string) error {
	var names []string
	for _, p := range providers {
		if p.name == name {
			return nil
		}
		names = append(names, p.name)
	}
	return &bench.UsageError{Reason: fmt.Sprintf("--provider %s: have %s", name, strings.Join(names, ", "))}
}

// checkNICFlags says whether the flags that choose NICs make sense, and fit the provider.
func checkNICFlags(name, filter, library string) error {
	if err := checkProvider(name); err != nil {
		return err
	}
	if (name == softNICs || name == roceNICs) && library != "" {
		return &bench.UsageError{Reason: "--library is where real NICs are found: use --provider " + realNICs}
	}
	if name == roceNICs {
		_, err := parseAddresses(filter)
		return err
	}
	if _, err := verbs.ParseDeviceFilter(filter); err != nil {
		return &bench.UsageError{Reason: fmt.Sprintf("--device: %v", err)}
	}
	return nil
}
