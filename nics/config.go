package nics

import (
	"fmt"
	"log/slog"
	"strings"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/soft"
)

// The providers by name.
const (
	Soft = "soft"     // software NICs of this process: verbs/soft
	Real = "rdmacore" // the host's NICs: verbs/rdmacore
	RoCE = "roce"     // NICs made of UDP sockets: verbs/roce
)

// Config says which NICs. The zero value works.
type Config struct {
	// Provider names where the NICs come from: Real, RoCE, Soft, or one of Sources; empty chooses
	// between Real and RoCE: the latter at once where Devices names an address.
	Provider string
	// Devices chooses among the NICs. Of real ones it is what [verbs.ParseDeviceFilter] reads:
	// "mlx5_0,mlx5_1:2", "^mlx5_2"; of software NICs too. Of roce it lists interfaces and addresses
	// of this host: "eth0,192.0.2.7". Empty takes all that are usable; of roce it takes the address
	// over which the peer is met.
	Devices string
	// Library is the path of libibverbs; empty is the loader's choice.
	Library string
	// RoCE configures NICs made of UDP sockets. Its Addresses are a further way to name them.
	RoCE roce.Config
	// Soft configures software NICs.
	Soft soft.Config
	// Logger logs which NICs were opened, and why, at DEBUG. At INFO it logs one line: that sockets
	// take the place of RDMA NICs, when they are first used, and in a job only at rank 0. Nil is
	// slog.Default.
	Logger *slog.Logger
	// Sources are further providers. A source with the name of a built-in provider replaces it.
	Sources []Source
}

// Source is a provider of your own, such as one with faults for tests.
type Source struct {
	Name string
	// Open opens the NICs that the configuration chooses. [Choose] applies Config.Devices to a list
	// of them.
	Open func(Config) (verbs.Provider, error)
}

// ConfigError says which field of a Config is wrong. It is [verbs.ErrInvalid].
type ConfigError struct {
	Field  string // "Provider", "Devices"
	Reason string
}

// Error names the field.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("nics: config: %v: %s: %s", verbs.ErrInvalid, e.Field, e.Reason)
}

// Unwrap returns verbs.ErrInvalid.
func (e *ConfigError) Unwrap() error { return verbs.ErrInvalid }

// Validate returns the [*ConfigError] that [Open] would return for a wrong configuration, or nil.
// It opens no NIC.
func (c Config) Validate() error {
	if _, err := c.source(c.Provider); err != nil {
		return err
	}
	addressed := hasAddress(c.Devices)
	switch {
	case c.Provider == RoCE || c.Provider == "" && addressed && c.Library == "":
		addrs, err := parseAddresses(c.Devices)
		if err == nil && len(addrs) != 0 && len(c.RoCE.Addresses) != 0 {
			err = &ConfigError{"Devices", "RoCE.Addresses names the NICs as well: leave one of them empty"}
		}
		return err
	case c.Provider == "" && addressed:
		return &ConfigError{"Devices", c.Devices + ": Library is of real NICs, and addresses are not: " +
			"leave one of them empty"}
	case (c.Provider == Real || c.Provider == Soft) && addressed:
		return &ConfigError{"Devices", c.Devices + ": addresses are NICs of provider " + RoCE}
	case c.Provider == "" && namesAddresses(c.Devices):
	default:
		if _, err := verbs.ParseDeviceFilter(c.Devices); err != nil {
			return &ConfigError{"Devices", err.Error()}
		}
	}
	return nil
}

// source finds a provider; with an empty name that of real NICs.
func (c *Config) source(name string) (Source, error) {
	if name == "" {
		name = Real
	}
	all := []Source{{Soft, openSoft}, {Real, openReal}, {RoCE, openRoCE}}
	var names []string
	for _, s := range append(c.Sources[:len(c.Sources):len(c.Sources)], all...) {
		if s.Name == name {
			return s, nil
		}
	}
	for _, s := range append(all, c.Sources...) {
		names = append(names, s.Name)
	}
	return Source{}, &ConfigError{"Provider", fmt.Sprintf("%.40q: have %s", name, strings.Join(names, ", "))}
}
