package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// defaultPort is where a listening end is found, as in perftest.
const defaultPort = "18515"

// listenFlag is a flag that may be followed by an address, or by nothing.
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

// parseAddress reads HOST, HOST:PORT, :PORT or nothing. What is left out is every address, and
// perftest's port.
func parseAddress(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		return "", fmt.Errorf("address %q: a port has a colon before it, as in --listen=:%s", text, text)
	}
	host, port := text, defaultPort
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	if _, err := netip.ParseAddr(bare); err == nil {
		host = bare
	} else if strings.Contains(text, ":") {
		if host, port, err = net.SplitHostPort(text); err != nil {
			return "", fmt.Errorf("address %q: want HOST, HOST:PORT, or [IPV6]:PORT", text)
		}
	}
	if strings.ContainsAny(host, "[]") {
		return "", fmt.Errorf("address %q: want HOST, HOST:PORT, or [IPV6]:PORT", text)
	}
	_, err := strconv.ParseUint(port, 10, 16)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return "", fmt.Errorf("address %q: want HOST or HOST:PORT", text)
	case err != nil:
		return "", fmt.Errorf("address %q: ports are 0 to 65535", text)
	}
	return net.JoinHostPort(host, port), nil
}
