package roster_test

import (
	"testing"

	"ibverbx/internal/roster"
)

// Who is late is named, up to a number; one is told of otherwise than several.
func TestLate(t *testing.T) {
	for _, c := range []struct {
		size, from, to int
		want           string
	}{
		{4, 0, 0, ""},
		{4, 2, 3, "rank 2 of 4 is missing"},
		{4, 2, 4, "ranks 2, 3 of 4 are missing"},
		{64, 1, 64, "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and 43 " +
			"more of 64 are missing"},
	} {
		late := func(i int) bool { return c.from <= i && i < c.to }
		if got := roster.Late("rank", c.size, late, "is missing", "are missing"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, ""}, {[]string{"node7"}, "node7 is late"}, {[]string{"node7", "PE 3"}, "node7, PE 3 are late"},
	} {
		if got := roster.Named(c.names, "is late", "are late"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
