package ibverbx

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"ibverbx/internal/dqplb"
	"ibverbx/verbs"
)

// BusinessCard is what two virtual queue pairs exchange to connect. It travels as JSON:
//
//	{"qpNums":["0000000017","0000000018"],"notifyQpNum":"0000000000"}
//
// with further keys, which an end may leave out, and ignores if they are unknown to it. The i-th
// queue pair connects to the i-th of the peer.
//
// The C++ original (torchcomms) writes cards that name neither the scheme nor the number of
// credits. With a peer that has such a card this end follows the original's rules: see the package
// comment. Programs over the original exchange cards in slots of one size, so all cards of a job
// must have the same length. A card with only the two keys is as long as theirs, 39 bytes and 13
// for each queue pair (91 for four):
//
//	json.Marshal(ibverbx.BusinessCard{QPNums: card.QPNums, NotifyQPNum: card.NotifyQPNum})
type BusinessCard struct {
	QPNums      []uint32 // the data queue pairs
	NotifyQPNum uint32   // 0 for none
	// SpareQPNums are further queue pairs that carry no data, for when another one fails.
	SpareQPNums []uint32
	// Failover is [Config.Failover] of the end.
	Failover bool

	// Scheme is the load-balancing scheme; "" if the card has none.
	Scheme string
	// MTU is the largest path MTU of the end; 0 if the card has none.
	MTU verbs.MTU
	// Rails are the addresses of the data queue pairs, of the notify QP, and of the spare ones, in
	// this order; empty if the card has none.
	Rails []RailCard
	// Credits is how many receives a DQPLB end keeps posted on each data queue pair; 0 if the card
	// has none.
	Credits int
	// RDAtomic is how many reads and atomics the end serves at a time on each queue pair; 0 if the
	// card has none. This end then has one outstanding, since NICs answer more than the peer serves
	// with "invalid request"; if you know that the peer serves more, set it before Connect.
	RDAtomic uint8
	// RawImm says that the end sends the user's immediate in DQPLB, as a message of its own after
	// the last fragment.
	RawImm bool
	// FirstNumber is [Testing.FirstNumber] of the end; 0 if the card has none.
	FirstNumber uint32
	// ImmLittleEndian is [ConnConfig].ImmLittleEndian of the end. Set it, too, if you fill in Rails
	// for an end that orders immediates this way.
	ImmLittleEndian bool
}

// RailCard is the address of a physical queue pair.
type RailCard struct {
	Device verbs.DeviceID `json:"device"` // index of the device in its process; selects the remote key
	GID    verbs.GID      `json:"gid"`
	LID    uint16         `json:"lid,omitempty"`
	PSN    uint32         `json:"psn"` // first packet sequence number that it sends
}

// maxCardBytes bounds a card: the largest one that Card makes is below 20 KiB.
const maxCardBytes = 64 << 10

// cardJSON is the wire form. Numbers of queue pairs are strings of ten digits, as the C++ original
// writes them.
type cardJSON struct {
	QPNums      []string   `json:"qpNums"`
	NotifyQPNum string     `json:"notifyQpNum"`
	SpareQPNums []uint32   `json:"spareQpNums,omitempty"`
	Failover    bool       `json:"failover,omitempty"`
	Scheme      string     `json:"scheme,omitempty"`
	MTU         int        `json:"mtu,omitempty"` // bytes
	Rails       []RailCard `json:"rails,omitempty"`
	Credits     int        `json:"credits,omitempty"`
	RDAtomic    uint8      `json:"rdAtomic,omitempty"`
	RawImm      bool       `json:"rawImm,omitempty"`
	FirstNumber uint32     `json:"firstNum,omitempty"`
	ImmLE       bool       `json:"immLE,omitempty"`
}

// MarshalJSON returns the wire form.
func (c BusinessCard) MarshalJSON() ([]byte, error) {
	w := cardJSON{
		QPNums:      make([]string, len(c.QPNums)),
		NotifyQPNum: fmt.Sprintf("%010d", c.NotifyQPNum),
		SpareQPNums: c.SpareQPNums,
		Failover:    c.Failover,
		Scheme:      c.Scheme,
		MTU:         c.MTU.Bytes(),
		Rails:       c.Rails,
		Credits:     c.Credits,
		RDAtomic:    c.RDAtomic,
		RawImm:      c.RawImm,
		FirstNumber: c.FirstNumber,
		ImmLE:       c.ImmLittleEndian,
	}
	for i, num := range c.QPNums {
		w.QPNums[i] = fmt.Sprintf("%010d", num)
	}
	return json.Marshal(w)
}

