package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/nics"
	"ibverbx/verbs/roce"
)

// The providers by name.
const (
	softNICs = nics.Soft
	realNICs = nics.Real
	roceNICs = nics.RoCE
)

// providers are further sources of devices, beside those of package nics. Tests have some.
var providers []nics.Source

// asked is the provider that the flags ask for, at one of two ends: by an address for roce. Where
// they ask for none it is that of real NICs.
func (f *nicFlags) asked() string {
	switch {
	case f.Provider != "":
		return f.Provider
	case slices.ContainsFunc(strings.Split(f.Device, ","), func(word string) bool {
		_, err := netip.ParseAddr(word)
		return err == nil
	}) && f.Library == "":
		return roceNICs
	}
	return realNICs
}

// config says which NICs this process has, of a provider; empty chooses one.
func (f *nicFlags) config(provider string, conn ibverbx.ConnConfig) nics.Config {
	cfg := nics.Config{Provider: provider, Devices: f.Device, Library: f.Library, Sources: providers,
		RoCE:   roce.Config{Rate: float64(f.Rate), TrafficClass: conn.TrafficClass},
		Logger: slog.New(slog.DiscardHandler)} // the command says it in its own way
	if f.UDPPort != nil {
		cfg.RoCE.Port = uint16(*f.UDPPort)
	}
	return cfg
}

// configHere says which NICs two ends in this process share: so many, where a provider makes any
// number.
func (f *nicFlags) configHere(provider string, count int, conn ibverbx.ConnConfig) nics.Config {
	cfg := f.config(provider, conn)
	cfg.Soft.Devices = count
	if provider == roceNICs && f.Device == "" {
		cfg.RoCE.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return cfg
}

// openNICs opens NICs.
func openNICs(cfg nics.Config) (*nics.Host, error) {
	h, err := nics.Open(cfg)
	if err == nil {
		return h, nil
	}
	if usage := flagError(err); usage != nil {
		return nil, usage
	}
	if why := errors.Unwrap(err); why != nil {
		return nil, why // without the name of the package
	}
	return nil, err
}

// flagError is the error of a configuration in terms of flags; nil if err is none.
func flagError(err error) error {
	var bad *nics.ConfigError
	switch {
	case !errors.As(err, &bad):
		return nil
	case bad.Field == "Provider":
		return &bench.UsageError{Reason: "--provider " + bad.Reason}
	}
	return &bench.UsageError{Reason: "--device: " + bad.Reason}
}

// checkNICFlags says whether the flags that choose NICs make sense, and fit the provider.
func checkNICFlags(name, filter, library string) error {
	if library != "" && (name == softNICs || name == roceNICs) {
		return &bench.UsageError{Reason: "--library is where real NICs are found: use --provider " + realNICs}
	}
	err := nics.Config{Provider: name, Devices: filter, Library: library, Sources: providers}.Validate()
	if usage := flagError(err); usage != nil {
		return usage
	}
	return err
}

// checkRoCE says whether there can be NICs with the UDP port and the rate limit that were named.
func (f *nicFlags) checkRoCE(provider string) error {
	switch {
	case provider == softNICs && f.Rate != 0:
		return &bench.UsageError{Reason: "--rate-limit is of NICs made of UDP sockets: software NICs have " +
			"--nic-speed"}
	case provider != roceNICs && f.Rate != 0:
		return &bench.UsageError{Reason: "--rate-limit is of NICs made of UDP sockets: add --provider roce"}
	case f.UDPPort == nil:
		return nil
	case provider != roceNICs:
		return &bench.UsageError{Reason: "--udp-port is of NICs made of UDP sockets: add --provider roce"}
	case *f.UDPPort < 1 || *f.UDPPort > 65535:
		return &bench.UsageError{Reason: fmt.Sprintf("--udp-port %d: must be 1 to 65535", *f.UDPPort)}
	}
	return nil
}
