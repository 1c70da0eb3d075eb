package rendezvous

import (
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"ibverbx/verbs"
)

// Config configures conversations. The zero value works.
type Config struct {
	// Protocol names the program's protocol and its version, as in "shop-replica/3". Both ends must
	// use the same. At most 255 printable characters of ASCII.
	Protocol string
	// TLS makes conversations use TLS; nil means plain TCP. A listener needs Certificates or
	// GetCertificate. If ServerName is empty, Dial sets it to the host that it dials. If MinVersion
	// is 0, it is TLS 1.3. The package comment says what TLS protects.
	TLS *tls.Config
	// Timeout bounds each step of a conversation; 0 means 30 seconds. A long message in transfer
	// ends the conversation only if no byte of it moves for that time.
	Timeout time.Duration
	// Greeting bounds the beginning of a conversation, TLS included; 0 means Timeout, but at a
	// listener no more than 5 seconds.
	Greeting time.Duration
	// MaxMessage bounds a message in bytes; 0 means 1 MiB.
	MaxMessage int

	// Retry is how long Dial keeps trying while nobody listens at the address, so that processes
	// may start in any order; 0 means a single attempt.
	Retry time.Duration

	// MaxGreetings bounds the connections of a listener that have not begun a conversation yet; 0
	// means 512, at most 65,536.
	MaxGreetings int
	// MaxWaiting bounds the conversations that wait for Accept; 0 means 512, at most 65,536.
	// Further ones end with ErrBusy at the peer. One whose peer leaves without having sent a
	// message is dropped.
	MaxWaiting int
	// Refused, if set, is called from any goroutine for each connection to a listener that did not
	// become a conversation: for logs. It must not wait.
	Refused func(remote net.Addr, why error)
}

// The defaults.
const (
	defaultTimeout    = 30 * time.Second
	defaultGreeting   = 5 * time.Second // for a listener
	defaultMaxMessage = 1 << 20
	defaultMaxOpen    = 512
)

// maxOpen is the limit of MaxGreetings and MaxWaiting.
const maxOpen = 1 << 16

// withDefaults returns c with defaults in place of zero fields, or an error that names the wrong
// field.
func (c Config) withDefaults(listens bool) (Config, error) {
	switch {
	case c.Timeout < 0 || c.Greeting < 0 || c.Retry < 0:
		return c, invalid("Timeout %v, Greeting %v, Retry %v: must not be negative", c.Timeout, c.Greeting,
			c.Retry)
	case c.MaxMessage < 0 || c.MaxMessage > 1<<30:
		return c, invalid("MaxMessage %d: must be 1 byte to 1 GiB, or 0 for 1 MiB", c.MaxMessage)
	case min(c.MaxGreetings, c.MaxWaiting) < 0 || max(c.MaxGreetings, c.MaxWaiting) > maxOpen:
		return c, invalid("MaxGreetings %d, MaxWaiting %d: must be 1 to %d, or 0 for %d", c.MaxGreetings,
			c.MaxWaiting, maxOpen, defaultMaxOpen)
	case !isProtocol(c.Protocol):
		return c, invalid("Protocol %.40q: must be at most 255 printable characters of ASCII", c.Protocol)
	case c.TLS != nil && c.TLS.MinVersion == 0 && c.TLS.MaxVersion != 0 &&
		c.TLS.MaxVersion < tls.VersionTLS13:
		return c, invalid("TLS.MaxVersion %s, and no MinVersion, which is TLS 1.3 then: set MinVersion too",
			tls.VersionName(c.TLS.MaxVersion))
	case listens && c.TLS != nil && len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil &&
		c.TLS.GetConfigForClient == nil:
		return c, invalid("TLS without a certificate: a listener needs Certificates or GetCertificate")
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Greeting == 0 {
		c.Greeting = c.Timeout
		if listens {
			c.Greeting = min(c.Timeout, defaultGreeting)
		}
	}
	for _, field := range []struct {
		value    *int
		standard int
	}{{&c.MaxMessage, defaultMaxMessage}, {&c.MaxGreetings, defaultMaxOpen},
		{&c.MaxWaiting, defaultMaxOpen}} {
		if *field.value == 0 {
			*field.value = field.standard
		}
	}
	return c, nil
}

// isProtocol reports whether a string is a valid name of a protocol.
func isProtocol(s string) bool {
	for _, b := range []byte(s) {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return len(s) <= maxProtocol
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("rendezvous: config: %w: "+format, append([]any{verbs.ErrInvalid}, args...)...)
}