// UnmarshalJSON parses the wire form. It returns [verbs.ErrInvalid] for a card that no virtual
// queue pair can have.
func (c *BusinessCard) UnmarshalJSON(data []byte) error {
	if len(data) > maxCardBytes {
		return cardError("%d bytes long: at most %d", len(data), maxCardBytes)
	}
	var w cardJSON
	if err := json.Unmarshal(data, &w); err != nil {
		return cardError("%.200v", err) // err quotes the input
	}
	card := BusinessCard{Scheme: w.Scheme, Rails: w.Rails, Credits: w.Credits, RDAtomic: w.RDAtomic,
		RawImm: w.RawImm, FirstNumber: w.FirstNumber, ImmLittleEndian: w.ImmLE, SpareQPNums: w.SpareQPNums,
		Failover: w.Failover}
	for _, s := range w.QPNums {
		num, err := parseQPNum(s)
		if err != nil {
			return err
		}
		card.QPNums = append(card.QPNums, num)
	}
	if w.NotifyQPNum != "" {
		num, err := parseQPNum(w.NotifyQPNum)
		if err != nil {
			return err
		}
		card.NotifyQPNum = num
	}
	if w.MTU != 0 {
		for card.MTU = verbs.MTU256; card.MTU.Bytes() != w.MTU; card.MTU++ {
			if card.MTU > verbs.MTU4096 {
				return cardError("mtu %d: must be 256, 512, 1024, 2048 or 4096", w.MTU)
			}
		}
	}
	if err := card.validate(); err != nil {
		return err
	}
	*c = card
	return nil
}

// parseQPNum parses a queue pair number: 24 bits, decimal.
func parseQPNum(s string) (uint32, error) {
	num, err := strconv.ParseUint(s, 10, 24)
	if err != nil {
		return 0, cardError("queue pair number %.20q: must be decimal and below 2^24", s)
	}
	return uint32(num), nil
}

// validate returns what makes a card impossible; nil if nothing does.
func (c *BusinessCard) validate() error {
	if len(c.QPNums) == 0 || len(c.QPNums) > MaxRails {
		return cardError("%d queue pairs: must be 1 to %d", len(c.QPNums), MaxRails)
	}
	for i, num := range c.QPNums {
		if num == 0 || num >= 1<<24 {
			return cardError("queue pair %d has number %d: must be 1 to 2^24-1", i, num)
		}
	}
	if len(c.SpareQPNums) > maxSpares {
		return cardError("%d spare queue pairs: at most %d", len(c.SpareQPNums), maxSpares)
	}
	for i, num := range c.SpareQPNums {
		if num == 0 || num >= 1<<24 {
			return cardError("spare queue pair %d has number %d: must be 1 to 2^24-1", i, num)
		}
	}
	if c.NotifyQPNum >= 1<<24 {
		return cardError("notify QP has number %d: must be below 2^24", c.NotifyQPNum)
	}
	if c.Credits < 0 {
		return cardError("credits %d: must not be negative", c.Credits)
	}
	if c.FirstNumber >= dqplb.Mod {
		return cardError("first number %d: must be below 2^24-1", c.FirstNumber)
	}
	if c.MTU > verbs.MTU4096 {
		return cardError("mtu code %d: must be 1 to 5", uint32(c.MTU))
	}
	if len(c.Rails) == 0 {
		return nil
	}
	nums := c.numbers()
	if len(c.Rails) != len(nums) {
		return cardError("%d rails described for %d queue pairs", len(c.Rails), len(nums))
	}
	type place struct {
		dev verbs.DeviceID
		num uint32
	}
	seen := map[place]bool{}
	for i, r := range c.Rails {
		at := place{r.Device, nums[i]}
		switch {
		case r.Device >= verbs.MaxDevices:
			return cardError("rail %d is on device %d: devices count from 0 to %d", i, r.Device,
				verbs.MaxDevices-1)
		case r.PSN >= 1<<24:
			return cardError("rail %d has psn %d: must be below 2^24", i, r.PSN)
		case seen[at]:
			return cardError("queue pair %d of device %d appears twice", nums[i], r.Device)
		}
		seen[at] = true
	}
	return nil
}

