package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/internal/nicoffer"
	"ibverbx/internal/units"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// The providers by name.
const (
	softNICs = nics.Soft
	realNICs = nics.Real
	roceNICs = nics.RoCE
	shmNICs  = nics.Shm
)

// providers are sources of devices beside those of package nics. Tests add some.
var providers []nics.Source

// nicFlags choose the NICs of this process.
type nicFlags struct {
	Provider string     `group:"rails" predictor:"provider"`
	Device   string     `group:"rails" short:"d" aliases:"ib-dev" placeholder:"LIST"`
	Library  string     `group:"rails" placeholder:"PATH" predictor:"file"`
	UDPPort  int        `group:"rails" name:"udp-port" range:"1..65535"`
	Rate     units.Rate `group:"rails" name:"rate-limit"`
}

// connFlags are the connection settings of this process's queue pairs.
type connFlags struct {
	GIDIndex     int     `group:"rails" name:"gid-index" short:"x" range:"0..255"`
	IBPort       int     `group:"rails" name:"ib-port" short:"i" range:"1..254"`
	MTU          mtuFlag `group:"rails" name:"mtu" short:"m" placeholder:"N"`
	TrafficClass int     `group:"rails" name:"tclass" range:"0..255"`
	SL           int     `group:"rails" name:"sl" short:"S" range:"0..15"`
	QPTimeout    int     `group:"rails" name:"qp-timeout" short:"u" range:"0..31"`
	RetryCount   int     `group:"rails" name:"retry-count" range:"0..7"`
	RNRRetry     int     `group:"rails" name:"rnr-retry" range:"0..7"`
	Outs         int     `group:"rails" name:"outs" short:"o" range:"1..255"`
}

// mtuFlag is a path MTU that is given in bytes.
type mtuFlag verbs.MTU

// UnmarshalText reads one.
func (m *mtuFlag) UnmarshalText(text []byte) error {
	for mtu := verbs.MTU256; mtu <= verbs.MTU4096; mtu++ {
		if mtu.String() == string(text) {
			*m = mtuFlag(mtu)
			return nil
		}
	}
	return fmt.Errorf("%.20q: must be 256, 512, 1024, 2048 or 4096", text)
}

// conn returns the connection settings of the flags.
func (f *connFlags) conn(k *kong.Context) ibverbx.ConnConfig {
	orNone := func(flag string, n int) int { // 0 in a ConnConfig is the default
		if n == 0 && given(k, flag) {
			return ibverbx.None
		}
		return n
	}
	return ibverbx.ConnConfig{
		Port: uint8(f.IBPort), GIDIndex: orNone("gid-index", f.GIDIndex), MTU: verbs.MTU(f.MTU),
		TrafficClass: uint8(f.TrafficClass), SL: uint8(f.SL), MaxRDAtomic: uint8(f.Outs),
		Timeout:    orNone("qp-timeout", f.QPTimeout),
		RetryCount: orNone("retry-count", f.RetryCount), RNRRetry: orNone("rnr-retry", f.RNRRetry),
	}
}

// asked returns the provider that the flags ask for: roce for an address. The default is that of
// real NICs.
func (f *nicFlags) asked() string {
	if f.Provider == "" && f.Library == "" &&
		slices.ContainsFunc(strings.Split(f.Device, ","), func(word string) bool {
			_, err := netip.ParseAddr(word)
			return err == nil
		}) {
		return roceNICs
	}
	return cmp.Or(f.Provider, realNICs)
}

// check reports whether the flags make sense for a provider.
func (f *nicFlags) check(provider string) error {
	switch {
	case f.Library != "" && (provider == softNICs || provider == roceNICs || provider == shmNICs):
		return usage("--library is where real NICs are found: use --provider %s", realNICs)
	case f.Rate != 0 && provider != roceNICs:
		return usage("--rate-limit is of NICs made of UDP sockets: add --provider roce; software NICs have " +
			"--nic-speed")
	case f.UDPPort != 0 && provider != roceNICs:
		return usage("--udp-port is of NICs made of UDP sockets: add --provider roce")
	}
	return flagError(f.config(provider).Validate())
}

// config returns the NICs of this process, from a provider; empty chooses one.
func (f *nicFlags) config(provider string) nics.Config {
	return nics.Config{Provider: provider, Devices: f.Device, Library: f.Library, Sources: providers,
		RoCE:   roce.Config{Rate: float64(f.Rate), Port: uint16(f.UDPPort)},
		Logger: slog.New(slog.DiscardHandler)} // the command has its own message
}

