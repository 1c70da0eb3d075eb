//go:build linux && (amd64 || arm64)

package rdmacore

import "ibverbx/verbs"

// OpenRegions lists the open regions of a protection domain.
func OpenRegions(domain verbs.PD) (list []verbs.MR) {
	for m := range domain.(*pd).mrs {
		list = append(list, m)
	}
	return list
}
