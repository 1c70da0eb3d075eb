package nics

import (
	"fmt"
	"log/slog"
	"strings"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/shm"
	"ibverbx/verbs/soft"
)

// The providers by name.
const (
	Soft = "soft"     // software NICs of this process: verbs/soft
	Real = "rdmacore" // the host's NICs: verbs/rdmacore
	RoCE = "roce"     // NICs made of UDP sockets: verbs/roce
	Shm  = "shm"      // shared memory between the processes of this host: verbs/shm
)

// envShmDir names the directory in which NICs of shared memory meet.
const envShmDir = "IBVERBX_SHM_DIR"

// Config selects NICs. The zero value works.
type Config struct {
	// Provider names where the NICs come from: Real, RoCE, Shm, Soft, or one of Sources. Empty
	// means Shm with processes of this host, and with others Real if this host has RDMA NICs, and
	// otherwise RoCE; it means RoCE at once if Devices names an address. With Shm a peer may leave
	// it empty.
	Provider string
	// Devices chooses among the NICs. Except for roce it is a filter that
	// [verbs.ParseDeviceFilter] reads: "mlx5_0,mlx5_1:2", "^mlx5_2". For roce it lists interfaces
	// and addresses of this host: "eth0,192.0.2.7". Empty means all usable NICs; for roce, the
	// address over which you meet the peer.
	Devices string
	// Library is the path of libibverbs; empty means the loader's choice.
	Library string
	// RoCE configures NICs made of UDP sockets. Its Addresses are another way to name them.
	RoCE roce.Config
	// Shm configures NICs of shared memory. If it names no Dir, IBVERBX_SHM_DIR in the environment
	// does.
	Shm shm.Config
	// Soft configures software NICs.
	Soft soft.Config
	// Logger logs which NICs were opened, and why, at DEBUG. At INFO it logs one line when sockets
	// or shared memory first take the place of RDMA NICs, or memory is not shared with a process of
	// this host, in a job only at rank 0. Nil means slog.Default.
	Logger *slog.Logger
	// Events are called when the choice of NICs is made.
	Events Events
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

// Events are functions that a [Host] calls. All are optional. They may be called from any goroutine
// that calls a method of the Host, and may call its methods.
type Events struct {
	// Fallback is called when the line is logged that Config.Logger describes, in a job at every
	// rank: once for the Host's own NICs, and once for shared memory.
	Fallback func(FallbackEvent)
}

// FallbackEvent reports which NICs are used in place of others, and why.
type FallbackEvent struct {
	Provider string // what is used: RoCE, Shm or Real
	Note     string // [Host.Note]
	Instead  error  // [Host.Instead]
}

// ConfigError reports which field of a Config is wrong. It matches [verbs.ErrInvalid].
type ConfigError struct {
	Field  string // "Provider", "Devices"
	Reason string
}

// Error returns the field and what is wrong with it.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("nics: config: %v: %s: %s", verbs.ErrInvalid, e.Field, e.Reason)
}

// Unwrap returns verbs.ErrInvalid.
func (e *ConfigError) Unwrap() error { return verbs.ErrInvalid }

// Validate returns the [*ConfigError] that [Open] would return, or nil. It opens no NIC.
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
	case (c.Provider == Real || c.Provider == Shm || c.Provider == Soft) && addressed:
		return &ConfigError{"Devices", c.Devices + ": addresses are NICs of provider " + RoCE}
	case c.Provider == "" && namesAddresses(c.Devices):
	default:
		if _, err := verbs.ParseDeviceFilter(c.Devices); err != nil {
			return &ConfigError{"Devices", err.Error()}
		}
	}
	return nil
}

// source returns the provider with a name; an empty name means that of real NICs.
func (c *Config) source(name string) (Source, error) {
	if name == "" {
		name = Real
	}
	all := []Source{{Soft, openSoft}, {Real, openReal}, {RoCE, openRoCE},
		{Shm, openShm}}
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
