package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"ibverbx/internal/units"
)

// defaultPort is the default port of a listening end, as in perftest.
const defaultPort = "18515"

// meetFlags say where two processes connect.
type meetFlags struct {
	Listen  listenFlag    `group:"apart" placeholder:"[ADDR]"`
	Connect connectFlag   `group:"apart" placeholder:"HOST[:PORT]"`
	Port    int           `group:"apart" short:"p" range:"1..65535"`
	Timeout units.Seconds `group:"apart" default:"30s"`
}

// meet settles where the two processes connect: host, if given, is another form of --connect, and
// --port completes an address.
func (f *meetFlags) meet(host connectFlag) error {
	switch {
	case f.Timeout <= 0:
		return usage("--timeout 0: the other process needs some time for a step, such as 30s")
	case f.Listen.given && (f.Connect != "" || host != ""):
		return usage("--listen and --connect, or HOST, exclude each other: one end listens, the other " +
			"connects to it")
	case f.Connect != "" && host != "":
		return usage("%s and --connect %s: that names the listening end twice", host, f.Connect)
	case host != "":
		f.Connect = host
	}
	if f.Port == 0 {
		return nil
	}
	port := strconv.Itoa(f.Port)
	for _, address := range []*string{&f.Listen.address, (*string)(&f.Connect)} {
		if *address == "" {
			continue
		}
		host, named, err := net.SplitHostPort(*address)
		switch {
		case err != nil:
			return err
		case named != defaultPort && named != port:
			return usage("--port %s with address %s: that names the port twice", port, *address)
		}
		*address = net.JoinHostPort(host, port)
	}
	return nil
}

// listenFlag is a flag with an optional address.
type listenFlag struct {
	given   bool
	address string
}

// Decode takes the address if one follows.
func (f *listenFlag) Decode(ctx *kong.DecodeContext) (err error) {
	text := ""
	if t := ctx.Scan.Peek(); t.Type == kong.FlagValueToken || t.Type == kong.UntypedToken &&
		!strings.HasPrefix(t.String(), "-") {
		text = ctx.Scan.Pop().String()
	}
	f.given = true
	f.address, err = parseAddress(text)
	return err
}

// connectFlag is the address of a listening end.
type connectFlag string

// UnmarshalText reads the address.
func (f *connectFlag) UnmarshalText(text []byte) error {
	address, err := parseAddress(string(text))
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.Trim(port, "0") == "" {
		return fmt.Errorf("address %q: want HOST or HOST:PORT", text)
	}
	*f = connectFlag(address)
	return nil
}

// parseAddress reads HOST, HOST:PORT, :PORT or nothing. Without a host it means every address,
// without a port perftest's. An IPv6 address has brackets before a port.
func parseAddress(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		return "", fmt.Errorf("address %q: a port has a colon before it, as in --listen=:%s", text, text)
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil { // there is no port
		host, port = text, defaultPort
		if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
			host = text[1 : len(text)-1]
		}
	}
	_, noPort := strconv.ParseUint(port, 10, 16)
	_, noIP := netip.ParseAddr(host)
	if noPort != nil || noIP != nil && strings.ContainsAny(host, "[]:") {
		return "", fmt.Errorf("address %q: want HOST, HOST:PORT or [IPV6]:PORT, and a port up to 65535", text)
	}
	return net.JoinHostPort(host, port), nil
}
