package sendside

import (
	"regexp"
	"testing"

	"ibverbx/test/internal/hunt"
)

var flags = hunt.NewFlags()

// TestTransport plays worlds of endpoints.
func TestTransport(t *testing.T) { flags.Test(t, &Transport, 1000) }

// drawn matches addresses and the numbers that the library draws by itself. They decide nothing.
var drawn = regexp.MustCompile(`0x[0-9a-f]{6,}|wr [0-9]+|virtual qp [0-9]+|PSN:[0-9]+`)

func TestTransportReplays(t *testing.T) {
	flags.Kit(t)
	Transport.Replays(t, 100, drawn)
}

// TestTagged plays worlds of messages with tags.
func TestTagged(t *testing.T) { flags.Test(t, &Tagged, 1000) }

func TestTaggedReplays(t *testing.T) {
	flags.Kit(t)
	Tagged.Replays(t, 100, drawn)
}

// TestShmem plays worlds of PEs.
func TestShmem(t *testing.T) { flags.Test(t, &Shmem, 200) }

func TestShmemReplays(t *testing.T) {
	flags.Kit(t)
	Shmem.Replays(t, 40, drawn)
}

// TestRanks plays worlds of ranks that have joined.
func TestRanks(t *testing.T) { flags.Test(t, &Ranks, 100) }

// TestRanksMutations: the bugs are of package tagged, in what only ranks use.
func TestRanksMutations(t *testing.T) {
	flags.Hunt(t, &Ranks, hunt.Bugs{Package: "tagged", File: "testdata/ranks.bugs"}, 1000)
}

func TestRanksReplays(t *testing.T) {
	flags.Kit(t)
	Ranks.Replays(t, 40, drawn)
}

func bugsOf(pkg string) hunt.Bugs {
	return hunt.Bugs{Package: pkg, File: "testdata/" + pkg + ".bugs"}
}

// TestTransportMutations checks that each bug of transport has its place. With -mutate it plants
// them one at a time and demands that the game of endpoints finds each. The others do likewise.
func TestTransportMutations(t *testing.T) { flags.Hunt(t, &Transport, bugsOf("transport"), 20000) }

func TestTaggedMutations(t *testing.T) { flags.Hunt(t, &Tagged, bugsOf("tagged"), 8000) }

func TestShmemMutations(t *testing.T) { flags.Hunt(t, &Shmem, bugsOf("shmem"), 1000) }
