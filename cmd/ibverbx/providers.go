package main

import (
	"fmt"
	"strings"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// providers are the sources of devices, the default first. A further one is an entry more.
var providers = []provider{
	{name: "soft", open: func(devices int) (verbs.Provider, error) { return soft.New(soft.Config{Devices: devices}) }},
}

type provider struct {
	name string
	// open opens the provider. devices is how many a provider makes that can make any number; others have what they have.
	open func(devices int) (verbs.Provider, error)
}

// openProvider opens a provider by its name.
func openProvider(name string, devices int) (verbs.Provider, error) {
	for _, p := range providers {
		if p.name == name {
			return p.open(devices)
		}
	}
	return nil, checkProvider(name)
}

// checkProvider says whether there is a provider of that name.
func checkProvider(name string) error {
	var names []string
	for _, p := range providers {
		if p.name == name {
			return nil
		}
		names = append(names, p.name)
	}
	return &bench.UsageError{Reason: fmt.Sprintf("--provider %s: have %s", name, strings.Join(names, ", "))}
}