// numbers returns the numbers of all queue pairs, in the order of Rails.
func (c *BusinessCard) numbers() []uint32 {
	nums := slices.Clip(c.QPNums)
	if c.NotifyQPNum != 0 {
		nums = append(nums, c.NotifyQPNum)
	}
	return append(nums, c.SpareQPNums...)
}

func cardError(format string, args ...any) error {
	return fmt.Errorf("ibverbx: business card: %w: "+format, append([]any{verbs.ErrInvalid}, args...)...)
}

// isPlain reports whether a card has no more than one of the C++ original: neither the scheme nor
// the number of credits.
func (c *BusinessCard) isPlain() bool { return c.Scheme == "" && c.Credits == 0 }

// isOurs reports whether a card must be from this package. The card of a single queue pair names no
// scheme, but has its address.
func (c *BusinessCard) isOurs() bool { return c.Scheme != "" || len(c.Rails) != 0 }

// localPort is this end's address of a rail: its port, and the entry of the port's GID table that
// it uses.
type localPort struct {
	attr verbs.PortAttr
	gid  verbs.GIDEntry
}

// localPorts queries each device's port once: GID tables may have hundreds of entries.
type localPorts struct {
	conn  *ConnConfig
	known map[verbs.DeviceID]localPort
}

// gidError is why a port has no GID to connect with.
type gidError string

func (e gidError) Error() string { return string(e) }

// of returns a device's port, and queries it the first time.
func (p *localPorts) of(dev verbs.Device) (localPort, error) {
	if known, ok := p.known[dev.ID()]; ok {
		return known, nil
	}
	port, err := p.query(dev)
	if err != nil {
		return port, err
	}
	if p.known == nil {
		p.known = map[verbs.DeviceID]localPort{}
	}
	p.known[dev.ID()] = port
	return port, nil
}

func (p *localPorts) query(dev verbs.Device) (l localPort, err error) {
	if l.attr, err = dev.QueryPort(int(p.conn.port(dev))); err != nil {
		return l, err
	}
	l.gid, err = p.conn.GID(dev, l.attr)
	return l, err
}

// GID returns the entry of a device's GID table that connections use: the one that GIDIndex names,
// or else the usual one: RoCE v2 over a routable IPv4 address, if there is one. attr describes the
// port that Port names, or the device's default port.
func (c *ConnConfig) GID(dev verbs.Device, attr verbs.PortAttr) (verbs.GIDEntry, error) {
	port := int(c.port(dev))
	if c.GIDIndex == 0 {
		return bestGID(dev, port, attr.GIDTableLen)
	}
	index := max(0, c.GIDIndex)
	entry, err := dev.QueryGID(port, index)
	if err == nil && entry.GID.IsZero() && attr.LinkLayer == verbs.LinkLayerEthernet {
		err = gidError(fmt.Sprintf("entry %d of the GID table of %s port %d is empty", index, dev.Name(),
			port))
	}
	return entry, err
}

// bestGID returns the usual entry of a port's GID table. It skips an entry that it cannot read,
// unless there is no other.
func bestGID(dev verbs.Device, port, tableLen int) (best verbs.GIDEntry, err error) {
	rank := 0
	var unreadable error
	for i := range tableLen {
		entry, err := dev.QueryGID(port, i)
		if err != nil {
			unreadable = err
			continue
		}
		if r := gidRank(entry); r > rank {
			best, rank = entry, r
		}
	}
	switch {
	case rank != 0:
		return best, nil
	case unreadable != nil:
		return best, unreadable
	}
	return best, gidError(fmt.Sprintf("%s port %d has no GID: give the interface behind it an address",
		dev.Name(), port))
}

// gidRank ranks GIDs in the usual order: RoCE v2 before anything else, of these the routable before
// the link-local, and IPv4 before IPv6.
func gidRank(e verbs.GIDEntry) int {
	switch {
	case e.GID.IsZero():
		return 0
	case e.Type != verbs.GIDTypeRoCEv2:
		return 1
	}
	rank := 2
	if !e.GID.IsLinkLocal() {
		rank += 2
	}
	if e.GID.IsIPv4() {
		rank++
	}
	return rank
}
