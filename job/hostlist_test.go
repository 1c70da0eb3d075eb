package job

import "testing"

// The first host of a list as Slurm writes it.
func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"n1":                   "n1",
		"n1,n2":                "n1",
		"node[07-09,12],other": "node07",
		"node[12,07-09]":       "node12",
		"rack[1-2]n[3,5]-ib":   "rack1n3-ib",
		"[1-2]":                "1",
		"":                     "",
		",n1":                  "",
		"n[":                   "",
		"n[1":                  "",
		"n[]":                  "",
		"n[a-b]":               "",
		"n]1":                  "",
	} {
		if got := firstHost(list); got != want {
			t.Errorf("%q: got %q, want %q", list, got, want)
		}
	}
}
