package udp

import (
	"fmt"
	"net/netip"
	"strconv"

	"ibverbx/verbs"
)

// bufferSize is the size in bytes of the socket's buffers that Listen asks for (SO_RCVBUF,
// SO_SNDBUF): a few windows of 1 MiB. The kernel may give less: see [Stats]. Memory is used only
// while packets wait in it.
const bufferSize = 4 << 20

// These environment variables turn an offload off when they are true ("1", "true").
const (
	envDisableGSO = "IBVERBX_ROCE_DISABLE_GSO"
	envDisableGRO = "IBVERBX_ROCE_DISABLE_GRO"
)

// Config describes the socket to open. All but Local can be zero.
type Config struct {
	// Local is the address to bind, one of an interface of this host: see [LocalAddresses]. The
	// unspecified address is refused, since the source address must be known. An IPv6 link-local
	// address needs no zone if only one interface has it. Port 0 lets the kernel choose one.
	Local netip.AddrPort

	// DisableGSO sends every packet by itself, DisableGRO receives every packet by itself.
	DisableGSO, DisableGRO bool
}

// validated returns the config with its defaults and the settings of the environment.
func (cfg Config) validated(getenv func(string) string) (Config, error) {
	refuse := func(sentinel error, detail string, args ...any) (Config, error) {
		return Config{}, &Error{Op: "listen", Local: cfg.Local, Err: sentinel,
			Detail: fmt.Sprintf(detail, args...)}
	}
	addr := cfg.Local.Addr()
	switch {
	case !addr.IsValid():
		return refuse(verbs.ErrInvalid, "no local address: name one of this host's addresses")
	case addr.Unmap().IsUnspecified():
		return refuse(verbs.ErrInvalid, "the socket needs one concrete address of this host, not all of "+
			"them: peers check the address that packets come from")
	case addr.IsMulticast():
		return refuse(verbs.ErrInvalid, "a multicast address cannot be the local one")
	}
	cfg.Local = netip.AddrPortFrom(addr.Unmap(), cfg.Local.Port())
	for name, off := range map[string]*bool{envDisableGSO: &cfg.DisableGSO, envDisableGRO: &cfg.DisableGRO} {
		value := getenv(name)
		if value == "" {
			continue
		}
		set, err := strconv.ParseBool(value)
		if err != nil {
			return refuse(verbs.ErrInvalid, "environment variable %s is %q, neither true nor false", name,
				value)
		}
		*off = *off || set
	}
	return cfg, nil
}
