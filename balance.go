package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// Balance is how a virtual queue pair over several queue pairs chooses the one that carries the
// next fragment. Each end chooses for what it sends and reads; the peer's choice does not matter.
type Balance uint8

const (
	// RoundRobin gives each queue pair a fragment in turn, and passes over those that are full. It
	// is the default, and right where all are alike.
	RoundRobin Balance = iota
	// ByAbility gives a fragment to the queue pair that will have finished it first, by what it has
	// outstanding and by how fast it was seen to be. A NIC that is slower than the others, from the
	// beginning or from some moment on, gets what it can carry and does not hold the rest up.
	//
	// How fast a queue pair is shows in fragments of 16 KiB and more (of [Config.FragmentSize], if
	// that is less); as long as all are within a third of each other, turns are taken as in
	// RoundRobin. One that was slow gets a fragment now and then, by which its recovery shows.
	// [RailStats.Rate] says what was seen.
	//
	// It reads [Testing.Clock] when such a fragment completes.
	ByAbility
)

// String is the name on the command line.
func (b Balance) String() string {
	switch b {
	case RoundRobin:
		return "round-robin"
	case ByAbility:
		return "ability"
	}
	return fmt.Sprintf("balance %d", uint8(b))
}

// ParseBalance reads what String writes.
func ParseBalance(name string) (Balance, error) {
	switch name {
	case "round-robin":
		return RoundRobin, nil
	case "ability":
		return ByAbility, nil
	}
	return 0, fmt.Errorf("ibverbx: %w: balance %.40q: have round-robin, ability", verbs.ErrInvalid, name)
}

// MarshalText writes the name.
func (b Balance) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads what MarshalText writes. What it refuses changes nothing.
func (b *Balance) UnmarshalText(text []byte) error {
	balance, err := ParseBalance(string(text))
	if err != nil {
		return err
	}
	*b = balance
	return nil
}