// openNICs opens NICs.
func openNICs(cfg nics.Config) (*nics.Host, error) {
	h, err := nics.Open(cfg)
	return h, flagError(err)
}

// flagError rewrites an error of package nics in terms of flags, without the package's name.
func flagError(err error) error {
	if bad, ok := errors.AsType[*nics.ConfigError](err); ok {
		if bad.Field == "Provider" {
			return usage("--provider %s", bad.Reason)
		}
		return usage("--device: %s", bad.Reason)
	}
	return cmp.Or(errors.Unwrap(err), err)
}

// openHere opens the NICs that two ends in this process share; count applies to a provider that
// makes any number.
func (f *nicFlags) openHere(c *console, provider string, count int, conn ibverbx.ConnConfig,
	said *outcome) (verbs.Provider, error) {
	cfg := f.config(provider)
	cfg.Soft.Devices, cfg.Shm.Devices = count, count
	if provider == roceNICs && f.Device == "" {
		cfg.RoCE.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	host, err := openNICs(cfg)
	if err != nil {
		return nil, err
	}
	said.warn(c, host.Unopened())
	if err := checkPorts(conn, host); err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return host.Provider(), nil
}

// endNICs are the NICs of one of two processes.
type endNICs struct {
	*nics.Host
	config  ibverbx.ConnConfig
	console *console
	said    *outcome
}

// openEnd opens the NICs of one of two processes; several, a port or a GID can only be real ones'.
func (f *nicFlags) openEnd(c *console, conn ibverbx.ConnConfig, count int, said *outcome) (*endNICs, error) {
	cfg := f.config(f.Provider)
	if f.Provider+f.Device == "" && (count > 1 || conn.Port > 1 || conn.GIDIndex > 0) {
		cfg.Provider = realNICs
	}
	host, err := openNICs(cfg)
	if err != nil {
		return nil, err
	}
	said.warn(c, host.LeftOut())
	switch {
	case host.Name() != roceNICs || f.Device != "":
		err = checkPorts(conn, host)
	case conn.Port > 1 || conn.GIDIndex > 0: // for a NIC that is made when the other process connects
		err = usage("--ib-port, --gid-index: a NIC made of a UDP socket has port 1, with GID 0")
	}
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return &endNICs{host, conn, c, said}, nil
}

// warn reports once that some NICs are left out.
func (o *outcome) warn(c *console, without error) {
	if without != nil && !o.warning {
		o.warning = true
		c.complain("ibverbx: %s; going on without it\n", reason(without))
	}
}

// checkPorts reports whether NICs have the port, and their ports the entry of the GID table, that
// the flags name.
func checkPorts(conn ibverbx.ConnConfig, host *nics.Host) error {
	if conn.Port == 0 && conn.GIDIndex == 0 {
		return nil
	}
	devices, err := host.Devices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		port, err := d.QueryPort(cmp.Or(int(conn.Port), d.DefaultPort()))
		if err == nil {
			_, err = conn.GID(d, port)
		}
		if err != nil {
			return usage("--ib-port, --gid-index: %v; see ibverbx devices", err)
		}
	}
	return nil
}

// explain says once which NICs are used if no provider was named and they are not real ones.
func (n *endNICs) explain() {
	note := n.Note()
	if note != "" && note != n.said.note {
		n.console.complain("ibverbx: %s\n", note)
	}
	n.said.note = note
}

// half returns this end's part in a conversation. An error ends the conversation.
func (n *endNICs) half(ctx context.Context, conn *rendezvous.Conn) (*bench.Half, error) {
	devices, err := n.ReachingAll(ctx, conn)
	if err != nil {
		conn.Fail(flagError(err))
		return nil, flagError(err)
	}
	n.explain()
	return &bench.Half{Conn: conn, Provider: nicoffer.ProviderOf(n.Name(), devices), Devices: devices,
		Config: n.config, Version: version()}, nil
}

// explainSilence adds the likely reasons to the error of a NIC made of a UDP socket that never got
// an answer.
func explainSilence(err error, provider string, d verbs.Device) error {
	if provider != roceNICs || !errors.Is(err, verbs.StatusRetryExcErr) {
		return err
	}
	return fmt.Errorf("%w\nno packet has come back to %s, a UDP socket: check that no firewall drops UDP "+
		"between the two addresses, and that the peer's NIC speaks RoCEv2", err, nicoffer.NameOf(d))
}
