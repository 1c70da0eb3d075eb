// Package roster names those of many who are late, for errors.
package roster

import (
	"fmt"
	"strings"
)

// most is how many are named.
const most = 20

// Late says of those of size numbers that are late what they do: one for a single number, many for
// several. "rank 2 of 4 is missing", "ranks 2, 3 of 4 are missing". It returns "" if none is late.
func Late(noun string, size int, late func(i int) bool, one, many string) string {
	var names []string
	for i := range size {
		if late(i) {
			names = append(names, fmt.Sprint(i))
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s %s of %d %s", noun, names[0], size, one)
	}
	return fmt.Sprintf("%ss %s of %d %s", noun, list(names), size, many)
}

// Named is Late for those who have names.
func Named(names []string, one, many string) string {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return names[0] + " " + one
	}
	return list(names) + " " + many
}

// list writes names one after the other.
func list(names []string) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
